"""What the processes of a run send to the parent, one JSON line each."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.facts.model.measured_data import DataLoading
from gpudoctor.facts.model.measured_devices import ComputeRank, HostLink, PeerLink
from gpudoctor.facts.model.measured_strategies import StrategyRank, StrategyReference, StrategyShape
from gpudoctor.facts.model.measurements import BucketStep, Probe, Swap, TorchView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.plan_verification.messages import VerificationFigures, VerificationOrder
from gpudoctor.probes.runner.plan import Injection

Where = Literal["launch", "collective", "link", "compute", "train", "strategy", "data"]


class RankJob(msgspec.Struct, frozen=True):
    """All that a rank receives at its start; `folder` is the run's private directory.

    `gpu_uuids` and `gpu_bus_ids` name each rank's GPU.
    """

    backend: Literal["nccl", "gloo"]
    world_size: int
    probes: tuple[Probe, ...]
    folder: str
    group_timeout_s: float
    gpu_uuids: tuple[str, ...] = ()
    gpu_bus_ids: tuple[str, ...] = ()
    level: str = "standard"
    duration_s: float | None = None
    injections: tuple[Injection, ...] = ()
    verification: VerificationOrder | None = None
    strategies: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


class RankMessage(msgspec.Struct, frozen=True, tag=True):
    """One line on a pipe."""


class Started(RankMessage, frozen=True):
    """The starter has started every rank."""

    method: Literal["fork-server", "fresh-interpreters"]
    pids: tuple[int, ...] = ()


class StartFailure(RankMessage, frozen=True):
    """The machine let the starter make no process, or no file."""

    text: str


class NoTorch(RankMessage, frozen=True):
    """torch is not there (`absent`) or does not load (`failed`)."""

    text: str
    kind: Literal["absent", "failed"]


class Exited(RankMessage, frozen=True):
    """A rank ended; `status` is its exit code, or minus the signal that ended it."""

    rank: int
    status: int


class Phase(RankMessage, frozen=True):
    """What a rank begins to do."""

    probe: Where
    text: str


class TorchSeen(RankMessage, frozen=True):
    """What torch reports inside one rank."""

    view: TorchView


class UnusableTorch(RankMessage, frozen=True):
    """This torch cannot run the probes at all; nothing is wrong with the node."""

    text: str


class RankFailure(RankMessage, frozen=True):
    """The rank cannot go on. `blocked`: it was waiting for other ranks when it happened; `crash`: hardware failed."""

    kind: Literal["crash", "error", "out-of-memory", "refused"]
    text: str
    blocked: bool


class ProbeSample(RankMessage, frozen=True):
    """What a rank has measured in this repetition, or why it has not."""


class CollectiveSample(ProbeSample, frozen=True):
    """One rank's figures of one collective at one size: time of one operation in each batch, in us."""

    op: str
    size_bytes: int
    dtype: str
    batch_us: tuple[float, ...]
    operations_per_batch: int
    wrong_elements: int
    missing_ranks: tuple[int, ...]


class PairSample(ProbeSample, frozen=True):
    """One rank's figures of send and receive with another, as in CollectiveSample; `a` < `b`, one is this rank."""

    a: int
    b: int
    size_bytes: int
    batch_us: tuple[float, ...]
    operations_per_batch: int
    wrong_elements: int


class NotOffered(RankMessage, frozen=True):
    """The backend of this torch does not have one collective."""

    op: str
    text: str


class StepBlock(msgspec.Struct, frozen=True):
    """One block of measured train steps on one rank, one entry a step; clock: CLOCK_MONOTONIC."""

    compute_ms: tuple[float, ...]
    host_ms: tuple[float, ...]
    data_ms: tuple[float, ...]
    arrived_ns: tuple[int, ...]
    left_ns: tuple[int, ...]
    step_ms: tuple[float, ...]


class TrainSample(ProbeSample, frozen=True):
    """One rank's DDP train. `losses` holds every real step; None where the loss was not finite.

    `cycles_ms`, `rotated` and the further times as in TrainRank and Training.
    """

    batch_per_rank: int
    parameters: int
    gradient_bytes: int
    blocks: tuple[StepBlock, ...]
    losses: tuple[float | None, ...]
    weights_sha256: str
    contribution_ok: bool | None
    gradient_error: float | None = None
    solo_step_ms: float | None = None
    memory_peak_mib: float | None = None
    cycles_ms: tuple[float, ...] = ()
    rotated: bool = False
    steady_step_ms: float | None = None
    solo_compute_ms: float | None = None
    buckets: tuple[BucketStep, ...] = ()
    swap: Swap | None = None


class LinkSample(ProbeSample, frozen=True):
    """What one rank measured of its GPU's links; nothing on a CPU rank, which has none.

    `no_peers`: why there are no copies to other GPUs.
    """

    host: HostLink | None = None
    peers: tuple[PeerLink, ...] = ()
    no_peers: Missing | None = None


class ComputeSample(ProbeSample, frozen=True):
    """What one rank's device computed."""

    compute: ComputeRank


class StrategyShared(ProbeSample, frozen=True):
    """What all strategies have in common, from rank 0: the model, and the same steps there alone."""

    shape: StrategyShape
    steps: int
    reference: StrategyReference


class StrategySample(ProbeSample, frozen=True):
    """One rank under one variant of a strategy, as in StrategyRun."""

    strategy: str
    variant: str
    dtype: Literal["fp32", "bf16"]
    result: StrategyRank
    missing_weights: tuple[str, ...] = ()
    figures: dict[str, float] = {}


class StrategyLeftOut(ProbeSample, frozen=True):
    """Why a strategy did not run on a rank, or not to its end."""

    strategy: str
    why: Missing


class LoaderSample(ProbeSample, frozen=True):
    """What the loader of one rank gave, as in DataLoading: there its ranks are put together."""

    loading: DataLoading


class LoaderLeftOut(ProbeSample, frozen=True):
    """Why there is nothing to load."""

    why: Missing


class VerificationSample(RankMessage, frozen=True):
    """What one rank measured in the verification of a plan."""

    figures: VerificationFigures


class Finished(RankMessage, frozen=True):
    """The rank is through with one probe, in this repetition (counted from 0)."""

    probe: Probe
    round: int = 0


class Left(RankMessage, frozen=True):
    """The rank has sent everything and ends."""


AnyMessage = (
    Started
    | StartFailure
    | NoTorch
    | Exited
    | Phase
    | TorchSeen
    | UnusableTorch
    | RankFailure
    | CollectiveSample
    | PairSample
    | NotOffered
    | LinkSample
    | ComputeSample
    | TrainSample
    | StrategyShared
    | StrategySample
    | StrategyLeftOut
    | LoaderSample
    | LoaderLeftOut
    | VerificationSample
    | Finished
    | Left
)
