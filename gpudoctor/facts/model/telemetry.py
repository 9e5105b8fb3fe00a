"""Readings over time: driver readings of each GPU under load, and the figures of a burn. No verdicts."""

from gpudoctor.facts.model.driver import KernelEvent
from gpudoctor.facts.model.gpu import CallError, Gpu
from gpudoctor.facts.model.missing import Fact, Missing

NOT_READ_AGAIN = Missing("not read again after the load", "failed")


class Spread(Fact, frozen=True):
    """Lowest, median and highest of the samples taken."""

    low: float
    median: float
    high: float


class GpuUnderLoad(Fact, frozen=True):
    """One GPU while its rank was under load (`index` and `uuid` are NVML's).

    `samples`: how many were taken, over `sampled_s` from the first to the last: less than the probe
    took if sampling ended earlier. `readings`: by name with its unit (utilization_pct,
    memory_used_mib, power_w, temperature_c, sm_mhz, memory_mhz, pcie_generation, pcie_width);
    `unread`: why one is missing (same names, and event_reasons). `event_share`:
    for each clock event reason that was ever set (names as in `Clocks.event_reasons`), the share
    of the samples that showed it; `event_ms`: the growth of the driver's own timers for them
    within the probe. `counters`: growth over the probe, its edges included, of
    pcie_replays, ecc_corrected and ecc_uncorrected, if they were read.
    """

    index: int
    uuid: str | None
    samples: int
    readings: dict[str, Spread] = {}
    unread: dict[str, Missing] = {}
    event_share: dict[str, float] = {}
    event_ms: dict[str, float] = {}
    counters: dict[str, int] = {}
    sampled_s: float = 0.0


class Telemetry(Fact, frozen=True):
    """All GPUs under load, by probe: `during` is the probe's name ("collective", "train", ...).

    `ended`: why sampling ended before the probe did, in words; None if it did not.
    """

    during: str
    duration_s: float
    gpus: tuple[GpuUnderLoad, ...]
    ended: str | None = None


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
