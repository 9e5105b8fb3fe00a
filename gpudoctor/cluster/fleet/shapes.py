"""What the fleet reads of a report: all but the findings of its checks, which are most of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.facts.model.measured_hardware import ComputeRank, HostLink, PeerLink
from gpudoctor.facts.model.measurements import Collective, Launch, PairBandwidth, TorchView, Training
from gpudoctor.report.model import Counts, Verdict

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


class HostOf(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    kernel: str | None = None
    virtualization: str | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    nccl: str | None = None


class GpuOf(msgspec.Struct, frozen=True, gc=False):
    uuid: str | None = None
    bus_id: str = ""
    name: str | None = None
    vbios: str | None = None


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


class ReportOf(msgspec.Struct, frozen=True):
    """What is read of a `gpudoctor.report/1`; one of another version may lack fields with a default.

    `measurements` are decoded later, each by itself: a word that is new in one of them hides no verdict.
    """

    schema: Literal["gpudoctor.report/1"]
    run: RunOf
    verdict: Verdict
    tool: ToolOf = ToolOf()
    host: HostOf = HostOf()
    gpus: tuple[GpuOf, ...] = ()
    reason: str = ""
    counts: Counts = Counts()
    checks: tuple[CheckOf, ...] = ()
    faults: tuple[FaultOf, ...] = ()
    measurements: dict[str, msgspec.Raw] = {}
    simulated: bool = False
    error: str | None = None


class SchemaOf(msgspec.Struct, frozen=True):
    schema: str = ""
