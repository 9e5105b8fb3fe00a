"""What repeating the load for minutes showed: figures over time and counters that grew, no verdicts."""

from gpudoctor.facts.model.gpu import CallError, Fact, Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent
from gpudoctor.facts.model.telemetry import Spread

NOT_READ_AGAIN = Missing("not read again after the load", "failed")


def counters_of(gpu: Gpu) -> dict[str, int | Missing]:
    """The counters that a load may make grow, by the names of `GpuCounters.growth`."""
    return {
        "pcie_replays": gpu.pcie.replays,
        "ecc_corrected": gpu.ecc.corrected_volatile,
        "ecc_uncorrected": gpu.ecc.uncorrected_volatile,
    }


class Series(Fact, frozen=True):
    """One figure of one rank over the rounds; `rank` is None for a figure of all ranks together.

    `early` is the first half minute and `late` the last minute, or the first and the last value
    where the burn was shorter than both together. `unit` is ms (less is better), GB/s or TFLOP/s.
    """

    metric: str
    unit: str
    rank: int | None
    values: int
    early: Spread
    late: Spread


class WrongResult(Fact, frozen=True):
    """A result that was not exactly right: in which round (counted from 0), when, and what."""

    round: int
    at_s: float
    text: str


class GpuCounters(Fact, frozen=True):
    """One GPU's counters, read before and after the load.

    `growth` by name: pcie_replays, ecc_corrected, ecc_uncorrected; `unread`: why another one is
    not there. `errors`: the calls after the load that a GPU which is lost or wants a reset failed.
    """

    index: int
    uuid: str | None
    bus_id: str
    growth: dict[str, int] = {}
    unread: dict[str, Missing] = {}
    errors: tuple[CallError, ...] = ()


class Burn(Fact, frozen=True):
    """All rounds of one burn.

    `duration_s` passed from the ranks' meeting to the end of the last complete round, of which
    there were `rounds`; `asked_s` is what was asked for. `wrong` holds the first of the results
    that were wrong, and `wrong_count` how many there were. `counted_s` lies between the two
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
