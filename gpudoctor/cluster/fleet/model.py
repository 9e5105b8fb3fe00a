"""The fleet report as data (`gpudoctor.fleet/1`), and configuration drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from gpudoctor.cluster.fleet.nodes import NodeJobs
from gpudoctor.cluster.fleet.reading import Refused
from gpudoctor.cluster.fleet.records import NodeFault
from gpudoctor.cluster.fleet.runs import FleetRun
from gpudoctor.report.model import Verdict
from gpudoctor.text.grouped import grouped
from gpudoctor.text.hostlist import Hosts, is_host_name

MIN_NODES = 3
Configurations = Mapping[str, Iterable[tuple[str, str]]]
OUTLIER = "fleet.outlier"
"""The id under which a node counts that fails by comparison with the others only."""

_FIT: tuple[Verdict, ...] = ("pass", "warn")


class Other(msgspec.Struct, frozen=True):
    """A minority's value, and the nodes that have it."""

    value: str
    nodes: tuple[str, ...]


class ConfigDrift(msgspec.Struct, frozen=True):
    """A configuration item in which nodes of one kind differ.

    `told` is the number of nodes that report the item. `majority` is the value of more than half of them, `agreeing`
    their number. If no value has a majority, `majority` is None, `agreeing` is 0, and `others` contains all values.
    """

    kind: str
    item: str
    majority: str | None
    agreeing: int
    reporting: int = msgspec.field(name="told")
    others: tuple[Other, ...]


def drifts(kind: str, configurations: Configurations) -> list[ConfigDrift]:
    """The items in which nodes (by name) of a kind differ, of those that at least `MIN_NODES` nodes report."""
    by_item = grouped((item, (value, name)) for name, settings in configurations.items() for item, value in settings)
    found = []
    for item, of_nodes in by_item.items():
        reported, values = len(of_nodes), grouped(of_nodes)
        if len(values) < 2 or reported < MIN_NODES:
            continue
        most = max(values, key=lambda value: len(values[value]))
        agreeing = len(values[most]) if len(values[most]) * 2 > reported else 0
        others = [(value, names) for value, names in values.items() if not agreeing or value != most]
        others.sort(key=lambda other: (-len(other[1]), other[0]))
        outliers = tuple(Other(value, tuple(sorted(names))) for value, names in others)
        found.append(ConfigDrift(kind, item, most if agreeing else None, agreeing, reported, outliers))
    return found


