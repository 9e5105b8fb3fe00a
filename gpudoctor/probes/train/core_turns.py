"""Measures the compute time of CPU ranks independently of the core each of them runs on.

Two cores of one machine are not equally fast: turbo clocks, the core's other hardware thread, other
virtual machines. A rank that happens to run on the slower one is not slow. So the ranks take turns:
in each cycle every rank computes once on every core, all at the same time, and the cycle's figure is
the geometric mean over the cores. This does for cores what probe.py's GPU swap does for GPUs.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from gpudoctor.probes.runner.merge import median_deviation
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.train.steps import Train

_STEPS = 8
_SETTLING = 2  # steps discarded after a move to another core, whose caches are cold
_BLOCKS = 24
_ROUNDS_MAX = 3
_BUDGET_S = 4.0
_PRECISION = 0.012  # one standard error, relative: small against the 10 % that are judged


class CoreTurns(msgspec.Struct, frozen=True):
    """This rank's time in each cycle, in ms; `rotated`: every rank ran on every core once per cycle."""

    cycles_ms: tuple[float, ...]
    rotated: bool


def take_turns(rank: Rank, train: Train) -> CoreTurns:
    """Measure cycles until they are precise enough, or the time is up."""
    cores = _common_cores(rank)
    layouts = max(1, len(cores))
    cycles: list[float] = []
    began = time.monotonic()
    with _own_affinity():
        for _ in range(_ROUNDS_MAX):
            for _ in range(max(6, _BLOCKS // layouts)):
                cycles.append(_cycle(rank, train, cores))
            late = rank.from_rank_zero(int(time.monotonic() - began > _BUDGET_S))
            if late or precise_enough(rank.gathered(cycles)):
                break
    return CoreTurns(tuple(cycles), rotated=bool(cores))


def precise_enough(cycles_ms: Sequence[Sequence[float]]) -> bool:
    """Whether each rank's ratio to the others' median is known to about 1 %; `cycles_ms` by rank."""
    for number, mine in enumerate(cycles_ms):
        others = [cycles for other, cycles in enumerate(cycles_ms) if other != number]
        if not others:
            return True
        ratios = [math.log(own / statistics.median(usual)) for own, *usual in zip(mine, *others, strict=True)]
        # MAD x 1.4826 estimates the standard deviation, and that of a median of n is 1.25 x as large / sqrt(n)
        if 1.4826 * median_deviation(ratios) * 1.25 / math.sqrt(len(ratios)) > _PRECISION:
            return False
    return True


def _cycle(rank: Rank, train: Train, cores: list[int]) -> float:
    logs = []
    for turn in range(max(1, len(cores))):
        if cores:
            os.sched_setaffinity(0, {cores[(rank.number + turn) % len(cores)]})
        times_ms = sorted(train.compute_ms(_STEPS)[_SETTLING:])
        # the lower quartile, since a disturbance only ever makes a step longer
        logs.append(math.log(max(times_ms[len(times_ms) // 4], 1e-6)))
    return math.exp(statistics.fmean(logs))


def _common_cores(rank: Rank) -> list[int]:
    """As many cores as ranks, or all there are; empty if the ranks may not all use the same cores."""
    try:
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable)  # allowed at all?
    except OSError:
        usable = []
    known = zlib.crc32(repr(usable).encode())
    if rank.smallest(known) != -rank.smallest(-known) or not usable:
        return []
    wanted = min(rank.world_size, len(usable))
    return [usable[place * len(usable) // wanted] for place in range(wanted)]


@contextmanager
def _own_affinity() -> Iterator[None]:
    """Restore this thread's CPU affinity afterwards."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
