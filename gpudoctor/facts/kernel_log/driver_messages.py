"""The NVIDIA driver's messages other than Xids: GPUs that fail to start, mismatched modules. Pure functions."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from gpudoctor.facts.model.driver import DRIVER_VERSION
from gpudoctor.facts.model.kernel_log import ApiMismatch, KernelEventKind

DriverMessageName = Literal[
    "off-bus",
    "wants-open-module",
    "wants-closed-module",
    "unsupported",
    "init-failed",
    "gsp-boot",
    "bar-invalid",
    "probe-failed",
    "none-initialized",
    "reset-required",
    "gsp-timeout",
    "nvlink",
]


class DriverMessage(msgspec.Struct, frozen=True):
    """One row of the table: a message that contains `pattern` is of this `kind`; `source` prints it."""

    name: DriverMessageName
    kind: KernelEventKind
    pattern: str
    source: str


# The first matching row counts
DRIVER_MESSAGES: tuple[DriverMessage, ...] = (
    DriverMessage(
        "off-bus", "off-bus", "fallen off the bus|GPU lost from the bus|NV_ERR_GPU_IS_LOST", "nv.c, osinit.c, nv-pci.c"
    ),
    DriverMessage("wants-open-module", "rm", "requires use of the NVIDIA open", "nv.c, nv-pci.c"),
    DriverMessage("wants-closed-module", "rm", "is not supported by open", "nv-pci.c of the open kernel modules"),
    DriverMessage(
        "unsupported",
        "rm",
        "installed in this system is not supported by|is not supported by the NVIDIA"
        "|supported through the NVIDIA .{1,40} Legacy drivers",
        "nv-pci.c",
    ),
    DriverMessage("init-failed", "rm", r"RmInitAdapter failed|rm_init_adapter failed", "osinit.c, nv.c"),
    DriverMessage(
        "gsp-boot",
        "gsp",
        r"unexpected WPR2 already up|GSP firmware RM|cannot bootstrap riscv/gsp"
        r"|[Ff]ailed to (?:boot|load|initialize|start) .{0,20}(?:GSP|FSP)"
        r"|(?:GSP|FSP)\b.{0,60}(?:boot|bootstrap).{0,20}fail|_kgspBootGspRm|kgspInitRm_\w{1,20}: .{0,40}(?:cannot|fail)"
        r"|kfsp\w{1,60}: .{0,60}(?:[Tt]imed? ?out|[Ee]rror|fail)",
        "kernel_gsp.c, kernel_gsp_tu102.c, kern_fsp.c",
    ),
    DriverMessage(
        "bar-invalid",
        "rm",
        r"This PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M @",
        "nv-pci.c",
    ),
    DriverMessage(
        "probe-failed",
        "rm",
        r"probe routine failed for|probe of \S{1,20} failed with error|probe with driver nvidia failed with error",
        "nv.c, drivers/base/dd.c",
    ),
    DriverMessage(
        "none-initialized",
        "rm",
        r"None of the NVIDIA (?:devices|graphics adapters) were initialized|No NVIDIA (?:devices|graphics adapters?) "
        r"(?:probed|found)",
        "nv.c",
    ),
    DriverMessage(
        "gsp-timeout",
        "gsp",
        r"(?:GSP|eartbeat).{0,400}(?:[Tt][Ii][Mm][Ee][Dd]? ?[Oo]ut|[Hh]eartbeat|likely needs to be reset)"
        r"|(?:[Tt][Ii][Mm][Ee][Dd]? ?[Oo]ut|likely needs to be reset).{0,400}GSP",
        "kernel_gsp.c, rpc.c",
    ),
    DriverMessage("reset-required", "rm", r"NV_ERR_RESET_REQUIRED|needs? (?:to be|a) reset", "osapi.c, kernel_gsp.c"),
    DriverMessage(
        "nvlink", "nvlink", r"(?i:nvlink).{0,400}\b[Ff]ail(?:ed|ure)?\b|\b[Ff]ail.{0,400}(?i:nvlink)", "knvlink"
    ),
)

API_MISMATCH = "NVRM: API mismatch: "
_MISMATCH = re.compile(
    rf"has the version ({DRIVER_VERSION}),? but this kernel module has the version ({DRIVER_VERSION})"
)
_MISMATCH_LINES = 4
_LINE_BEGIN = re.compile(r"(?:\\x0a|\n)? *NVRM: +")


def driver_message(words: str) -> DriverMessage | None:
    """The row for a message of the driver that is not an Xid; None for messages that healthy machines log too."""
    return next((row for row in DRIVER_MESSAGES if re.search(row.pattern, words)), None)


class MismatchLines:
    """Assembles the driver's multi-line message about a library of another version."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.found: ApiMismatch | None = None

    def add(self, message: str) -> None:
        """Add the log's next message."""
        if message.startswith(API_MISMATCH):
            self._lines = [message]
        elif self._lines and message.startswith("NVRM: ") and len(self._lines) < _MISMATCH_LINES:
            self._lines.append(message)
        else:
            self._lines = []
            return
        whole = " ".join(_LINE_BEGIN.sub(" ", " " + line).strip() for line in self._lines)
        if versions := _MISMATCH.search(" ".join(whole.split())):
            self.found = ApiMismatch(versions[1], versions[2])
            self._lines = []
