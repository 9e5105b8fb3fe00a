"""Recognise what a text is by the content of its first 64 KiB; its file name is ignored."""

from __future__ import annotations

import re
from typing import Literal

from gpudoctor.facts.kernel_log.records import read_line, unwrapped

HEAD_BYTES = 64 * 1024

Kind = Literal[
    "smi-xml",
    "smi-text",
    "smi-failure",
    "bug-report",
    "topology",
    "p2p",
    "nvlink",
    "lspci",
    "free",
    "meminfo",
    "df",
    "kernel-module",
    "kernel-log",
    "environment",
]

_XML = re.compile(r"<(?:!DOCTYPE )?nvidia_smi_log[\s>]")
_BUG_REPORT = re.compile(r"NVIDIA bug report log file|nvidia-bug-report\.sh Version")
_MATRIX = re.compile(r"^[^\S\n]*GPU\d+\t", re.MULTILINE)
_P2P_CELL = re.compile(r"\t(?:OK|CNS|GNS|TNS|NS|DR|U)[\t\n]")
_NVLINK_GPU = re.compile(r"^GPU \d+: .{0,200}\(UUID: ", re.MULTILINE)
_NVLINK = re.compile(r"^[ \t]+Link \d+: |all links are inActive", re.MULTILINE)
_LSPCI = re.compile(
    r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "
    r"[A-Z0-9][^:\n]{2,60}(?:bridge|Bridge|controller|device)[^:\n]{0,20}: ",
    re.MULTILINE,
)
_FREE = re.compile(r"^[ \t]+total[ \t]+used[ \t]+free\b[^\n]*\n(?:[^\n]*\n)?Mem:", re.MULTILINE)
_MEMINFO = re.compile(r"^MemTotal:\s+\d+ kB", re.MULTILINE)
_DF = re.compile(r"^Filesystem\s[^\n]*Mounted on$", re.MULTILINE)
_DF_SHM = re.compile(r" /dev/shm$", re.MULTILINE)
_KERNEL_LINE = re.compile(
    r"(?:<\d+>|[a-z]+ *:[a-z]+ *: )?(?:\[ *\+?\d+\.\d{3,9}\] |\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] "
    r"|\d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]\d\d:\d\d )"
    r"|\d{1,3},\d+,\d+,|.{0,80}?\S.{0,80}? kernel: "
)
_ASSIGNMENT = re.compile(r"(?:export |declare -x )?[A-Za-z_]\w*=")
_USUAL_NAME = re.compile(
    r"(?:^|\0)(?:export |declare -x )?(?:PATH|HOME|PWD|USER|LD_|CUDA|NCCL_|SLURM_|NVIDIA_)", re.MULTILINE
)
FAILURE = re.compile(
    r"NVIDIA-SMI has failed|NVIDIA-SMI couldn't find|Failed to initialize NVML|No devices were found"
    r"|Unable to determine the device handle for"
)


def recognise(head: str) -> Kind | None:
    """The kind of dump that starts with `head`; None for anything else."""
    if _BUG_REPORT.search(head):
        return "bug-report"
    if _XML.search(head):
        return "smi-xml"
    if "NVSMI LOG" in head and ("Attached GPUs" in head or "Attached Units" not in head):
        return "smi-text"
    if _MATRIX.search(head):
        return "p2p" if "Status Ok" in head or _P2P_CELL.search(head) else "topology"
    if _NVLINK_GPU.search(head) and _NVLINK.search(head):
        return "nvlink"
    if _LSPCI.search(head):
        return "lspci"
    if _FREE.search(head):
        return "free"
    if _MEMINFO.search(head):
        return "meminfo"
    if _DF.search(head) and _DF_SHM.search(head):
        return "df"
    if "NVRM version:" in head:
        return "kernel-module"
    return _by_lines(head)


def _by_lines(head: str) -> Kind | None:
    """Kinds that are recognised by the form of most of their lines."""
    lines = [line for line in re.split(r"[\n\0]", head)[:200] if line.strip()]
    if not lines:
        return None
    kernel = sum(is_kernel_line(line) for line in lines)
    if kernel * 2 > len(lines):
        return "kernel-log"
    assignments = sum(_ASSIGNMENT.match(line) is not None for line in lines)
    if assignments * 2 > len(lines) and _USUAL_NAME.search(head):
        return "environment"
    return "smi-failure" if FAILURE.search(head) else None


def is_kernel_line(line: str) -> bool:
    if _KERNEL_LINE.match(line):
        return True
    rest = unwrapped(line.lstrip(" \t"))
    return _KERNEL_LINE.match(rest) is not None or (rest.startswith("{") and read_line(rest).origin == "kernel")
