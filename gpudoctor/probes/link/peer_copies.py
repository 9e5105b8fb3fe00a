"""Copies from this rank's GPU to each of the others: one way, both ways at once, and verified.

Each rank sees the GPUs of all ranks, its own first (rank_starter.py), and copies while the others wait. That
needs a context of every rank on every GPU, some hundred MiB each, which stay until the rank ends.
"""

from __future__ import annotations

from itertools import permutations
from statistics import median
from typing import Any, NamedTuple

import torch

from gpudoctor.facts.model.measured_hardware import PeerLink
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import (
    copies_ms,
    free_bytes,
    in_one_line,
    mark,
    numbered,
    out_of_memory,
    power_of_two,
)
from gpudoctor.text.units import MIB

_LARGEST = 256 * MIB
_LARGEST_BY_HOST = 64 * MIB  # without peer-to-peer each copy takes several ms
_WARM_UP, _MOST, _FEWEST = 2, 16, 3
_ALL_PAIRS_S = 12.0  # time budget for the copies of all pairs together
_SMALLEST = MIB

_cuda: Any = torch.cuda  # not annotated everywhere


class _Pair(NamedTuple):
    """Equal buffers on this rank's GPU and on another."""

    here: torch.Tensor
    there: torch.Tensor


def measure_peers(rank: Rank) -> tuple[tuple[PeerLink, ...], Missing | None]:
    """This rank's copies to every other GPU, and why some or all of them are missing."""
    if rank.world_size == 1:
        return (), Missing("one GPU: there is no other to copy to")
    rank.phase("open the other GPUs")
    why_not = _open_others(rank)
    if not rank.smallest(int(why_not is None)):
        return (), why_not or Missing("another rank could not open all GPUs")
    give_s = _ALL_PAIRS_S / (rank.world_size * (rank.world_size - 1) * 1.5)
    free = rank.smallest(_free_on_all(rank))
    if free // 8 < _SMALLEST:
        return (), Missing(f"no memory for copies: the fullest GPU has {free // MIB} MiB left", "denied")
    links: list[PeerLink] = []
    no_mapping: Missing | None = None
    for source, target in permutations(range(rank.world_size), 2):
        rank.phase(f"copies from rank {source}'s GPU to rank {target}'s")
        if source == rank.number:
            try:
                links.append(_link(rank, target, free, give_s))
            except RuntimeError as error:
                # without NVSwitch a GPU maps at most eight peers: a limit of CUDA, not a fault
                if "peer mapping resources" not in str(error):
                    raise
                no_mapping = Missing(f"CUDA maps no more peers on one GPU: {in_one_line(error)}", "unsupported")
        rank.barrier()
    return tuple(links), no_mapping


def device_of(rank_number: int, target: int) -> torch.device:
    """Another rank's GPU in this rank's torch numbering: its own is 0, the others follow in rank order.

    >>> [device_of(2, other).index for other in (0, 1, 3)]
    [1, 2, 3]
    """
    return torch.device("cuda", target + 1 if target < rank_number else target)


def _open_others(rank: Rank) -> Missing | None:
    """Create this rank's context on the other GPUs; why not, if a GPU refuses (exclusive mode), which is no fault."""
    seen = torch.cuda.device_count()
    if seen < rank.world_size:
        return Missing(f"this process may open {seen} of the {rank.world_size} GPUs only", "denied")
    for device in range(1, rank.world_size):
        try:
            torch.zeros(1, device=torch.device("cuda", device))
        except RuntimeError as error:
            text = in_one_line(error)
            if "busy or unavailable" in str(error).lower():
                return Missing(f"a GPU does not accept a second process (exclusive mode): {text}", "denied")
            if out_of_memory(error):
                return Missing(f"no memory for a second process on a GPU: {text}", "denied")
            raise
    return None


def _free_on_all(rank: Rank) -> int:
    others = (int(_cuda.mem_get_info(device)[0]) for device in range(1, rank.world_size))
    return min(free_bytes(rank), *others)


def _link(rank: Rank, target: int, free: int, give_s: float) -> PeerLink:
    other_gpu = device_of(rank.number, target)
    p2p = bool(_cuda.can_device_access_peer(0, other_gpu.index))
    pair = _pair(rank, other_gpu, power_of_two(_LARGEST if p2p else _LARGEST_BY_HOST, free // 8))
    pair.here.copy_(numbered(len(pair.here), rank.number, rank.device))
    pair.there.zero_()
    _wait(rank, other_gpu)
    gb_s, copies = _one_way(pair, give_s)
    _wait(rank, other_gpu)
    # the expected pattern is generated on the target GPU, so it has not crossed the link itself
    wrong = int((pair.there != numbered(len(pair.there), rank.number, other_gpu)).sum())
    first = rank.number < target
    both = _both_ways(rank, pair, other_gpu, copies) if first else Missing("measured from the other end")
    link = PeerLink(rank.number, target, pair.here.nbytes, gb_s, both, p2p, wrong)
    del pair
    torch.cuda.empty_cache()  # on both GPUs, for the next rank
    return link


def _pair(rank: Rank, other_gpu: torch.device, size: int) -> _Pair:
    while True:
        count = size // 4
        here: torch.Tensor | None = None  # releases the buffer of a failed attempt first
        try:
            here = torch.empty(count, dtype=torch.int32, device=rank.device)
            return _Pair(here, torch.empty(count, dtype=torch.int32, device=other_gpu))
        except torch.cuda.OutOfMemoryError:
            if size <= _SMALLEST:
                raise
            size //= 2


def _wait(rank: Rank, other_gpu: torch.device) -> None:
    torch.cuda.synchronize(rank.device)
    torch.cuda.synchronize(other_gpu)


def _one_way(pair: _Pair, give_s: float) -> tuple[float, int]:
    """GB/s (the median of the copies) and their number; torch copies on the source's current stream."""
    trial_ms = copies_ms(pair.there, pair.here, _WARM_UP)
    copies = max(_FEWEST, min(_MOST, int(give_s * 1e3 / max(trial_ms[-1], 1e-3))))
    return float(pair.here.nbytes / median(copies_ms(pair.there, pair.here, copies)) / 1e6), copies


def _both_ways(rank: Rank, pair: _Pair, other_gpu: torch.device, copies: int) -> float | Missing:
    """GB/s of both directions together, until the slower one is done.

    torch makes a copy wait for the current streams of both its devices, so each direction has its own pair of
    streams; otherwise the two would take turns.
    """
    try:
        back_from = torch.empty_like(pair.there)
        back_to = torch.empty_like(pair.here)
    except torch.cuda.OutOfMemoryError:
        return Missing("no memory for a second pair of buffers")
    ways: list[tuple[torch.Tensor, torch.Tensor, Any, Any, list[Any]]] = [
        (target, source, _cuda.Stream(rank.device), _cuda.Stream(other_gpu), [])
        for target, source in ((pair.there, pair.here), (back_to, back_from))
    ]
    _wait(rank, other_gpu)
    for number in range(copies + 1):  # the first copies are not timed
        for target, source, here, other, marks in ways:
            with _cuda.stream(here), _cuda.stream(other), torch.cuda.device(source.device):
                if number == 1:
                    marks.append(mark())
                target.copy_(source, non_blocking=True)
                if number:
                    marks.append(mark())
    _wait(rank, other_gpu)
    slower_ms = max(float(marks[0].elapsed_time(marks[-1])) for *_, marks in ways)
    return 2 * pair.here.nbytes * copies / slower_ms / 1e6
