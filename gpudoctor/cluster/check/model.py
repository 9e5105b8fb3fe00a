"""A check of many nodes as data: the request, the plan made of it, and the report (`gpudoctor.cluster/1`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gpudoctor.api.load.request import Backend
from gpudoctor.checks.core.faults import Fault
from gpudoctor.checks.core.finding import Finding, Status, worst
from gpudoctor.checks.core.registry import Level
from gpudoctor.checks.core.subject import Subject
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.network import Reach
from gpudoctor.process.exit_codes import FailOn
from gpudoctor.report.model import Tool, Verdict
from gpudoctor.text.hostlist import is_host_name

Launcher = Literal["slurm", "torchrun", "mpi", "ray", "k8s"]
SCHEMA: Literal["gpudoctor.cluster/1"] = "gpudoctor.cluster/1"
# the checks of a cluster report: id, and the title that holds if it passes
TITLES = {
    "cluster.nodes": "Every node came, and answered to the end",
    "cluster.checks": "Every node passes its own check",
    "cluster.network": "Nodes find each other: names, interfaces, MTU, rates and clocks agree",
    "cluster.all-reduce": "A sum over all ranks of all nodes is exactly right",
    "cluster.pairs": "Every two nodes exchange data as fast as the others do",
}


class ClusterCheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `gpudoctor cluster check` and `cluster rank`.

    `nodes`, `launcher`, `hosts`, `hostfile` and `launcher_args`: how a process is started on each node.
    `rendezvous_host`, `join`, `numbered` and `token_fd`: where a started process finds the coordinator. The others:
    what each node checks, and what counts as a failure.
    """

    level: Level = "standard"
    backend: Backend | Literal["auto"] = "auto"
    ranks: int | None = None
    node: str | None = None
    faults: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    profile: str | None = None
    config: Path | None = None
    deadline_s: float | None = None
    at_least_gbit_s: float | None = None
    fail_on: FailOn = "fail"
    reports: Path | None = None
    nodes: int | None = None
    launcher: Launcher | Literal["auto"] = "auto"
    hosts: str | None = None
    hostfile: str | None = None
    launcher_args: str | None = None
    rendezvous_host: str | None = None
    join: str | None = None
    numbered: str | None = None
    token_fd: int | None = None
    token_file: Path | None = None
    insecure: bool = False
    argv: tuple[str, ...] = ()

    def check_arguments(self) -> list[str]:
        """The options of each node's own check, without the faults."""
        arguments = ["--level", self.level, "--backend", self.backend]
        options = {"node": self.node, "profile": self.profile, "config": self.config}
        arguments += [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [*arguments, *(f"--skip={word}" for word in self.skip)]

    def member_arguments(self) -> list[str]:
        """The options that are passed on to every node's process."""
        options = {"ranks": self.ranks, "deadline": self.deadline_s}
        arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [*self.check_arguments(), *arguments, *(f"--fault={fault}" for fault in self.faults)]

    def faults_of_hosts(self) -> list[tuple[str | None, str]]:
        """Each fault with the host that it is for (`HOST:FAULT`), None if it is for all."""
        parts = [(fault, *fault.partition(":")) for fault in self.faults]
        return [(host, name) if colon and is_host_name(host) else (None, fault) for fault, host, colon, name in parts]


class ClusterRunPlan(msgspec.Struct, frozen=True):
    """What to do. Limits are in seconds, each for one step of one node; `count` and `names` may be unknown.

    `floor_gb_s` is the rate that every two nodes must reach, if the user gave one. `slack_s` is what a node may need
    beyond a limit, to end what took too long and to report it.
    """

    level: Level
    backend: Backend | Literal["auto"]
    count: int | None
    names: tuple[str, ...]
    join_limit_s: float
    check_limit_s: float
    open_limit_s: float
    rendezvous_limit_s: float
    floor_gb_s: float | None = None
    slack_s: float = 20.0


class ClusterOutput(NamedTuple):
    """`write` writes the report and returns the exit code; `show` displays a line of progress, "" clears it."""

    write: Callable[[ClusterReport], int]
    show: Callable[[str], None]


class NodeResult(msgspec.Struct, frozen=True):
    """One node. `verdict`, `reason` and `faults` are those of its own report, which is saved in `report_file`.

    A node that did not answer is `unknown`, with the reason in `silence`. `clock_offset_s` is its clock minus the
    hub's, accurate to `clock_error_s`; both are None if not measured.
    """

    name: str
    verdict: Verdict
    reason: str
    hostname: str | None = None
    index: int | None = None
    address: str | None = None
    silence: str | None = None
    gpus: int | None = None
    faults: tuple[Fault, ...] = ()
    reach: Reach | None = None
    clock_offset_s: float | None = None
    clock_error_s: float | None = None
    ranks: int | None = None
    report_file: str | None = None


class GroupResult(msgspec.Struct, frozen=True):
    """all_reduce in one group of nodes.

    `time_us` is the median time of the slowest rank (on CPU ranks the best time, since other work only adds to it).
    `busbw_gb_s` uses nccl-tests' factor 2(n-1)/n; GB = 1e9 bytes. `again`: it was slow and was measured once more while
    the other nodes idled; these are the better figures. `trouble`: by node, why there are no figures.
    """

    nodes: tuple[str, ...]
    ranks: int = 0
    size_bytes: int = 0
    time_us: float | None = None
    busbw_gb_s: float | None = None
    wrong_nodes: tuple[str, ...] = ()
    again: bool = False
    trouble: dict[str, str] = {}


class InterNodeResult(msgspec.Struct, frozen=True):
    """The measurements between nodes; `not_run` is why there are none."""

    backend: Literal["nccl", "gloo"] | None = None
    everyone: GroupResult | None = None
    pairs: tuple[GroupResult, ...] = ()
    pairs_planned: int = 0
    not_run: Missing | None = None


class Judged(msgspec.Struct, frozen=True):
    """One check of the cluster; `status` is the worst of its findings."""

    id: str
    title: str
    status: Status
    findings: tuple[Finding, ...]


class ClusterRun(msgspec.Struct, frozen=True):
    """This run. `nodes_expected` is None if the number of nodes was not known.

    `insecure`: the nodes had no secret token (`--insecure`), so anybody on the network could have answered.
    """

    id: str
    started_at: str
    duration_s: float
    level: Level
    launcher: str
    nodes_expected: int | None
    argv: tuple[str, ...] = ()
    interrupted: str | None = None
    insecure: bool = False


class ClusterReport(msgspec.Struct, frozen=True):
    """One check of many nodes. If `error` is set, it could not be done (exit code 2) and nothing was judged."""

    schema: Literal["gpudoctor.cluster/1"]
    tool: Tool
    run: ClusterRun
    verdict: Verdict
    exit_code: int
    reason: str
    nodes: tuple[NodeResult, ...] = ()
    between: InterNodeResult = InterNodeResult()
    checks: tuple[Judged, ...] = ()
    simulated: bool = False
    error: str | None = None


def node_subject(name: str) -> Subject:
    return Subject(kind="node", name=name)


def judged(id: str, findings: tuple[Finding, ...]) -> Judged:
    return Judged(id, TITLES[id], worst(f.status for f in findings), findings)
