"""What the error text of a rank means.

The texts are those of cudaGetErrorString, NCCL's "Last error" and torch, which stay the same for
years. An unknown text stays an `error` in the library's own words, and is never a pass.
`crash`: a healthy GPU does not do this to work that runs everywhere else. `refused`: the GPU accepts no new
process; whether it is configured so or broken follows from its compute mode and its users.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["crash", "error", "out-of-memory", "refused"]


class Meaning(msgspec.Struct, frozen=True):
    """The kind of an error, and in plain words what happened."""

    kind: Kind
    plain: str


# (text, source, kind, meaning). A number is that of cudaError_t in the CUDA Runtime API ("Data types used by CUDA
# Runtime"). The first match counts: texts that name the hardware come before those that any failure may cause.
_WORDS: tuple[tuple[str, str, Kind, str], ...] = (
    ("ecc error", "214", "crash", "the GPU met an error in its memory that ECC cannot correct"),
    ("nvlink error", "220", "crash", "an NVLink of the GPU failed in the middle of the work"),
    ("or a hardware error", "226", "crash", "the GPU contained an error of its hardware or of a peer's"),
    ("gpu is lost", "NVML 15", "crash", "the GPU is lost"),
    ("fallen off the bus", "NVML, Xid 79", "crash", "the GPU fell off the bus"),
    ("requires reset", "NVML 16", "crash", "the GPU must be reset"),
    ("hardware stack error", "714", "crash", "the GPU lost its call stack"),
    ("illegal instruction", "715", "crash", "the GPU met an instruction that does not exist"),
    ("invalid program counter", "718", "crash", "the GPU left its program"),
    ("misaligned address", "716", "crash", "the GPU computed an address that cannot be"),
    ("illegal memory access", "700", "crash", "the GPU reached for memory that is not its own"),
    ("unspecified launch failure", "719", "crash", "the GPU stopped in the middle of the work"),
    (
        *("system not yet initialized", "802", "crash"),
        "CUDA waits for the system: does nvidia-fabricmanager run, and, with confidential computing, is the GPU ready?",
    ),
    ("busy or unavailable", "46", "refused", "the GPU does not accept a process"),
    ("device-side assert", "710", "error", "a kernel of torch refused its input"),
    ("duplicate gpu detected", "NCCL", "error", "two ranks were given the same GPU"),
    ("launch timed out", "702", "error", "the GPU drives a screen, and the time limit for that ended the work"),
    ("no kernel image", "209", "error", "this torch has no code for the GPU"),
    ("driver version is insufficient", "35", "error", "the driver is too old for the CUDA of this torch"),
    ("nvidia driver on your system is too old", "torch", "error", "the driver is too old for the CUDA of this torch"),
    ("forward compatibility was attempted", "804", "error", "the CUDA compatibility package does not work on this GPU"),
    ("unsupported display driver", "803", "error", "kernel module and library of the driver do not fit"),
    ("no cuda-capable device", "100", "error", "CUDA shows this process no GPU"),
    ("no cuda gpus are available", "torch", "error", "CUDA shows this process no GPU"),
    ("invalid device ordinal", "101", "error", "CUDA shows this process fewer GPUs than it was given"),
    ("initialization error", "3", "error", "CUDA does not start in this process"),
    ("driver initialization failed", "torch", "error", "CUDA does not start in this process"),
    ("mps client", "805, 807, 808", "error", "the MPS server does not serve this process"),
    ("mps server", "806", "error", "the MPS server does not serve this process"),
    ("os call failed", "304", "error", "the system refused the driver a call: a container without /dev/nvidia-uvm?"),
    ("shared memory segment /dev/shm", "NCCL", "error", "NCCL got no room in /dev/shm"),
    ("defaultcpuallocator", "torch", "out-of-memory", "the host has no memory left"),
    ("cannot allocate memory", "errno 12", "out-of-memory", "the host has no memory left"),
    ("alloc_failed", "CUBLAS_STATUS_, CUDNN_STATUS_", "out-of-memory", "the GPU has no memory left"),
    ("out of memory", "2", "out-of-memory", ""),
)


def meaning_of(text: str) -> Meaning | None:
    """The meaning of an error text; None if it is unknown, which does not mean harmless."""
    whole = text.lower()
    return next((Meaning(kind, plain) for words, _, kind, plain in _WORDS if words in whole), None)


def telling_line(lines: tuple[str, ...]) -> tuple[str, Meaning] | None:
    """The first line of a process's output that explains why it ended, with its meaning."""
    for line in lines:
        if "NCCL WARN" not in line and (meaning := meaning_of(line)) is not None:
            return line.strip(), meaning
    return None
