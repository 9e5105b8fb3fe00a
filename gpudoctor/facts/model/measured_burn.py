"""Results of a burn, which repeats the load for minutes: figures over time and counter deltas, no verdicts."""

from __future__ import annotations

from gpudoctor.facts.model.gpu import CallError, Fact, Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent
from gpudoctor.facts.model.telemetry import Spread

NOT_READ_AGAIN = Missing("not read again after the load", "failed")


def counters_of(gpu: Gpu) -> dict[str, int | Missing]:
    """The counters that a load can increase, by the names of `GpuCounters.growth`."""
    return {
        "pcie_replays": gpu.pcie.replays,
        "ecc_corrected": gpu.ecc.corrected_volatile,
        "ecc_uncorrected": gpu.ecc.uncorrected_volatile,
    }


class Series(Fact, frozen=True):
    """One figure of one rank over the rounds; `rank` is None for a figure of all ranks together.

    `early` is the first half minute and `late` the last minute, or the first and the last value
    if the burn was shorter than both together. `unit` is ms (less is better), GB/s or TFLOP/s.
    """

    metric: str
    unit: str
    rank: int | None
    values: int
    early: Spread
    late: Spread


class WrongResult(Fact, frozen=True):
    """A result that was not exactly right: the round (counted from 0), the time, and what was wrong."""

    round: int
    at_s: float
    text: str


class GpuCounters(Fact, frozen=True):
    """One GPU's counters, read before and after the load.

    `growth` by name: pcie_replays, ecc_corrected, ecc_uncorrected; `unread`: why one of them is
    missing. `errors`: the calls after the load that failed because the GPU is lost or needs a reset.
    """

    index: int
    uuid: str | None
    bus_id: str
    growth: dict[str, int] = {}
    unread: dict[str, Missing] = {}
    errors: tuple[CallError, ...] = ()


class Burn(Fact, frozen=True):
    """All rounds of one burn.

    `duration_s` is the time from the rendezvous of the ranks to the end of the last of `rounds` complete rounds;
    `asked_s` is the requested duration. `wrong` holds the first wrong results,
    `wrong_count` is how many there were. `counted_s` is the time between the two
    readings of `counters` and of the kernel log, whose new lines are `kernel_events`.
    """

    asked_s: float
    duration_s: float
    rounds: int
    series: tuple[Series, ...] = ()
    wrong: tuple[WrongResult, ...] = ()
    wrong_count: int = 0
    counted_s: float | Missing = NOT_READ_AGAIN
    counters: tuple[GpuCounters, ...] | Missing = NOT_READ_AGAIN
    kernel_events: tuple[KernelEvent, ...] | Missing = NOT_READ_AGAIN
