"""What an error of torch means for the one who must act."""

from __future__ import annotations

import re

import torch

from gpudoctor.probes.messages import Trouble

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


def trouble(error: Exception, blocked: bool) -> Trouble:
    """Sort an error by its words; `blocked`: it came while the rank waited for others."""
    text, whole = in_one_line(error), str(error).lower()
    if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in whole:
        return Trouble("out-of-memory", text, blocked)
    if "busy or unavailable" in whole:
        return Trouble("refused", f"the GPU does not accept another process ({text})", blocked)
    if "ecc error" in whole:
        return Trouble("crash", text, blocked)
    return Trouble("error", text, blocked)


def in_one_line(error: BaseException) -> str:
    """The line of an error that says most: NCCL puts it last, after a place in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Last error:" in lines[:-1]:
        return f"NCCL: {lines[lines.index('Last error:') + 1]}"
    # gloo puts the place in its source first
    return re.sub(r"^\[(enforce fail at )?/\S+:\d+\] ", "", lines[0]) if lines else type(error).__name__
