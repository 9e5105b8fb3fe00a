"""What a probe learnt. A measurement is one more fact: no verdicts here, and no torch."""

from typing import Literal

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.measured_burn import Burn
from gpudoctor.facts.model.measured_compute import ComputeRank
from gpudoctor.facts.model.measured_data import DataLoading
from gpudoctor.facts.model.measured_links import HostLink, PeerLink
from gpudoctor.facts.model.measured_storage import StorageRead
from gpudoctor.facts.model.measured_strategies import FrameworkView, LibraryStrategies, Strategies
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.facts.model.node import Unanswered
from gpudoctor.facts.model.telemetry import Telemetry

Device = Literal["cuda", "cpu"]
Probe = Literal["collective", "link", "compute", "train", "strategy", "data"]
# in the order in which they run
PROBES: tuple[Probe, ...] = ("collective", "link", "compute", "train", "strategy", "data")

ONCE: frozenset[Probe] = frozenset({"strategy", "data"})  # a burn does not repeat them: they hardly load the GPUs


class RankInfo(Fact, frozen=True):
    """One process of the run. `uuid` is the GPU it sat on; None for a CPU rank.

    `pid`s are not kept: they mean nothing later.
    """

    rank: int
    device: Device
    gpu: int | None = None
    uuid: str | None = None
    bus_id: str | None = None


class ProbeProblem(Fact, frozen=True):
    """Something that kept a probe from its answer, in the words of the person who must act.

    `kind`: `timeout` (a rank did not come back), `crash` (a rank died), `error` (a rank
    reported an error), `out-of-memory`, `refused` (a GPU took no process: by its
    compute mode, or though it should have).
    `phase` is what the rank was doing: "start", "import torch", "join", "all_reduce of 64 MiB",
    "train step 12". `waiting` are the ranks that were held up by it. `output` holds the last
    lines the rank wrote to stderr.
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

    `import_s`: until every rank had torch; `start_s`: until all had met; `total_s`: until all was over.
    """

    backend: Literal["nccl", "gloo"]
    world_size: int
    ranks: tuple[RankInfo, ...]
    method: str = "fresh-interpreters"
    start_s: float | Missing = NOT_READ
    total_s: float | Missing = NOT_READ
    import_s: float | Missing = NOT_READ


class TorchView(Fact, frozen=True):
    """What torch itself says, asked inside the ranks.

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
    iterations of the slowest rank. `wrong_elements` per rank; `wrong_ranks` are those whose
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
    `time_us` the median over batches of the slower of the two, of the better pass where there were
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
    """What one rank did in the DDP train; times are medians over the measured steps, in ms.

    `compute_ms`: forward and backward where no rank waits for another. `lateness_ms`: how much
    later than the first rank it came to the collective; `last_in_share`: share of the steps in
    which it came last. `wait_ms`: time it waited there for others. `data_ms`: fetching a batch.
    `host_ms`: enqueueing the work. `loss_first` and `loss_last` are None where they were not
    finite (JSON has no NaN). The second block repeats the measurement (reproducibility).
    `nonfinite_step`: the first real step whose loss was not finite here; NaN spreads to all ranks
    with the next gradient, so that the rank with the smallest one is where it began.
    `cycles_ms`: compute time in each comparison of the ranks: a block of steps on a GPU; on CPU
    ranks one turn over all cores (`Training.rotated`). `slowest_data_share`: share of the steps in
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
    """The plain DDP step with gradient buckets of this size; mean of one step, in ms."""

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

    `steady_step_ms`: a plain step, back to back with others, as a user's train runs it; `samples_per_s`
    of all ranks follows from it. `solo_step_ms` is the same step on one rank alone while the others wait idle; Missing
    where that was not run. `rotated`: the CPU ranks took turns on the same cores, so that a
    difference in compute time is the rank's and not its core's. `contribution_ok`: the 2^r code
    of every rank was in the sum. `clock_invariant_ok`: lateness + wait was the same on all ranks, without which arrival
    times say nothing.
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
    """All that the probes of one run learnt.

    `not_run` says for each probe (those of `PROBES`, "torch", and "peer" for the copies between
    GPUs, which are a part of "link"; and a collective that torch's backend lacks) why there is no figure, as
    the reason a check will give: `absent` where it was not asked for or torch is not
    installed, `failed` where it was tried. A probe in neither place was never thought of.
    Of a probe that ran in several rounds (level burn) these are the figures of the last complete
    one; but what says whether a result was right is the worst of all rounds. `burn` has the course.
    `unanswered` are the driver calls of the sampler that never returned; "telemetry" in `not_run` says
    why there was no sampler. Further keys of `not_run`: "deepspeed", "tensorflow", "frameworks", "storage", and
    "frameworks.NAME" for one framework that gave no answer.
    `data_need_gb_s` is no measurement: the rate that each GPU must be fed at, as the user said; None: nobody said.
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
