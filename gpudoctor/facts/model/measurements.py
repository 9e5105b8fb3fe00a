"""Results of the probes. A measurement is one more fact: no verdicts here, and no torch."""

from typing import Literal

from gpudoctor.facts.model.measured_hardware import ComputeRank, DataLoading, HostLink, PeerLink, StorageRead
from gpudoctor.facts.model.measured_strategies import FrameworkView, LibraryStrategies, Strategies
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing
from gpudoctor.facts.model.node import Unanswered
from gpudoctor.facts.model.telemetry import Burn, Telemetry

Device = Literal["cuda", "cpu"]
Probe = Literal["collective", "link", "compute", "train", "strategy", "data"]
# in the order in which they run
PROBES: tuple[Probe, ...] = ("collective", "link", "compute", "train", "strategy", "data")
LEAST_JUDGED_CYCLES = 6  # with fewer of `TrainRank.cycles_ms` no rank is called even or slow
ONCE: frozenset[Probe] = frozenset({"strategy", "data"})  # not repeated by a burn: they hardly load the GPUs


class RankInfo(Fact, frozen=True):
    """One process of the run. `uuid` is that of its GPU; None for a CPU rank."""

    rank: int
    device: Device
    gpu: int | None = None
    uuid: str | None = None
    bus_id: str | None = None


class ProbeProblem(Fact, frozen=True):
    """Something that kept a probe from finishing, described for the person who must act.

    `kind`: `timeout` (a rank did not come back), `crash` (a rank crashed), `error` (a rank
    reported an error, or was killed), `out-of-memory`, `refused` (a GPU accepted no process, because of its
    compute mode or for no visible reason).
    `phase` is what the rank was doing: "start", "import torch", "join", "all_reduce of 64 MiB",
    "train step 12". `waiting` are the ranks that it held up. `output` holds the last
    lines that the rank wrote to stderr.
    """

    probe: Literal["launch", "collective", "link", "compute", "train", "strategy", "data"]
    kind: Literal["timeout", "crash", "error", "out-of-memory", "refused"]
    text: str
    rank: int | None = None
    phase: str | None = None
    waiting: tuple[int, ...] = ()
    output: tuple[str, ...] = ()


class Launch(Fact, frozen=True):
    """How the ranks were run. `method` is fork-server or fresh-interpreters.

    `import_s`: until every rank had imported torch; `start_s`: until the rendezvous of all; `total_s`: until the end.
    """

    backend: Literal["nccl", "gloo"]
    world_size: int
    ranks: tuple[RankInfo, ...]
    method: str = "fresh-interpreters"
    start_s: float | Missing = NOT_READ
    total_s: float | Missing = NOT_READ
    import_s: float | Missing = NOT_READ


class TorchView(Fact, frozen=True):
    """What torch reports inside the ranks.

    `visible_uuids` as torch lists them (GPU-... or MIG-...); empty on a CPU-only build.
    """

    torch: str
    cuda: str | None = None
    nccl: str | None = None
    cuda_available: bool = False
    device_count: int = 0
    visible_uuids: tuple[str, ...] | Missing = NOT_READ
    error: str | None = None


class Collective(Fact, frozen=True):
    """One collective at one size.

    `size_bytes` is nccl-tests' size column; `algbw_gb_s` = size / time, `busbw_gb_s` by
    nccl-tests' factor (all_reduce: 2(n-1)/n); GB = 1e9 bytes. `time_us` is the median over
    iterations of the slowest rank. `wrong_ranks` are those whose
    result was not exactly right, `missing_ranks` those whose contribution was not in the sum.
    """

    op: str
    size_bytes: int
    dtype: str
    iterations: int
    time_us: float
    time_us_mad: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong_ranks: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()


class PairBandwidth(Fact, frozen=True):
    """Send and receive between two ranks at the same time, while the others idle; `a` < `b` are ranks.

    `busbw_gb_s` is that of one direction (nccl-tests' sendrecv: size / time; GB = 1e9 bytes);
    `time_us` the median over batches of the slower of the two, of the better pass if there were
    several. `wrong_ranks` are those of the two that did not receive exactly what was sent.
    """

    a: int
    b: int
    size_bytes: int
    iterations: int
    time_us: float
    time_us_mad: float
    busbw_gb_s: float
    wrong_ranks: tuple[int, ...] = ()


