"""The request for a check of many nodes, the plan made of it, and where its report and progress go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from gpudoctor.checks.core.registry import Level

if TYPE_CHECKING:
    from gpudoctor.cluster.check.report import ClusterReport
    from gpudoctor.report.judge import FailOn


Backend = Literal["nccl", "gloo"]
Launcher = Literal["slurm", "torchrun", "mpi", "ray", "k8s"]


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

    def check_words(self) -> list[str]:
        """The options of each node's own check, without the faults."""
        words = ["--level", self.level, "--backend", self.backend]
        options = {"node": self.node, "profile": self.profile, "config": self.config}
        words += [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [*words, *(f"--skip={word}" for word in self.skip)]

    def member_words(self) -> list[str]:
        """The options that are passed on to every node's process."""
        options = {"ranks": self.ranks, "deadline": self.deadline_s}
        words = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [*self.check_words(), *words, *(f"--fault={fault}" for fault in self.faults)]


class ClusterRunPlan(msgspec.Struct, frozen=True):
    """What to do. Limits are in seconds, each for one step of one node; `count` and `names` may be unknown.

    `slack_s` is what a node may need beyond a limit, to end what took too long and to report it.
    """

    level: Level
    backend: Backend | Literal["auto"]
    count: int | None
    names: tuple[str, ...]
    join_limit_s: float
    check_limit_s: float
    open_limit_s: float
    rendezvous_limit_s: float
    slow_share: Mapping[Backend, float]
    floor_gb_s: float | None = None
    slack_s: float = 20.0


class ClusterOutput(NamedTuple):
    """`write` writes the report and returns the exit code; `show` displays a line of progress, "" clears it."""

    write: Callable[[ClusterReport], int]
    show: Callable[[str], None]
