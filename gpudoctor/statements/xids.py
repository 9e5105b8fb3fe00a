"""The catalogue of Xid and SXid codes: the meaning of each, and what to do.

Source of the codes and of the action behind each bucket: NVIDIA, "Analyzing Xid Errors with the Xid Catalog"
(docs.nvidia.com/deploy/xid-errors, driver 590 edition), and for SXids the Fabric Manager user guide. Codes that the
catalogue does not cover for Volta and older are in the safer bucket.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Bucket = Literal["hardware", "reset", "watch", "application", "info", "unknown"]

# Worst first. hardware: needs manual work on the node; reset: the GPU is unfit until it is reset;
# watch: works, but a person should look; application: a program's fault; info: nothing to do.
BUCKETS: tuple[Bucket, ...] = ("hardware", "reset", "unknown", "watch", "application", "info")

ADVICE: dict[Bucket, str] = {
    "hardware": "Drain the node and power-cycle it; if the code returns, reseat the board and open a hardware case.",
    "reset": "Drain the node and reset the GPU (all GPUs together on an NVSwitch node), or reboot.",
    "unknown": "Look the code up in NVIDIA's Xid catalogue, and watch whether it returns.",
    "watch": "Watch whether it returns under load; if it does, open a hardware case.",
    "application": "Tell the job's owner: a program did this.",
    "info": "Nothing to do.",
}
# what Xid 154 may ask for (NVML field 230): its name in the line, and what to do
RECOVERY: dict[int, tuple[str, str]] = {
    0: ("None", "Nothing: what was asked for before is done."),
    1: ("GPU Reset Required", "Drain the node and reset the GPU (all GPUs together on an NVSwitch node), or reboot."),
    2: ("Node Reboot Required", "Drain the node and reboot it."),
    3: ("Drain P2P", "Let the programs that use its NVLinks end; it needs no reset yet."),
    4: ("Drain and Reset", "Let the programs on the GPU end, then reset it."),
}
_ILLEGAL_ACCESS = "Tell the job's owner: a program did this, most often an illegal memory access."
OWN_ADVICE: dict[int, str] = {
    **dict.fromkeys((8, 13, 31, 43), _ILLEGAL_ACCESS),
    **dict.fromkeys((37, 38, 66, 67), "Tell the job's owner; if it comes with any program, update the driver."),
    45: "Look at the Xid before it: the driver clears up after another error, or after a program that was killed.",
    54: "Power the node off and check the auxiliary power cables of this board.",
    62: "Drain the node and reset the GPU; update driver and firmware if it returns.",
    63: "Nothing yet: the new row is used after the next reset (see gpu.memory-repair).",
    64: "Drain the node and open a hardware case: the memory could not be repaired.",
    74: "Look at nvlink.links and nvlink.errors; reset all GPUs of the fabric together; check the bridge or baseboard.",
    78: "Compare the vGPU versions of the host's driver and the guest's; the host's log says which of them refused.",
    79: "Drain the node and power-cycle it (off for 30 s); if it returns: reseat it, then hardware case.",
    92: "See gpu.ecc; a GPU that corrects at a high rate is slower and wears out.",
    93: "The InfoROM wears out from being written: plan to replace the board; nothing to do at once.",
    94: "Restart the job that died; if gpu.memory-repair says that a row waits, reset the GPU when it is idle.",
    119: "Drain the node and reset the GPU; if it returns, update the driver, or open a hardware case.",
    120: "Drain the node and reset the GPU; if it returns, update the driver.",
    121: "Watch the C2C link; reset both GPU and host if it returns.",
    151: "Restart the programs on the GPU; if it returns, reset the GPU.",
    154: "Do what the GPU asks for: nvidia-smi -q shows it as GPU Recovery Action.",
    **dict.fromkeys((164, 165), "Plan to replace the board; nothing to do at once."),
}
# the part that a code concerns, for `explains`: a link that is down explains Xid 74, but never Xid 79
LINK_CODES = (74, 136, *range(144, 151), 155)
MEMORY_CODES = (48, 63, 64, 92, 94, 95, 140, 168, 171, 172)
BUS_CODES = (79, 167)
# the GPU or its processor (GSP) stopped; None: a line without a code, of a GPU that fell off the bus or did not start
STOPPED_CODES = (46, 61, 62, *BUS_CODES, 109, 119, 120, 143, 158, 169, None)
# NVSwitch temperature events: a warning even if the line calls them fatal or non-fatal
SXID_THERMAL = frozenset({10004, 10005})

# Fatal to the links or the whole switch; used only if the line itself does not contain "Fatal" or "Non-fatal"
SXID_FATAL = frozenset(
    {10003, 10006, 10007, 10008, 11001, 11009, 11013, *range(11017, 11021), *range(11028, 11031), 12001, 12002}
    | {12020, 12022, *range(12024, 12028), *range(12030, 12033), *range(12035, 12048, 2), 14001, 14002, 14008}
    | {14010, 14017, 14018, 15001, 15009, 15010, 15012, 15013, 15015, 15017, 15019, 18020, 19004, *range(19013, 19016)}
    | {19021, 19036, 19037, *range(19046, 19049), 19053, 19054, 19056, 19058, 19060, 19061, 19063, 19064, 19066, 19067}
    | {12048, 19069, 19070, 19080, 19083, 19084, *range(20004, 20008), 20034, *range(20036, 20039), 22003, 22011, 22012}
    | set(range(23001, 23018))
)
_ROWS: tuple[tuple[Bucket, str, tuple[int, ...]], ...] = (
    ("hardware", "GPU has fallen off the bus", (79,)),
    ("hardware", "auxiliary power is not connected", (54,)),
    ("hardware", "a memory row could not be remapped", (64,)),
    ("hardware", "GPU memory interface failed to train", (57,)),
    ("hardware", "GPU memory error", (58,)),
    ("hardware", "PCIe link timed out for good", (167,)),
    ("hardware", "part of the GPU memory had to be given up", (168,)),
    ("reset", "GPU stopped processing", (46,)),
    ("reset", "double-bit ECC error", (48,)),
    ("reset", "internal micro-controller halted", (61, 62, 169)),
    ("reset", "NVLink error", (74,)),
    ("reset", "uncontained memory error", (95,)),
    ("reset", "context switch timed out", (109,)),
    ("reset", "security fault", (110,)),
    ("reset", "the GPU's own processor (GSP) did not answer", (119,)),
    ("reset", "the GPU's own processor (GSP) failed", (120,)),
    ("reset", "NVLink failed to train", (136,)),
    ("reset", "unrecoverable ECC error", (140,)),
    ("reset", "GPU failed to initialise", (143,)),
    ("reset", "NVLink error found by software", (155,)),
    ("reset", "a GPU resource was retired", (156,)),
    ("reset", "GPU timed out for good", (158,)),
    ("reset", "uncorrectable DRAM error", (171,)),
    ("reset", "uncorrectable SRAM error", (172,)),
    ("watch", "high rate of corrected memory errors", (92,)),
    ("watch", "InfoROM wear limit exceeded", (93,)),
    ("watch", "C2C link error", (121,)),
    ("watch", "NVLink 5 error", tuple(range(144, 151))),
    ("watch", "a GPU resource could not be retired", (157,)),
    ("watch", "a channel could not be retired", (161,)),
    ("watch", "power smoothing circuitry is wearing out", (164, 165)),
    ("watch", "NVLink encryption error", (166, 170)),
    ("watch", "key rotation error", (151,)),
    ("watch", "vGPU failed to start", (78,)),
    ("application", "GPU stopped processing a channel", (8, 43)),
    ("application", "invalid or corrupted commands from a program", (11, 25, 32, 80)),
    ("application", "exception in a kernel", (13,)),
    # gpu.ecc and gpu.memory-repair judge the memory; the Xid itself only requires a restart of the program
    ("application", "contained memory error: the program was ended", (94,)),
    ("application", "GPU memory page fault", (31,)),
    ("application", "driver firmware call refused", (37, 38, 66, 67)),
    ("application", "copy engine exception", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    ("application", "fault during a context switch", (44,)),
    ("application", "a program's channels were removed", (45,)),
    ("application", "video engine exception", (60, 68, 83, 84, 88, 89, 96, 97, 98, 142)),
    ("application", "class error in a kernel's commands", (69,)),
    ("application", "JPEG engine exception", (82, *range(99, 106))),
    ("application", "optical flow engine exception", (86, 139)),
    ("application", "access to a peer's memory over NVLink refused", (108, 137)),
    ("application", "CUDA fast path error", (141,)),
    ("application", "deep-learning accelerator error", (152, 153)),
    ("application", "coherent access error", (159,)),
    ("info", "a memory row or page was marked for repair", (63,)),
    ("info", "management test message", (106, 107)),
    ("info", "a channel was retired", (160,)),
    ("info", "power smoothing circuitry switched", (162, 163)),
    ("info", "the recovery the GPU asks for changed", (154,)),
)


class Xid(msgspec.Struct, frozen=True):
    """One code with its bucket and its meaning as report text."""

    code: int
    bucket: Bucket
    words: str

    @property
    def advice(self) -> str:
        return OWN_ADVICE.get(self.code) or ADVICE[self.bucket]


XIDS = {code: Xid(code, bucket, words) for bucket, words, codes in _ROWS for code in codes}


def xid(code: int) -> Xid:
    """The entry of a code; bucket `unknown` for one that is missing from the catalogue or unused there."""
    return XIDS.get(code) or Xid(code, "unknown", "not in the catalogue")


def sxid_fatal(code: int | None, reported: bool | None) -> bool | None:
    """Whether an NVSwitch error is fatal, as the line reports or else by the list; None if neither decides."""
    if reported is not None:
        return reported
    return True if code in SXID_FATAL else None
