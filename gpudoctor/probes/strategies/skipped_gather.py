"""The fault skip-all-gather: once, a rank does not get what the others gave."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

_dist: Any = dist
_NAMES = ("all_gather_into_tensor", "all_gather_single")  # fully_shard calls one of them: the second in newer torch


@contextmanager
def one_gather_skipped() -> Iterator[None]:
    """In the block the first gather into one tensor leaves this rank with its own part, and zeros for the others'.

    It takes part all the same: a rank that stayed away would be a hang, which hang-rank plays.
    """
    skipped: list[bool] = []
    kept: list[torch.Tensor] = []  # what an operation under way still writes to
    originals = {name: getattr(dist, name) for name in _NAMES if hasattr(dist, name)}
    try:
        for name, original in originals.items():
            setattr(_dist, name, functools.partial(_skip_first, original, skipped, kept))
        yield
    finally:
        for name, original in originals.items():
            setattr(_dist, name, original)


def _skip_first(
    original: Callable[..., Any],
    skipped: list[bool],
    kept: list[torch.Tensor],
    output: torch.Tensor,
    given: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    if skipped:
        return original(output, given, group=group, async_op=async_op)
    skipped.append(True)
    own = given.clone()  # `given` may lie inside `output`
    kept += [own, torch.empty_like(output)]
    output.zero_()
    output.view(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)].copy_(own.view(-1))
    return original(kept[-1], own, group=group, async_op=async_op)
