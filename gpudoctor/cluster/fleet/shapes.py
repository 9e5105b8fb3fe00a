"""The parts of a report that the fleet reads: with ten thousand reports, decoding all fields would take too long."""

from __future__ import annotations

from typing import Literal

import msgspec

REPORT = "gpudoctor.report/1"
Verdict = Literal["pass", "warn", "fail", "unknown"]
WORST_FIRST: tuple[Verdict, ...] = ("fail", "unknown", "warn", "pass")


class NoValue(msgspec.Struct, frozen=True, gc=False):
    """A missing value, without the reason."""


Number = float | NoValue | None


class ToolOf(msgspec.Struct, frozen=True, gc=False):
    version: str = ""


class SourceOf(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""


class RunOf(msgspec.Struct, frozen=True):
    id: str = ""
    started_at: str = ""
    duration_s: float = 0.0
    level: str = ""
    source: SourceOf = SourceOf()
    injected: tuple[str, ...] = ()
    interrupted: str | None = None


class HostOf(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    kernel: str | None = None
    virtualization: str | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    nccl: str | None = None


class GpuOf(msgspec.Struct, frozen=True, gc=False):
    index: int
    uuid: str | None = None
    bus_id: str = ""
    name: str | None = None
    vbios: str | None = None


class CheckOf(msgspec.Struct, frozen=True, gc=False):
    id: str
    status: str


class CountsOf(msgspec.Struct, frozen=True, gc=False):
    # `pass` is a keyword
    passed: int = msgspec.field(name="pass", default=0)
    warn: int = 0
    fail: int = 0
    unknown: int = 0


class FaultOf(msgspec.Struct, frozen=True, gc=False):
    check: str
    headline: str
    explains: tuple[str, ...] = ()


class RankOf(msgspec.Struct, frozen=True, gc=False):
    rank: int
    gpu: int | None = None


class LaunchOf(msgspec.Struct, frozen=True, gc=False):
    backend: str
    world_size: int
    ranks: tuple[RankOf, ...] = ()


class TorchOf(msgspec.Struct, frozen=True, gc=False):
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None


class CollectiveOf(msgspec.Struct, frozen=True, gc=False):
    op: str
    size_bytes: int
    dtype: str
    busbw_gb_s: float


class PairOf(msgspec.Struct, frozen=True, gc=False):
    a: int
    b: int
    size_bytes: int
    busbw_gb_s: float


class HostLinkOf(msgspec.Struct, frozen=True, gc=False):
    rank: int
    size_bytes: int
    h2d_alone_gb_s: float
    d2h_alone_gb_s: float
    h2d_together_gb_s: Number = None
    d2h_together_gb_s: Number = None


class PeerLinkOf(msgspec.Struct, frozen=True, gc=False):
    source: int
    target: int
    size_bytes: int
    gb_s: float


class GemmOf(msgspec.Struct, frozen=True, gc=False):
    dtype: str
    size: int
    tflops: float


class ComputeOf(msgspec.Struct, frozen=True, gc=False):
    rank: int
    gemms: tuple[GemmOf, ...] = ()
    copy_gb_s: Number = None
    triad_gb_s: Number = None


class TrainRankOf(msgspec.Struct, frozen=True, gc=False):
    rank: int
    compute_ms: float


class TrainingOf(msgspec.Struct, frozen=True, gc=False):
    device: str
    world_size: int
    batch_per_rank: int
    parameters: int
    ranks: tuple[TrainRankOf, ...] = ()
    steady_step_ms: Number = None


class MeasuredOf(msgspec.Struct, frozen=True, gc=False):
    launch: LaunchOf | None = None
    torch_view: TorchOf | None = None
    collectives: tuple[CollectiveOf, ...] = ()
    pairs: tuple[PairOf, ...] = ()
    host_links: tuple[HostLinkOf, ...] = ()
    peer_links: tuple[PeerLinkOf, ...] = ()
    compute: tuple[ComputeOf, ...] = ()
    training: TrainingOf | None = None
    injected: tuple[str, ...] = ()


class ReportOf(msgspec.Struct, frozen=True):
    """What is read of a `gpudoctor.report/1`; a report of an earlier version may lack fields with a default."""

    schema: Literal["gpudoctor.report/1"]
    run: RunOf
    verdict: Verdict
    tool: ToolOf = ToolOf()
    host: HostOf = HostOf()
    gpus: tuple[GpuOf, ...] = ()
    reason: str = ""
    counts: CountsOf = CountsOf()
    checks: tuple[CheckOf, ...] = ()
    faults: tuple[FaultOf, ...] = ()
    measurements: MeasuredOf = MeasuredOf()
    simulated: bool = False
    error: str | None = None


class SchemaOf(msgspec.Struct, frozen=True):
    """The schema of a document."""

    schema: str = ""