class NodeRow(msgspec.Struct, frozen=True):
    """One node. `verdict` is that of its newest report, or worse by comparison with the fleet.

    `reports` is the number of its reports; `place` is where the newest one was read. `host` is its own host name,
    which differs from `name` if several machines use the same host name.
    """

    name: str
    host: str
    verdict: Verdict
    reason: str
    kind: str
    level: str
    started_at: str | None
    place: str
    reports: int = 1
    simulated: bool = False
    injected: tuple[str, ...] = ()
    faults: tuple[NodeFault, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The reason without the verdict, which stands before it."""
        return self.reason.removeprefix(f"{self.verdict.upper()} ")


class NodeCounts(msgspec.Struct, frozen=True):
    """Nodes by verdict; `unread` counts documents that should have been reports, whose nodes are not known."""

    nodes: int
    # `pass` is a keyword
    passed: int = msgspec.field(name="pass", default=0)
    warn: int = 0
    fail: int = 0
    unknown: int = 0
    unread: int = 0

    @property
    def worst_first(self) -> tuple[tuple[str, int], ...]:
        """Each count with its name."""
        return (
            ("fail", self.fail),
            ("unknown", self.unknown),
            ("unread", self.unread),
            ("warn", self.warn),
            ("pass", self.passed),
        )


class FaultKind(msgspec.Struct, frozen=True):
    """One check that did not pass, and on which nodes; `example` is its headline on the first of them."""

    check: str
    status: Literal["fail", "unknown", "warn"]
    nodes: tuple[str, ...]
    example: str | None = None


class Outlier(msgspec.Struct, frozen=True):
    """A figure of one node that is worse than the fleet's.

    `similarity` is to the fleet's criterion, 1 is equal; `sigmas` is the distance from the median in robust standard
    deviations (null if all others are equal). `status` is warn if it is less than 10 % worse or in one figure only.
    """

    node: str
    status: Literal["fail", "warn"]
    figure: str
    gpus: tuple[int, ...]
    value: float
    unit: str
    criterion: float
    similarity: float
    sigmas: float | None
    kind: str


def by_node_name(outliers: Iterable[Outlier]) -> dict[str, list[Outlier]]:
    """The outliers by node name, in the same order."""
    return grouped((outlier.node, outlier) for outlier in outliers)


class FigureRow(msgspec.Struct, frozen=True):
    """The distribution of one figure over one kind of node; `why_not` is set if the values were not compared."""

    kind: str
    figure: str
    unit: str
    less_is_better: bool
    nodes: int
    samples: int
    median: float
    mad: float
    criterion: float
    low: float
    high: float
    outliers: int = 0
    why_not: str | None = None


class Trend(msgspec.Struct, frozen=True):
    """A change since the older set; `what` is the kind of change."""

    what: Literal["verdict", "fault", "node", "figure", "fleet", "configuration"]
    text: str
    node: str | None = None
    worse: bool = False


class FleetReading(msgspec.Struct, frozen=True):
    """What was read. `others` counts files in folders that are not named like reports, and were not opened."""

    sources: tuple[str, ...]
    files: int
    others: int
    reports: int
    older: int
    broken: tuple[Refused, ...] = ()
    foreign: tuple[Refused, ...] = ()
    duplicates: tuple[Refused, ...] = ()
    interrupted: str | None = None

    @property
    def refused(self) -> tuple[tuple[str, tuple[Refused, ...]], ...]:
        """The refused documents, each group with its reason."""
        return (
            ("cannot be read", self.broken),
            ("no report", self.foreign),
            ("the same report again", self.duplicates),
        )


class Fleet(msgspec.Struct, frozen=True):
    """The fleet report. `notes` are for the reader; `error` is set if nothing could be read (exit code 2)."""

    schema: Literal["gpudoctor.fleet/1"]
    version: str
    verdict: Verdict
    exit_code: int
    counts: NodeCounts
    reading: FleetReading
    simulated: int = 0
    first_at: str | None = None
    last_at: str | None = None
    nodes: tuple[NodeRow, ...] = ()
    faults: tuple[FaultKind, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    figures: tuple[FigureRow, ...] = ()
    drift: tuple[ConfigDrift, ...] = ()
    jobs: tuple[NodeJobs, ...] = ()
    runs: tuple[FleetRun, ...] = ()
    against: FleetReading | None = None
    trends: tuple[Trend, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def verdict_words(self) -> str | None:
        """What the verdict means; None for fail, where the number of failing nodes is shown instead."""
        return {
            "unknown": "none fails, but not all are known: what got no answer is not a pass",
            "warn": "no node fails; look at the warnings",
            "pass": "nothing wrong in what the reports looked at",
        }.get(self.verdict)

    @property
    def simulated_words(self) -> str | None:
        """Which nodes are simulated, if any."""
        if not self.simulated:
            return None
        which = "all nodes are" if self.simulated == len(self.nodes) else f"{self.simulated} nodes are"
        return f"{which} made up, no verdict on real machines"

    @property
    def read(self) -> tuple[FleetReading, ...]:
        """What was read of this set, and of the older one if there is one."""
        return (self.reading,) if self.against is None else (self.reading, self.against)

    def marks_of(self, row: NodeRow) -> str:
        """SIMULATED and INJECTED marks of a node; if all nodes are simulated, the header shows it instead."""
        simulated = ["SIMULATED"] if row.simulated and self.simulated < len(self.nodes) else []
        return ", ".join([*simulated, *(["INJECTED"] if row.injected else [])])


def good_names(fleet: Fleet) -> list[str]:
    """Hosts that may run jobs: pass or warn under each of their names; no simulated ones among real ones."""
    bad = {row.host for row in fleet.nodes if row.verdict not in _FIT or not listed(fleet, row)}
    return list(dict.fromkeys(row.host for row in fleet.nodes if row.host not in bad))


def bad_names(fleet: Fleet) -> list[str]:
    """Hosts with the verdict fail."""
    return list(dict.fromkeys(row.host for row in fleet.nodes if row.verdict == "fail" and listed(fleet, row)))


def excluded_names(fleet: Fleet, expected: Iterable[str]) -> list[str]:
    """Hosts that no job should get: those that fail or are unknown, and each expected one that is not known as good."""
    unfit = [row.host for row in fleet.nodes if row.verdict not in _FIT and listed(fleet, row)]
    good = Hosts(good_names(fleet))
    return list(dict.fromkeys([*unfit, *(host for host in expected if host not in good)]))


def unlisted_count(fleet: Fleet) -> int:
    """How many nodes may be unfit and no list can name: a report that cannot be read, a name that is no host's."""
    unfit = [row for row in fleet.nodes if row.verdict not in _FIT and not row.simulated]
    return fleet.counts.unread + sum(not is_host_name(row.host) for row in unfit)


def listed(fleet: Fleet, row: NodeRow) -> bool:
    """Whether the node may be in a host list: its name is valid, and it is real or all nodes are simulated."""
    return is_host_name(row.host) and (not row.simulated or fleet.simulated == len(fleet.nodes))
