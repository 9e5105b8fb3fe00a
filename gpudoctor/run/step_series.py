"""Steps of one rank, aligned by their number with those of all others, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

import msgspec

from gpudoctor.run.observer.layout import BACKWARD, BETWEEN, DATA, FORWARD, HOST, OPTIMIZER, PHASES, WAIT
from gpudoctor.text.grouped import grouped

MOST_BLOCKS = 4096
COMPUTE = (FORWARD, BACKWARD, OPTIMIZER, BETWEEN)
OWN = (DATA, *COMPUTE, HOST)
_WARM_RATIO = 1.5
_WARM_SHARE = 0.2
_LEAST_WARM = 3
_NUMBERS = len(PHASES)


class TimedStep(msgspec.Struct, frozen=True):
    """One step, or the mean of several. In ms, for each phase: wall time, and of the training thread its CPU time, and
    the time in which it was ready to run and had no CPU.

    `rows` and `elements` of the model's first input; `memory_mib` of the rank; `end_ns` on the node's monotonic clock.
    """

    number: int
    wall_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    queued_ms: tuple[float, ...]
    rows: float = 0.0
    elements: float = 0.0
    memory_mib: float = 0.0
    end_ns: float = 0.0

    @property
    def step_ms(self) -> float:
        return sum(self.wall_ms)

    @property
    def own_ms(self) -> float:
        """The part of the step in which this rank did not wait for others."""
        return self.step_ms - self.wall_ms[WAIT]

    @property
    def data_ms(self) -> float:
        return self.wall_ms[DATA]

    @property
    def host_ms(self) -> float:
        return self.wall_ms[HOST]

    @property
    def compute_ms(self) -> float:
        return sum(self.wall_ms[phase] for phase in COMPUTE)

    @property
    def compute_cpu_ms(self) -> float:
        return sum(self.cpu_ms[phase] for phase in COMPUTE)

    @property
    def own_queued_ms(self) -> float:
        """How long it lacked a CPU while it did not wait for others."""
        return sum(self.queued_ms) - self.queued_ms[WAIT]

    def on_stream(self) -> TimedStep:
        """The step of a rank on a GPU: its times are those of the stream, and no part of them lacked a CPU."""
        return msgspec.structs.replace(self, queued_ms=(0.0,) * _NUMBERS)

    def undisturbed_ms(self, *phases: int) -> float:
        """Time in these phases without that in which it lacked a CPU."""
        return sum(self.wall_ms[phase] - self.queued_ms[phase] for phase in phases)


def mean_step(steps: Sequence[TimedStep]) -> TimedStep:
    """The mean of steps, at least one."""
    return TimedStep(
        steps[0].number,
        tuple(fmean(step.wall_ms[phase] for step in steps) for phase in range(_NUMBERS)),
        tuple(fmean(step.cpu_ms[phase] for step in steps) for phase in range(_NUMBERS)),
        tuple(fmean(step.queued_ms[phase] for step in steps) for phase in range(_NUMBERS)),
        fmean(step.rows for step in steps),
        fmean(step.elements for step in steps),
        fmean(step.memory_mib for step in steps),
        steps[-1].end_ns,
    )


class StepSeries:
    """The steps by number; once there are many, neighbours are merged, for all numbers alike."""

    def __init__(self) -> None:
        self.size = 1
        self._blocks: dict[int, list[TimedStep]] = {}

    def add(self, step: TimedStep) -> None:
        self._blocks.setdefault(step.number // self.size, []).append(step)
        if len(self._blocks) > MOST_BLOCKS:
            self.coarsen()

    def coarsen(self) -> None:
        """Merge each two neighbouring blocks."""
        self.size *= 2
        self._blocks = grouped((number // 2, mean_step(steps)) for number, steps in sorted(self._blocks.items()))

    def steps(self) -> dict[int, TimedStep]:
        """Block number -> mean step of the block."""
        return {number: mean_step(steps) for number, steps in sorted(self._blocks.items())}


def aligned(series: Iterable[StepSeries]) -> list[list[TimedStep]]:
    """The steps that all ranks have, in order: one list a rank, all equally long."""
    series = tuple(series)
    size = max((each.size for each in series), default=1)
    for each in series:
        while each.size < size:
            each.coarsen()
    blocks = [each.steps() for each in series]
    common = sorted(set.intersection(*(set(each) for each in blocks))) if blocks else []
    return [[each[number] for number in common] for each in blocks]


def without_stalls(ranks: Sequence[list[TimedStep]], stood_ns: Sequence[tuple[float, float]]) -> list[list[TimedStep]]:
    """Of aligned steps those in which no rank stood still: a stall is told as one, and is no part of a step's time."""

    def stood(step: TimedStep) -> bool:
        began_ns = step.end_ns - step.step_ms * 1e6
        return any(step.end_ns > begin and began_ns < end for begin, end in stood_ns)

    undisturbed = [n for n, steps in enumerate(zip(*ranks, strict=True)) if not any(map(stood, steps))]
    return [[steps[n] for n in undisturbed] for steps in ranks]


def warm_up(steps: Sequence[TimedStep]) -> int:
    """How many first steps are warm-up: 3, and those of 1.5 x the later half's median; at most 20 %."""
    if len(steps) < 2 * _LEAST_WARM:
        return min(1, len(steps))
    usual_ms = median(step.step_ms for step in steps[len(steps) // 2 :])
    count = next(
        (n for n, step in enumerate(steps) if n >= _LEAST_WARM and step.step_ms < _WARM_RATIO * usual_ms), _LEAST_WARM
    )
    return max(_LEAST_WARM, min(count, int(len(steps) * _WARM_SHARE)))


def turns(steps: Sequence[TimedStep], count: int) -> list[TimedStep]:
    """The steps as `count` means of equally many consecutive steps; the first steps that are too many are left out."""
    size = len(steps) // count
    begin = len(steps) - size * count
    return [mean_step(steps[at : at + size]) for at in range(begin, len(steps), size)]
