"""What the driver showed of each GPU while the probes ran: figures only, no verdicts."""

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.missing import Missing


class Spread(Fact, frozen=True):
    """Lowest, median and highest of the samples taken."""

    low: float
    median: float
    high: float


class GpuUnderLoad(Fact, frozen=True):
    """One GPU while its rank was under load (`index` and `uuid` as NVML has them).

    `samples`: how many there were, over `sampled_s` from the first to the last: less than the probe
    took where sampling ended before it. `readings`: by name with its unit (utilization_pct,
    memory_used_mib, power_w, temperature_c, sm_mhz, memory_mhz, pcie_generation, pcie_width);
    `unread`: why another one is not there (by the same names, and event_reasons). `event_share`:
    for each clock event reason that was ever set (names as in `Clocks.event_reasons`), the share
    of the samples that showed it; `event_ms`: the growth of the driver's own timers of them, as
    far as they lie within the probe. `counters`: growth over the probe, its edges included, of
    pcie_replays, ecc_corrected and ecc_uncorrected, where they were read.
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

    `ended`: why sampling ended before the probe did, in words; None where it did not.
    """

    during: str
    duration_s: float
    gpus: tuple[GpuUnderLoad, ...]
    ended: str | None = None
