"""The messages that the processes of a run send to the parent, one JSON line each."""

from __future__ import annotations

import functools
import operator
from typing import Literal

import msgspec

from gpudoctor.facts.model.measured_hardware import ComputeRank, DataLoading, HostLink, PeerLink
from gpudoctor.facts.model.measured_strategies import StrategyRank, StrategyReference, StrategyShape
from gpudoctor.facts.model.measurements import BucketStep, Probe, Swap, TorchView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.plan_verification.messages import VerificationFigures
from gpudoctor.probes.runner.plan import Injection, ProbePlan

CPU_MEMORY = Missing("CPU ranks have no memory of their own")

Where = Literal["launch", "collective", "link", "compute", "train", "strategy", "data"]


class RankJob(ProbePlan, frozen=True, kw_only=True):
    """Everything a rank is given at its start: the plan, with its faults parsed, and the run's private directory."""

    folder: str
    group_timeout_s: float
    injections: tuple[Injection, ...] = ()


class RankMessage(msgspec.Struct, frozen=True, tag=True):
    """One line on a pipe."""


class Started(RankMessage, frozen=True):
    """The starter has started every rank."""

    method: Literal["fork-server", "fresh-interpreters"]
    pids: tuple[int, ...] = ()


class StartFailure(RankMessage, frozen=True):
    """The starter could not create a process or a file."""

    text: str


class NoTorch(RankMessage, frozen=True):
    """torch is not installed (`absent`) or does not load (`failed`)."""

    text: str
    kind: Literal["absent", "failed"]


class Exited(RankMessage, frozen=True):
    """A rank ended; `status` is its exit code, or minus the signal that ended it."""

    rank: int
    status: int


class Phase(RankMessage, frozen=True):
    """A rank begins this phase."""

    probe: Where
    text: str


class TorchSeen(RankMessage, frozen=True):
    """What torch reports inside one rank."""

    view: TorchView


class UnusableTorch(RankMessage, frozen=True):
    """This torch cannot run the probes at all; nothing is wrong with the node."""

    text: str


class RankFailure(RankMessage, frozen=True):
    """The rank cannot go on. `blocked`: it was waiting for other ranks when it failed; `crash`: hardware failed."""

    kind: Literal["crash", "error", "out-of-memory", "refused"]
    text: str
    blocked: bool


class ProbeSample(RankMessage, frozen=True):
    """A figure that a rank measured in this repetition, or why there is none."""


class CollectiveSample(ProbeSample, frozen=True):
    """One rank's figures for one collective at one size; `batch_us`: time of one operation in each batch."""

    op: str
    size_bytes: int
    dtype: str
    batch_us: tuple[float, ...]
    operations_per_batch: int
    wrong_elements: int
    missing_ranks: tuple[int, ...]


class PairSample(ProbeSample, frozen=True):
    """One rank's figures for send and receive with another, as in CollectiveSample; `a` < `b`, one is this rank."""

    a: int
    b: int
    size_bytes: int
    batch_us: tuple[float, ...]
    operations_per_batch: int
    wrong_elements: int


class LeftOut(RankMessage, frozen=True):
    """Why a rank left out one part of a probe, or the whole: its name in `not_run`."""

    part: str
    why: Missing


class StepBlock(msgspec.Struct, frozen=True):
    """One block of measured train steps on one rank, one entry per step; clock: CLOCK_MONOTONIC."""

    compute_ms: tuple[float, ...]
    host_ms: tuple[float, ...]
    data_ms: tuple[float, ...]
    arrived_ns: tuple[int, ...]
    left_ns: tuple[int, ...]
    step_ms: tuple[float, ...]


class TrainSample(ProbeSample, frozen=True):
    """One rank's DDP training. `losses`: of every DDP step, None if not finite.

    `gradient_error` and `solo_step_ms` are rank 0's (otherwise None and 0); an error that is not finite is None too.
    `cycles_ms`, `rotated` and the other times as in TrainRank and Training; `steady_step_ms` is above 0.
    """

    batch_per_rank: int
    parameters: int
    gradient_bytes: int
    blocks: tuple[StepBlock, ...]
    losses: tuple[float | None, ...]
    weights_sha256: str
    contribution_ok: bool | None
    gradient_error: float | None
    solo_step_ms: float
    steady_step_ms: float
    solo_compute_ms: float
    memory_peak_mib: float | Missing = CPU_MEMORY
    cycles_ms: tuple[float, ...] = ()
    rotated: bool = False
    buckets: tuple[BucketStep, ...] = ()
    swap: Swap | None = None


class LinkSample(ProbeSample, frozen=True):
    """One rank's measurements of its GPU's links; empty on a CPU rank. `no_peers`: why there are no peer copies."""

    host: HostLink | None = None
    peers: tuple[PeerLink, ...] = ()
    no_peers: Missing | None = None


class ComputeSample(ProbeSample, frozen=True):
    """One rank's measurements of its device."""

    compute: ComputeRank


class StrategyShared(ProbeSample, frozen=True):
    """Common to all strategies, sent by rank 0: the model, and the same steps on that rank alone."""

    shape: StrategyShape
    steps: int
    reference: StrategyReference


class StrategySample(ProbeSample, frozen=True):
    """One rank's result under one variant of a strategy, as in StrategyRun."""

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
    """One rank's loader figures, as DataLoading has them for all ranks."""

    loading: DataLoading


class VerificationSample(RankMessage, frozen=True):
    """One rank's figures from a plan verification."""

    figures: VerificationFigures


class Finished(RankMessage, frozen=True):
    """The rank has finished one probe in this repetition."""

    probe: Probe


class Left(RankMessage, frozen=True):
    """The rank has sent everything and exits."""


def message_decoder() -> msgspec.json.Decoder[RankMessage]:
    """A decoder of every message of this file, which it tells apart by their tags."""
    kinds = {*RankMessage.__subclasses__(), *ProbeSample.__subclasses__()} - {ProbeSample}
    return msgspec.json.Decoder(functools.reduce(operator.or_, kinds))
