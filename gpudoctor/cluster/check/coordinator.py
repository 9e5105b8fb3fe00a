"""The process with the hub: coordinates the check, judges the results, and writes the report."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from gpudoctor.api.load.measure import run_limit_s
from gpudoctor.checks.core.registry import Level
from gpudoctor.cluster.check.cluster_run import ClusterSession
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.judge import judge_cluster
from gpudoctor.cluster.check.messages import DEFAULT_SILENCE_S
from gpudoctor.cluster.check.model import (
    SCHEMA,
    ClusterCheckRequest,
    ClusterOutput,
    ClusterReport,
    ClusterRun,
    ClusterRunPlan,
)
from gpudoctor.errors import UserError
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.process.exit_codes import COULD_NOT
from gpudoctor.process.private_folder import make_private_folder, why_not_private
from gpudoctor.process.signals import InterruptedBySignal, hold_signals
from gpudoctor.report.model import COULD_NOT_REASON, Tool
from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.text.hostlist import Hosts, hostlist
from gpudoctor.text.output import printable, say
from gpudoctor.text.units import rfc3339

_JOIN_S = 60.0
_NAME_MAX = 50  # characters of up to 4 bytes each: file systems allow 255 bytes
_READ_S = COLLECTION.seconds + 20.0  # Python and torch may come from a cold network disk
_OPEN_S = 60.0  # importing torch on a busy machine, and opening a GPU
# NCCL opens connections between all NICs first: seconds, more with many ranks
_RENDEZVOUS_S = {"nccl": 60.0, "gloo": 20.0}


class Coordinator:
    """One run of the coordinator: the request, when it began, and where the reports go."""

    def __init__(
        self, request: ClusterCheckRequest, launcher: str, output: ClusterOutput, *, insecure: bool = False
    ) -> None:
        self.request, self.launcher, self._output, self._insecure = request, launcher, output, insecure
        self.files: dict[str, str] = {}
        self._not_kept = False
        self._began, self._started = time.monotonic(), rfc3339(time.time())
        if request.reports is not None:
            try:
                make_private_folder(request.reports)
                # group write permission is deliberate: people share such a folder
                foreign = why_not_private(request.reports, group_may_write=True)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise UserError(f"{request.reports}: cannot keep reports there: {why}") from None
            if foreign is not None:
                raise UserError(f"--reports: {foreign}; a folder that is not there yet is made for you alone")

    def run(
        self,
        hub: Hub,
        count: int | None,
        names: tuple[str, ...],
        given_up: Callable[[], bool],
        launcher_output: Callable[[], str | None],
    ) -> int:
        """Check, judge and write the report; return the exit code. Raise UserError if no node came."""
        request = self.request
        session = ClusterSession(hub, self._plan(count, names), self._output.show, self._keep)
        interrupted: InterruptedBySignal | None = None
        try:
            session.run(given_up)
            signals = hold_signals()
        except InterruptedBySignal as stop:
            signals = hold_signals(stop)
        self._output.show("")
        hub.close()
        if signals:
            interrupted = InterruptedBySignal(signals[0])
        elif not session.nodes:
            message = launcher_output()
            reported = f"; {self.launcher} says: {message}" if message else f" within {session.plan.join_limit_s:g} s"
            raise UserError(f"no node came{reported}")
        else:
            self._refuse_unknown_hosts({*names, *(node.hostname for node in session.nodes)})
        run = ClusterRun(
            id=str(uuid.uuid4()),
            started_at=self._started,
            duration_s=round(time.monotonic() - self._began, 3),
            level=request.level,
            launcher=self.launcher,
            nodes_expected=count,
            argv=request.argv,
            interrupted=str(interrupted) if interrupted else None,
            insecure=self._insecure,
        )
        message = launcher_output() if session.missing else None
        report = judge_cluster(session, run, fail_on=request.fail_on, files=self.files, launcher_output=message)
        if self._not_kept:
            report = msgspec.structs.replace(report, exit_code=COULD_NOT)
        if interrupted is not None:
            report = msgspec.structs.replace(report, exit_code=interrupted.exit_code)
        return self._output.write(report)

    def _refuse_unknown_hosts(self, names: set[str]) -> None:
        """Raise UserError if a fault is for a host that has no part in this check: a drill would pass falsely."""
        hosts = Hosts(names)
        for host, fault in self.request.faults_of_hosts():
            if host is not None and host not in hosts:
                raise UserError(f"--fault {host}:{fault}: no node of this check is called {host}: {hostlist(names)}")

    def _plan(self, count: int | None, names: tuple[str, ...]) -> ClusterRunPlan:
        request = self.request
        return ClusterRunPlan(
            level=request.level,
            backend=request.backend,
            count=count,
            names=names,
            join_limit_s=request.deadline_s or _JOIN_S,
            check_limit_s=_READ_S + run_limit_s(request.level),
            open_limit_s=_OPEN_S,
            rendezvous_limit_s=request.deadline_s or _RENDEZVOUS_S["gloo" if request.backend == "gloo" else "nccl"],
            floor_gb_s=request.at_least_gbit_s / 8 if request.at_least_gbit_s is not None else None,
        )

    def _keep(self, name: str, hostname: str, report: str) -> None:
        """Write the node's own report under a file name that is valid and unique in that folder."""
        if self.request.reports is None:
            return
        path = self.request.reports / file_name(name, {Path(retained).name for retained in self.files.values()})
        try:
            write_file(path, report)
        except OutputError as error:  # the nodes are judged all the same
            say(f"error: {error}; the report of {name} is not kept")
            self._not_kept = True
            return
        self.files[name] = str(path)


def file_name(node: str, taken: Collection[str]) -> str:
    """The file name of a node's report: the node's name, with a digest if it is not a valid file name.

    Two nodes never share a file name (`a/b` and `a_b`), and a node has the same one in each run unless nodes choose
    colliding names on purpose.
    """
    name = "".join(c if c.isalnum() or c in "-._#" else "_" for c in node).lstrip(".")[:_NAME_MAX] or "node"
    digest = hashlib.sha256(node.encode("utf-8", "surrogatepass")).hexdigest()
    if name != node:
        name += f"-{digest[:8]}"
    while f"{name}.json" in taken:
        name += f"-{digest[:8]}"
    return f"{name}.json"


def silence_s(request: ClusterCheckRequest) -> float:
    """After how many seconds without any response a host counts as lost."""
    return min(DEFAULT_SILENCE_S, request.deadline_s or DEFAULT_SILENCE_S)


def could_not(request: ClusterCheckRequest, launcher: str, message: str, output: ClusterOutput) -> int:
    """Print the error and write a report with it; return exit code 2."""
    say(f"error: {message}")
    return output.write(error_report(request.level, launcher, request.nodes, request.argv, message))


def error_report(
    level: Level, launcher: str, nodes: int | None, argv: tuple[str, ...], message: str, code: int = COULD_NOT
) -> ClusterReport:
    """A report in which nothing was judged, with the reason."""
    run = ClusterRun(str(uuid.uuid4()), rfc3339(time.time()), 0.0, level, launcher, nodes, tuple(argv))
    return ClusterReport(SCHEMA, Tool(), run, "unknown", code, COULD_NOT_REASON, error=printable(message))
