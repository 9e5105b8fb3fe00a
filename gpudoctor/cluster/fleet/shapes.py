"""What the fleet reads of a report: all but the findings of its checks, which are most of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.facts.model.measured_hardware import ComputeRank, HostLink, PeerLink
from gpudoctor.facts.model.measurements import Collective, Launch, PairBandwidth, TorchView, Training
from gpudoctor.report.model import Counts, GpuSummary, HostSummary, Verdict

REPORT = "gpudoctor.report/1"
WORST_FIRST: tuple[Verdict, ...] = ("fail", "unknown", "warn", "pass")


class ToolOf(msgspec.Struct, frozen=True, gc=False):
    version: str = ""


class RunOf(msgspec.Struct, frozen=True):
    """Any level is read: that of a newer gpudoctor too."""

    id: str = ""
    started_at: str = ""
    duration_s: float = 0.0
    level: str = ""
    injected: tuple[str, ...] = ()
    interrupted: str | None = None


class CheckOf(msgspec.Struct, frozen=True, gc=False):
    id: str
    status: str


class FaultOf(msgspec.Struct, frozen=True, gc=False):
    check: str
    headline: str
    explains: tuple[str, ...] = ()


class MeasuredOf(msgspec.Struct, frozen=True):
    """The measurements that nodes are compared by."""

    launch: Launch | None = None
    torch_view: TorchView | None = None
    collectives: tuple[Collective, ...] = ()
    pairs: tuple[PairBandwidth, ...] = ()
    host_links: tuple[HostLink, ...] = ()
    peer_links: tuple[PeerLink, ...] = ()
    compute: tuple[ComputeRank, ...] = ()
    training: Training | None = None
    injected: tuple[str, ...] = ()


class ReportOf(msgspec.Struct, frozen=True):
    """What is read of a `gpudoctor.report/1`; a report of an earlier version may lack fields with a default."""

    schema: Literal["gpudoctor.report/1"]
    run: RunOf
    verdict: Verdict
    tool: ToolOf = ToolOf()
    host: HostSummary = HostSummary(None, None, None)
    gpus: tuple[GpuSummary, ...] = ()
    reason: str = ""
    counts: Counts = Counts()
    checks: tuple[CheckOf, ...] = ()
    faults: tuple[FaultOf, ...] = ()
    measurements: MeasuredOf = MeasuredOf()
    simulated: bool = False
    error: str | None = None


class SchemaOf(msgspec.Struct, frozen=True):
    """The schema of a document."""

    schema: str = ""
