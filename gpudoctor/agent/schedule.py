"""Runs the check on a schedule, one run at a time, and holds the current status between runs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from gpudoctor.agent.events import EventWatch, WakeUp
from gpudoctor.agent.node_status import Last, Moment, NodeStatus, ScrapeFigures, no_report, status_at, streaks_after
from gpudoctor.agent.state import StateDirectory, now
from gpudoctor.api.check_child import CheckChild
from gpudoctor.process.ending import end_leftovers, ending_words
from gpudoctor.report.model import Report, SourceSummary
from gpudoctor.text.output import say

_LOOK_S = 0.05
_NAP_MAX_S = 30.0  # asyncio's clock stops while the machine is suspended
SOFT_S, HARD_S = 4.0, 2.0  # a check needs less than a second to end after SIGTERM
_END_S = 0.8  # after SIGTERM, and after SIGKILL: the agent must end within 2 s
TOKEN_VARIABLE = "GPUDOCTOR_AGENT_TOKEN"
# a quick report of 16 GPUs is below 1 MiB
OUTPUT_BYTES_MAX = 16 << 20
MESSAGE_MAX = 300


class SchedulePlan(msgspec.Struct, frozen=True):
    """What to run and when; times in seconds. `command` writes a report as JSON to its stdout."""

    command: tuple[str, ...]
    host: str
    source: SourceSummary
    interval_s: float
    jitter_s: float
    deadline_s: float
    strikes: int
    events: bool = False

    @property
    def prefix(self) -> str:
        """The prefix of every line about a node that is not this machine."""
        if self.source.kind == "simulated":
            return "SIMULATED "
        return "" if self.source.kind == "live" else f"({self.source.kind} {self.source.name}) "


class Schedule:
    """The agent's runs. `run` never returns; when it is cancelled it leaves no process behind."""

    def __init__(self, plan: SchedulePlan, state: StateDirectory) -> None:
        self.plan = plan
        self._state = state
        self._last: Last | None = state.load()
        self._runs = {"report": 0, "none": 0}
        self._state_kept = True
        self._said: str | None = None
        self._watch: EventWatch | None = None

    def status(self) -> NodeStatus:
        plan = self.plan
        return status_at(
            self._last, now(), interval_s=plan.interval_s, deadline_s=plan.deadline_s, strikes=plan.strikes
        )

    def scrape_figures(self) -> ScrapeFigures:
        simulated = self.plan.source.kind == "simulated"
        return ScrapeFigures(self.status(), self.plan.interval_s, dict(self._runs), self._state_kept, simulated)

    async def once(self) -> None:
        began = now()
        self._record(await self._outcome(), began, now(), quiet=True)

    async def run(self) -> None:
        due_s = first_due_s(self._last, now(), self.plan.interval_s, random.uniform(0.0, self.plan.jitter_s))
        wake_up = WakeUp()
        self._watch = EventWatch(wake_up.wake) if self.plan.events else None
        try:
            while True:
                woken = await _woken_before(due_s, wake_up)
                began = now()
                outcome = await self._outcome()
                self._record(outcome, began, now())
                if not woken:
                    due_s = next_due_s(due_s, now().since_boot_s, self.plan.interval_s)
        finally:
            if self._watch is not None:
                self._watch.close()

    @property
    def _own(self) -> frozenset[int]:
        """The processes that are no leftovers of a run."""
        return frozenset() if self._watch is None else self._watch.pids

    def _record(self, outcome: Report | str, began: Moment, ended: Moment, *, quiet: bool = False) -> None:
        if isinstance(outcome, str):
            self._runs["none"] += 1
            report = no_report(outcome, began, ended, self.plan.host, self.plan.source)
        else:
            self._runs["report"] += 1
            report = outcome
        strikes = streaks_after(self._last.strikes if self._last else (), report)
        self._last = Last(began, ended, report, strikes)
        self._state_kept = self._state.save(self._last)
        line = report.reason if report.error is None else f"UNKNOWN {report.error}"
        if line != self._said and not quiet:  # logged only when it changes: nobody reads a log that repeats itself
            say(f"{self.plan.prefix}{line}")
        self._said = line

    async def _outcome(self) -> Report | str:
        """Run the check once; return its report, or why there is none."""
        left = await _clear_leftovers(self._own)
        if left:
            return (
                f"process {left[0]} of an earlier run cannot be killed (it waits in the kernel, for the driver): "
                "nothing is started beside it"
            )
        try:
            check = quick_check(self.plan.command, os.environ)
        except OSError as error:
            return f"the check cannot be started: {error.strerror or error}"
        try:
            if not await _ends_within(check, self.plan.deadline_s):
                return await self._ended(check)
        except asyncio.CancelledError:  # the event loop is shutting down: the waits block
            check.end(_END_S)
            end_leftovers()
            raise
        finally:
            check.stop_reading()
        outcome = outcome_of(check)
        await _clear_leftovers(self._own)
        if isinstance(outcome, Report) and outcome.run.interrupted is not None:
            return f"the check was interrupted by {outcome.run.interrupted}"
        return outcome

    async def _ended(self, check: CheckChild) -> str:
        """End a check that is late; return why it has no report. A partial report is not used as a verdict."""
        late = f"the check did not end in {self.plan.deadline_s:g} s"
        for number, limit_s in ((signal.SIGTERM, SOFT_S), (signal.SIGKILL, HARD_S)):
            check.send(number, group=True)
            if await check.exit_status(limit_s) is not None:
                await _clear_leftovers(self._own)
                return f"{late}, and was ended"
        check.abandon()
        return f"{late}, and its process {check.pid} cannot be killed: it waits in the kernel, for the driver"


