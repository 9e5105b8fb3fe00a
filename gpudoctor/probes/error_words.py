"""What the words of an error of CUDA, NCCL or torch mean for the one who must act.

The words are those of cudaGetErrorString, NCCL's "Last error" and torch, which stay the same for
years; whatever is not known here stays an `error` in the library's own words. `crash` is for what
a sound GPU does not do to work that runs everywhere else.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["crash", "error", "out-of-memory", "refused"]


class Meaning(msgspec.Struct, frozen=True):
    """What an error is, and in plain words what happened."""

    kind: Kind
    plain: str


# The first that is found counts: what names the hardware stands before what any failure may bring about.
_WORDS: tuple[tuple[str, Kind, str], ...] = (
    ("ecc error", "crash", "the GPU met an error in its memory that ECC cannot correct"),
    ("nvlink error", "crash", "an NVLink of the GPU failed in the middle of the work"),
    ("or a hardware error", "crash", "the GPU contained an error of its hardware or of a peer's"),
    ("gpu is lost", "crash", "the GPU is lost"),
    ("fallen off the bus", "crash", "the GPU fell off the bus"),
    ("requires reset", "crash", "the GPU must be reset"),
    ("hardware stack error", "crash", "the GPU lost its call stack"),
    ("illegal instruction", "crash", "the GPU met an instruction that does not exist"),
    ("invalid program counter", "crash", "the GPU left its program"),
    ("misaligned address", "crash", "the GPU computed an address that cannot be"),
    ("illegal memory access", "crash", "the GPU reached for memory that is not its own"),
    ("unspecified launch failure", "crash", "the GPU stopped in the middle of the work"),
    ("system not yet initialized", "crash", "the NVSwitch fabric is not set up: does nvidia-fabricmanager run?"),
    ("busy or unavailable", "refused", "the GPU does not accept another process: exclusive mode, or prohibited"),
    ("device-side assert", "error", "a kernel of torch refused its input"),
    ("duplicate gpu detected", "error", "two ranks were given the same GPU"),
    ("launch timed out", "error", "the GPU drives a screen, and the time limit for that ended the work"),
    ("driver version is insufficient", "error", "the driver is too old for the CUDA of this torch"),
    ("nvidia driver on your system is too old", "error", "the driver is too old for the CUDA of this torch"),
    ("forward compatibility was attempted", "error", "the CUDA compatibility package does not work on this GPU"),
    ("unsupported display driver", "error", "kernel module and library of the driver do not fit"),
    ("no cuda-capable device", "error", "CUDA shows this process no GPU"),
    ("shared memory segment /dev/shm", "error", "NCCL got no room in /dev/shm"),
    ("defaultcpuallocator", "out-of-memory", "the host has no memory left"),
    ("cannot allocate memory", "out-of-memory", "the host has no memory left"),
    ("alloc_failed", "out-of-memory", "the GPU has no memory left"),  # CUBLAS_STATUS_, CUDNN_STATUS_
    ("out of memory", "out-of-memory", ""),
)


def meaning_of(text: str) -> Meaning | None:
    """What these words mean; None where they are not known."""
    whole = text.lower()
    return next((Meaning(kind, plain) for words, kind, plain in _WORDS if words in whole), None)


def telling_line(lines: tuple[str, ...]) -> tuple[str, Meaning] | None:
    """The first line of a process's last words that says why it ended, with what it means."""
    for line in lines:
        if "NCCL WARN" not in line and (meaning := meaning_of(line)) is not None:
            return line.strip(), meaning
    return None
