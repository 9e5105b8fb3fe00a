"""Writes patterns to most of a device's memory and reads them back, to check that every cell keeps its value."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import torch

from gpudoctor.probes.runner.device import free_bytes
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.units import MIB

_SHARE_OF_FREE = 0.85
_SHARE_IF_HOSTS = 0.5  # an integrated GPU (GB10): what this takes, the host's programs and page cache lack
_TIME_BOX_S = 6.0
_CPU_BYTES, _CPU_CHUNK = 64 * MIB, 16 * MIB
_LARGEST_CHUNK = 512 * MIB

# Alternating bits and their inverse, so that each cell holds both values next to neighbours of the other value
_FIVES = 0x5555_5555_5555_5555
_WORDS = (_FIVES, ~_FIVES)


class Pattern(msgspec.Struct, frozen=True):
    """Bytes tested, bytes that came back changed (counted in each pass), and number of patterns written."""

    covered_bytes: int
    wrong_bytes: int
    passes: int


def check_memory(rank: Rank) -> Pattern:
    """Write each pattern to all allocated memory, then compare: 0x55..., 0xAA..., and each word's own number.

    After the time box no further pattern begins; the first always runs.
    """
    chunks = _chunks(rank)
    end = time.monotonic() + _TIME_BOX_S
    wrong = passes = 0
    for write in (_constant(_WORDS[0]), _constant(_WORDS[1]), _own_number):
        for number, chunk in enumerate(chunks):
            write(chunk, number)
        rank.synchronize()
        wrong += _wrong_bytes(chunks, write)
        passes += 1
        if time.monotonic() > end:
            break
    return Pattern(sum(chunk.nbytes for chunk in chunks), wrong, passes)


def _chunks(rank: Rank) -> list[torch.Tensor]:
    """Allocate most of the free memory, less what comparing a chunk needs; less if another process allocates it."""
    if not rank.on_gpu:
        count, size = _CPU_BYTES // _CPU_CHUNK, _CPU_CHUNK
    else:
        free = free_bytes(rank)
        size = max(MIB, min(_LARGEST_CHUNK, free // 32 // MIB * MIB))
        share = _SHARE_IF_HOSTS if torch.cuda.get_device_properties(0).is_integrated else _SHARE_OF_FREE
        count = max(1, int(free * share) // size)
    chunks: list[torch.Tensor] = []
    for _ in range(count):
        try:
            chunks.append(torch.empty(size // 8, dtype=torch.int64, device=rank.device))
        except torch.cuda.OutOfMemoryError:
            if not chunks:
                raise
            break
    return chunks


_Write = Callable[[torch.Tensor, int], object]


def _constant(word: int) -> _Write:
    return lambda chunk, _number: chunk.fill_(word)


def _own_number(chunk: torch.Tensor, number: int) -> None:
    """Give every word of all chunks a different value, so that a write to a wrong address is visible."""
    first = number * len(chunk)
    torch.arange(first, first + len(chunk), out=chunk)


def _wrong_bytes(chunks: list[torch.Tensor], write: _Write) -> int:
    wrong = 0
    expected = torch.empty_like(chunks[0])
    for number, chunk in enumerate(chunks):
        write(expected, number)
        if not torch.equal(chunk, expected):
            wrong += int((chunk.view(torch.uint8) != expected.view(torch.uint8)).sum())
    return wrong