def first_due_s(last: Last | None, at: Moment, interval_s: float, jitter_s: float) -> float:
    """When the first run is due, in seconds since boot: an interval after the last run of this boot, else soon."""
    age_s = None if last is None else last.began.age_s(at)
    if age_s is not None and age_s < interval_s:
        return at.since_boot_s - age_s + interval_s
    return at.since_boot_s + min(jitter_s, interval_s)


def next_due_s(due_s: float, at_s: float, interval_s: float) -> float:
    """When the next run is due. Runs that fell due during a longer run are skipped, not caught up on."""
    missed = max(0.0, (at_s - due_s) // interval_s)
    return due_s + (missed + 1) * interval_s


async def _woken_before(due_s: float, wake_up: WakeUp) -> bool:
    """Wait until the run is due or an event asks for one; whether it was an event."""
    while (left_s := due_s - now().since_boot_s) > 0:
        if await wake_up.within(min(left_s, _NAP_MAX_S)):
            return True
    return False


async def _ends_within(check: CheckChild, limit_s: float) -> bool:
    try:
        await asyncio.wait_for(check.to_its_end(), limit_s)
    except asyncio.TimeoutError:
        return False
    return True


async def _clear_leftovers(spare: Collection[int]) -> tuple[int, ...]:
    """End the processes that earlier runs left behind; return the ids of those still there after `HARD_S`."""
    give_up_s = time.monotonic() + HARD_S
    while (left := end_leftovers(spare)) and time.monotonic() < give_up_s:
        await asyncio.sleep(_LOOK_S)
    return left


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without the variables that are for the agent only."""
    return {name: value for name, value in environ.items() if name not in (TOKEN_VARIABLE, "NOTIFY_SOCKET")}


def quick_check(command: Sequence[str], environ: Mapping[str, str]) -> CheckChild:
    """The child that runs one check. Raise OSError."""
    return CheckChild(command, OUTPUT_BYTES_MAX, message_length=MESSAGE_MAX, env=environment(environ))


def outcome_of(check: CheckChild) -> Report | str:
    """The report of a check that has ended, or why there is none; one that it contradicts by its exit code is none."""
    outcome, status = check.outcome("the check"), check.returncode
    if isinstance(outcome, str) or outcome.exit_code == status:
        return outcome
    return (
        f"the check ended otherwise than its report says ({ending_words(status)}, not {outcome.exit_code}){check.said}"
    )
