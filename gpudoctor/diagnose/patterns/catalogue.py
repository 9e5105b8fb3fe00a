"""All tables of patterns, in the order in which they are tried."""

from __future__ import annotations

import re

from gpudoctor.diagnose.patterns.cuda import CUDA
from gpudoctor.diagnose.patterns.harmless import is_harmless
from gpudoctor.diagnose.patterns.kernel import KERNEL
from gpudoctor.diagnose.patterns.model import LinePattern
from gpudoctor.diagnose.patterns.nccl import NCCL, NCCL_WRAPPERS
from gpudoctor.diagnose.patterns.scheduler import ENDINGS
from gpudoctor.diagnose.patterns.torch import TORCH

ALL: tuple[LinePattern, ...] = (*KERNEL, *ENDINGS, *NCCL, *CUDA, *TORCH, *NCCL_WRAPPERS)


def meaning_of(text: str) -> tuple[LinePattern, re.Match[str]] | None:
    """The first row that matches, with its match; None if there is none or the line is known to be harmless.

    >>> meaning_of("RuntimeError: CUDA error: an illegal memory access was encountered")[0].what
    'cuda_illegal_access'
    """
    lowered = text.lower()
    for row in ALL:
        if row.needle in lowered and (found := row.regex.search(text)):
            return None if is_harmless(text) else (row, found)
    return None
