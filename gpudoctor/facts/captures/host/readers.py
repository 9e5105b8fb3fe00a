"""The readers of texts about the host, in the order in which a line is offered to them."""

from __future__ import annotations

import re

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.host.lspci import parse_lspci
from gpudoctor.facts.captures.host.memory_text import kernel_module_version, parse_df, parse_free, parse_meminfo
from gpudoctor.facts.captures.reader import Block, Part, Reader
from gpudoctor.facts.model.node import Driver, Node, PciBus
from gpudoctor.facts.system.environment import parse_env_text

_LSPCI_BEGIN = re.compile(
    r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "
    r"[A-Z0-9][^:\n]{2,60}(?:bridge|Bridge|controller|device|accelerators)[^:\n]{0,20}: "
)
_LSPCI_MORE = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |[ \t]+\S")
_FREE = re.compile(r"[ \t]*total[ \t]+used[ \t]+free\b")
_FREE_MORE = re.compile(r"\s*(?:Mem|Swap|Low|High|Total):|\s*-/\+ buffers")
_MEMINFO = re.compile(r"Mem(?:Total|Free|Available):\s+\d+ kB")
_MEMINFO_MORE = re.compile(r"[A-Z]\w*(?:\(\w+\))?:\s+\d+(?: kB)?$")
_DF = re.compile(r"Filesystem\s.*Mounted on$")
_DF_MORE = re.compile(r"\S.*\s\d+%\s+/\S*|\S.*\s-\s+/\S*")
_KERNEL_MODULE = re.compile(r"NVRM version:")
_KERNEL_MODULE_MORE = re.compile(r"GCC version:")
_ENVIRONMENT = re.compile(
    r"(?:export |declare -x )?(?:PATH|HOME|PWD|USER|LD_\w+|CUDA\w*|NCCL_\w+|SLURM_\w+|NVIDIA_\w+|MASTER_\w+)="
)
_ENVIRONMENT_MORE = re.compile(r"(?:export |declare -x )?[A-Za-z_]\w*=")


def _lspci(block: Block) -> Part:
    tree = parse_lspci(block.text)
    return Part(Node(pci=PciBus(nvidia_devices=tree.nvidia_devices)), pci_tree=tree)


def _df(block: Block) -> Part:
    if not any(line.endswith(" /dev/shm") for line in block.lines):
        return Part()
    return Part(Node(host=parse_df(block.text)))


def _kernel_module(block: Block) -> Part:
    version = kernel_module_version(block.text)
    if version is None:
        raise SourceError("no version behind 'NVRM version:'")
    return Part(Node(driver=Driver(module_version=version, module_loaded=True)))


HOST_READERS: tuple[Reader, ...] = (
    Reader("lspci", _LSPCI_BEGIN.match, _LSPCI_MORE.match, _lspci),
    Reader("free", _FREE.match, _FREE_MORE.match, lambda block: Part(Node(host=parse_free(block.text)))),
    Reader("meminfo", _MEMINFO.match, _MEMINFO_MORE.match, lambda block: Part(Node(host=parse_meminfo(block.text)))),
    Reader("df", _DF.match, _DF_MORE.match, _df),
    Reader("kernel-module", _KERNEL_MODULE.match, _KERNEL_MODULE_MORE.match, _kernel_module),
    Reader(
        "environment",
        _ENVIRONMENT.match,
        _ENVIRONMENT_MORE.match,
        lambda block: Part(Node(environment=parse_env_text(block.text))),
    ),
)
