"""What an error of torch means and what to do about it."""

from __future__ import annotations

import re

import torch

from gpudoctor.probes.runner.error_texts import Kind, meaning_of
from gpudoctor.probes.runner.messages import RankFailure

# What torch raises; and what we raise where a torch is not as those that we know. All of it is told
# to the parent, since a rank that just dies would be taken for the work of a GPU.
FAILURES = (
    RuntimeError,
    ValueError,
    OSError,
    ImportError,
    AttributeError,
    TypeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    torch.cuda.DeferredCudaCallError,
)

_OF_OTHERS_MIB = 2000.0  # the driver itself keeps up to 1.5 GB
_OF_CUDA_MIB = 3000.0  # what context and NCCL hold beside torch's own, where torch does not say it
_OWN_USE = re.compile(r"this process has ([0-9.]+) (MiB|GiB) memory in use")
_MIB = {"MiB": 1.0, "GiB": 1024.0}


def trouble(error: Exception, blocked: bool) -> RankFailure:
    """Sort an error by its words; `blocked`: it came while the rank waited for others.

    A GPU's own trouble shows while its rank waits for it, which is often where it waits for the
    others too: only a plain error may be their doing.
    """
    text, whole = in_one_line(error), str(error)
    if isinstance(error, MemoryError):
        return RankFailure("out-of-memory", f"the host has no memory left ({text})", blocked=False)
    meaning = meaning_of(whole)
    if meaning is None:
        return RankFailure("error", text, blocked)
    kind: Kind = meaning.kind
    plain = meaning.plain
    if kind == "out-of-memory" and "the host" not in plain:
        others_mib = _held_by_others_mib(whole)
        if others_mib > _OF_OTHERS_MIB:
            kind, plain = "error", f"{others_mib / 1024:.1f} GiB of the GPU's memory are held by others"
    return RankFailure(
        kind, f"{plain} ({text})" if plain else text, blocked and kind == "error" and meaning.kind == kind
    )


def in_one_line(error: BaseException) -> str:
    """The line of an error that says most: NCCL puts it last, after a place in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Last error:" in lines[:-1]:
        return f"NCCL: {lines[lines.index('Last error:') + 1]}"
    # gloo and c10 put the place in their source first
    line = re.sub(r"^\[(enforce fail at )?\S+:\d+\] ", "", lines[0])
    # torch's own number of the GPU is not the one that people know; what follows is about its allocator, or guesses
    line = re.sub(r"GPU \d+ has a total", "It has a total", line)
    return re.split(r" Including non-PyTorch| Of the allocated|\.? This is typically caused by ", line)[0]


def _held_by_others_mib(text: str) -> float:
    """What others hold of this rank's GPU, in MiB; 0 where that is unknown."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0.0
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:
        return 0.0
    own_use = _OWN_USE.search(text)
    own_mib = float(own_use[1]) * _MIB[own_use[2]] if own_use else torch.cuda.memory_reserved() / 2**20 + _OF_CUDA_MIB
    return (total - free) / 2**20 - own_mib
