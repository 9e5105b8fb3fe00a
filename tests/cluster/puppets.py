"""Members of a made-up job: they speak the real protocol to a real hub, with scripted answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import msgspec

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.registry import Level, all_checks
from gpudoctor.cluster.check.cluster_run import ClusterSession
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.judge import judge_cluster
from gpudoctor.cluster.check.member import HubGoneError, Member
from gpudoctor.cluster.check.messages import (
    Answer,
    Answered,
    Asked,
    Challenge,
    Checked,
    CheckOrder,
    End,
    JoinGroup,
    Line,
    LineError,
    MemberFailure,
    Open,
    Order,
    Ping,
    Pong,
    Ready,
    Times,
    Welcome,
    hello_of,
)
from gpudoctor.cluster.check.model import ClusterReport, ClusterRun, ClusterRunPlan
from gpudoctor.errors import UserError
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.simulated.load import apply_faults
from gpudoctor.facts.system.network import LocalInterface, Reach
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report, render_json

TOKEN = "of the test"
SIZE_BYTES = 1 << 20


class Puppet(threading.Thread):
    """A member on a node `name`, number `index` of the job; `rate` gives its GB/s with the group of a meeting."""

    def __init__(self, name: str, index: int | None = None) -> None:
        super().__init__(daemon=True)
        self.hostname, self.index = name, index
        self.reach = Reach(
            hostname=name,
            resolved=("10.0.0.1",),
            interfaces=(LocalInterface("eth0", True, 9000, ("127.0.0.1",)),),
            rdma_ports=(),
            boot_id=f"boot of {name} {id(self)}",
        )
        self.report: str | Missing = ""
        self.clock_ahead_s: float | None = 0.0
        self.ready: Ready | MemberFailure = Ready(1, 29500)
        self.right = True
        self.instead: dict[type[Order], Answer | None] = {}  # of its own answer to such an order
        self.rate: Callable[[JoinGroup], float | str | None] = lambda meet: 10.0
        self.meetings: list[JoinGroup] = []
        self.token = TOKEN
        self.port = 0
        self.ended = threading.Event()

    def reached(self, **changes: object) -> None:
        """Change what the node tells of its network."""
        self.reach = msgspec.structs.replace(self.reach, **changes)

    def run(self) -> None:
        try:
            self._serve()
        except (OSError, LineError):
            pass
        finally:
            self.ended.set()

    def join_hub(self, connection: socket.socket) -> Line:
        """Prove that it is of the job."""
        line = Line(connection)
        challenge = msgspec.json.decode(line.one(30.0), type=Challenge)
        hello = hello_of(self.token, challenge, self.hostname, self.index)
        line.send(hello)
        line.sign("member", self.token, challenge.nonce, hello.nonce)
        msgspec.json.decode(line.one(30.0), type=Welcome)
        return line

    def _serve(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            line = self.join_hub(connection)
            while True:
                asked = msgspec.json.decode(line.one(30.0), type=Asked)
                if isinstance(asked.order, End):
                    return
                answer = self.answer(asked.order)
                if answer is not None:
                    line.send(Answered(asked.number, answer))

    def answer(self, order: Order) -> Answer | None:
        """Its answer; None: never answer. To die it raises ConnectionAbortedError."""
        if type(order) in self.instead:
            return self.instead[type(order)]
        if isinstance(order, Ping):
            if self.clock_ahead_s is None:
                return MemberFailure("no clock")
            return Pong(time.time() + self.clock_ahead_s)
        if isinstance(order, CheckOrder):
            return Checked(self.reach, self.report)
        if isinstance(order, Open):
            return self.ready
        assert isinstance(order, JoinGroup)
        self.meetings.append(order)
        rate = self.rate(order)
        if rate is None:
            return None
        if isinstance(rate, str):
            return MemberFailure(rate, port=29501)
        seconds = SIZE_BYTES * 2 * (order.size - 1) / order.size / rate / 1e9
        return Times(((seconds, seconds),), SIZE_BYTES, (self.right,))


class RealMember(threading.Thread):
    """The node's own process, not a made-up one; `said` is why it ended early."""

    def __init__(self, hostname: str, port: int) -> None:
        super().__init__(daemon=True)
        self.said = ""
        self._member, self._port = Member([], hostname=hostname), port

    def run(self) -> None:
        try:
            self._member.serve([("127.0.0.1", self._port)], TOKEN, None, 30.0)
        except (HubGoneError, UserError) as error:
            self.said = str(error)


def report_of(
    puppets: Sequence[Puppet],
    *,
    count: int | None = None,
    names: tuple[str, ...] = (),
    limit_s: float = 30.0,
    floor_gb_s: float | None = None,
    slack_s: float = 20.0,
    level: Level = "quick",
    backend: Literal["auto", "nccl", "gloo"] = "gloo",
    silence_s: float = 10.0,
) -> ClusterReport:
    """Lead these members through all steps of a check, and judge; `limit_s` is that of their own checks."""
    hub = Hub(TOKEN, silence_s=silence_s)
    report = simulated_json()
    for puppet in puppets:
        puppet.port = hub.port
        puppet.report = puppet.report or report
        puppet.start()
    expected = len(puppets) if count is None else count
    plan = ClusterRunPlan(level, backend, expected, names, 30.0, limit_s, 30.0, 30.0, floor_gb_s, slack_s)
    session = ClusterSession(hub, plan, lambda text: None, lambda name, hostname, text: None)
    # a missing member is waited for as long as the others need
    session.run(lambda: len(hub.members) >= len(puppets))
    hub.close()
    for puppet in puppets:
        puppet.ended.wait(30)
    run = ClusterRun("id", "2026-01-01T00:00:00+00:00", 1.0, level, "test", expected)
    return judge_cluster(session, run)


@cache
def simulated_json(*faults: str) -> str:
    """The report of a simulated node with these faults."""
    node = load_source("hgx-h100-8").node
    if faults:
        node = apply_faults(node, faults)
    return render_json(judge(node, None, Question(checks=all_checks()), include_facts=True))


def loaded_json(measurements: Measurements) -> str:
    """The report of a healthy node on which this was measured."""
    report = msgspec.json.decode(simulated_json(), type=Report)
    return render_json(msgspec.structs.replace(report, measurements=measurements))


def job(*names: str) -> list[Puppet]:
    return [Puppet(name, index) for index, name in enumerate(names)]


def four() -> list[Puppet]:
    return job("a", "b", "c", "d")


def findings(report: ClusterReport, check: str, *statuses: Status) -> dict[str | None, Finding]:
    """The findings with one id, by subject."""
    judged = next(c for c in report.checks if c.id == check)
    return {f.subject.name: f for f in judged.findings if f.status in (statuses or tuple(Status))}


def text_of(report: ClusterReport, check: str, name: str | None, *statuses: Status) -> str:
    """What the finding on this subject says: what was found, or the reason why nothing was."""
    finding = findings(report, check, *statuses)[name]
    return finding.found.text if finding.found is not None else finding.reason or ""


def bad(report: ClusterReport) -> set[tuple[str, str | None, str]]:
    return {
        (check.id, f.subject.name, f.status.value)
        for check in report.checks
        for f in check.findings
        if f.status in (Status.FAIL, Status.WARN, Status.UNKNOWN)
    }
