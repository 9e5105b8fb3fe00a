"""How much memory a probe may take on this rank's device, and buffers that are smaller where there is little."""

from __future__ import annotations

import gc
from typing import Any

import torch

from gpudoctor.probes.runner.rank import Rank

_cuda: Any = torch.cuda  # not annotated everywhere


def free_bytes(rank: Rank) -> int:
    """What is free on this rank's GPU, what torch keeps in store included."""
    give_back(rank)
    return int(torch.cuda.mem_get_info()[0])


def give_back(rank: Rank) -> None:
    """Return to the GPU what torch keeps for later: the next probe, or another rank, may need it."""
    gc.collect()
    if rank.on_gpu:
        torch.cuda.empty_cache()


def out_of_memory(error: RuntimeError) -> bool:
    """Whether there was no room: torch says so by a class of its own for a GPU, by words for pinned memory."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def power_of_two(limit: int, share_of: int) -> int:
    """The largest power of two within `share_of` and `limit`; at least 1.

    >>> power_of_two(256, 100), power_of_two(64, 1000)
    (64, 64)
    """
    return 1 << (max(1, min(limit, share_of)).bit_length() - 1)


def numbered(count: int, seed: int, device: torch.device) -> torch.Tensor:
    """A pattern of int32 that any device makes alike: each element tells where it belongs, and from whom it is."""
    # odd, so that no two positions within 2^32 are equal; it wraps around as two's complement does
    return torch.arange(count, dtype=torch.int32, device=device) * 0x61C88647 + seed