class TrainRank(Fact, frozen=True):
    """One rank of the DDP train; times are medians over the measured steps, in ms.

    `compute_ms`: forward and backward while no rank waits for another. `lateness_ms`: how much
    later than the first rank it reached the collective; `last_in_share`: share of the steps in
    which it was last. `wait_ms`: time it waited there for others. `data_ms`: fetching a batch.
    `host_ms`: enqueueing the work. `loss_first` and `loss_last` are None if they were not
    finite (JSON has no NaN). `compute_again_ms` repeats the measurement (reproducibility).
    `nonfinite_step`: the first real step whose loss was not finite here; NaN spreads to all ranks
    with the next gradient, so it began on the rank with the smallest one.
    `cycles_ms`: compute time in each comparison of the ranks: a block of steps on a GPU; on CPU
    ranks one cycle over all cores (`Training.rotated`). `slowest_data_share`: share of the steps in
    which its batch came last. `solo_compute_ms`: the same compute while all others idle.
    """

    rank: int
    compute_ms: float
    compute_mad_ms: float
    compute_again_ms: float
    lateness_ms: float
    last_in_share: float
    wait_ms: float
    data_ms: float
    host_ms: float
    step_ms: float
    loss_first: float | None
    loss_last: float | None
    memory_peak_mib: float | Missing = NOT_READ
    weights_sha256: str = ""
    nonfinite_step: int | None = None
    cycles_ms: tuple[float, ...] = ()
    slowest_data_share: float | Missing = NOT_READ
    solo_compute_ms: float | Missing = NOT_READ


class BucketStep(Fact, frozen=True):
    """The plain DDP step with gradient buckets of this size; mean step time in ms."""

    bucket_cap_mb: float
    step_ms: float


class Swap(Fact, frozen=True):
    """Compute time of the slowest rank and a middle one, on their own GPUs and on each other's."""

    suspect: int
    partner: int
    suspect_ms: float
    partner_ms: float
    suspect_on_partners_gpu_ms: float
    partner_on_suspects_gpu_ms: float


class Training(Fact, frozen=True):
    """The DDP sanity train.

    `steady_step_ms`: a plain step, back to back with others, as a user's training runs it; `samples_per_s`
    of all ranks follows from it. `solo_step_ms` is the same step on one rank while the others idle; Missing
    if that was not run. `rotated`: the CPU ranks took turns on the same cores, so that a
    difference in compute time comes from the rank and not from its core. `contribution_ok`: the 2^r code
    of every rank was in the sum. `clock_invariant_ok`: lateness + wait was the same on all ranks; if not, the arrival
    times mean nothing.
    """

    device: Device
    world_size: int
    steps: int
    batch_per_rank: int
    parameters: int
    gradient_bytes: int
    ranks: tuple[TrainRank, ...]
    contribution_ok: bool | Missing = NOT_READ
    gradient_error: float | Missing = NOT_READ
    clock_invariant_ok: bool | Missing = NOT_READ
    solo_step_ms: float | Missing = NOT_READ
    samples_per_s: float | Missing = NOT_READ
    steady_step_ms: float | Missing = NOT_READ
    rotated: bool = False
    buckets: tuple[BucketStep, ...] = ()
    swap: Swap | None = None


class Measurements(Fact, frozen=True):
    """Results of all probes of one run.

    `not_run` holds for each probe (those of `PROBES`, "torch", and "peer" for the copies between
    GPUs, which are a part of "link"; and a collective that torch's backend lacks) why there is no figure, as
    the reason that a check reports: `absent` if it was not requested or torch is not
    installed, `failed` if it was tried. A probe without figures and without a reason was never considered.
    For a probe that ran in several rounds (level burn) these are the figures of the last complete
    one, but correctness of results is the worst of all rounds. `burn` has the figures over time.
    `unanswered` are the driver calls of the sampler that never returned; "telemetry" in `not_run` is
    why there was no sampler. Further keys of `not_run`: "deepspeed", "tensorflow", "frameworks", "storage", and
    "frameworks.NAME" for one framework that did not answer.
    `data_need_gb_s` is not measured: the rate that each GPU must be fed at, given by the user; None if not given.
    """

    launch: Launch | None = None
    torch_view: TorchView | None = None
    collectives: tuple[Collective, ...] = ()
    pairs: tuple[PairBandwidth, ...] = ()
    host_links: tuple[HostLink, ...] = ()
    peer_links: tuple[PeerLink, ...] = ()
    compute: tuple[ComputeRank, ...] = ()
    training: Training | None = None
    strategies: Strategies | None = None
    data_loading: DataLoading | None = None
    frameworks: tuple[FrameworkView, ...] = ()
    deepspeed: LibraryStrategies | None = None
    tensorflow: LibraryStrategies | None = None
    storage: tuple[StorageRead, ...] = ()
    telemetry: tuple[Telemetry, ...] = ()
    burn: Burn | None = None
    problems: tuple[ProbeProblem, ...] = ()
    not_run: dict[str, Missing] = {}
    unanswered: tuple[Unanswered, ...] = ()
    injected: tuple[str, ...] = ()
    data_need_gb_s: float | None = None
