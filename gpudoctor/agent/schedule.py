"""Runs the check on a schedule, one run at a time, and holds the current status between runs."""

from __future__ import annotations

import asyncio
import os
import random
import time

import msgspec

from gpudoctor.agent.node_status import Last, Moment, NodeStatus, ScrapeFigures, no_report, status_at, streaks_after
from gpudoctor.agent.quick_run import QuickRun
from gpudoctor.agent.state import StateDirectory, now
from gpudoctor.exits import say
from gpudoctor.process.ending import end_leftovers
from gpudoctor.report.model import Report, SourceSummary

_LOOK_S = 0.05
_NAP_MAX_S = 30.0  # asyncio's clock stops while the machine is suspended
SOFT_S, HARD_S = 4.0, 2.0  # a check needs less than a second to end after SIGTERM
END_SOFT_S, END_HARD_S = 0.9, 0.6  # the agent must end within 2 s


class SchedulePlan(msgspec.Struct, frozen=True):
    """What to run and when; times in seconds. `command` writes a report as JSON to its stdout."""

    command: tuple[str, ...]
    host: str
    source: SourceSummary
    interval_s: float
    jitter_s: float
    deadline_s: float
    strikes: int

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

    def status(self) -> NodeStatus:
        """The node's status now."""
        plan = self.plan
        return status_at(
            self._last, now(), interval_s=plan.interval_s, deadline_s=plan.deadline_s, strikes=plan.strikes
        )

    def scrape_figures(self) -> ScrapeFigures:
        """What the metrics are made from."""
        simulated = self.plan.source.kind == "simulated"
        return ScrapeFigures(self.status(), self.plan.interval_s, dict(self._runs), self._state_kept, simulated)

    async def once(self) -> None:
        """Run the check once, now."""
        began = now()
        self._record(await self._outcome(), began, now(), quiet=True)

    async def run(self) -> None:
        due_s = first_due_s(self._last, now(), self.plan.interval_s, random.uniform(0.0, self.plan.jitter_s))
        while True:
            await _sleep_until(due_s)
            began = now()
            outcome = await self._outcome()
            self._record(outcome, began, now())
            due_s = next_due_s(due_s, now().since_boot_s, self.plan.interval_s)

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
        left = await _clear_leftovers()
        if left:
            return (
                f"process {left[0]} of an earlier run cannot be killed (it waits in the kernel, for the driver): "
                "nothing is started beside it"
            )
        try:
            run = QuickRun(self.plan.command, os.environ)
        except OSError as error:
            return f"the check cannot be started: {error.strerror or error}"
        try:
            if not await _over_within(run, self.plan.deadline_s):
                return await self._ended(run)
        except asyncio.CancelledError:
            _end_now(run)
            raise
        outcome = run.outcome()
        await _clear_leftovers()
        if isinstance(outcome, Report) and outcome.run.interrupted is not None:
            return f"the check was interrupted by {outcome.run.interrupted}"
        return outcome

    async def _ended(self, run: QuickRun) -> str:
        """End a run that is late; return why it has no report. A partial report is not used as a verdict."""
        run.end_softly()
        if not await _over_within(run, SOFT_S):
            run.end_hard()
        late = f"the check did not end in {self.plan.deadline_s:g} s"
        if not await _over_within(run, HARD_S):
            run.abandon()
            return f"{late}, and its process {run.pid} cannot be killed: it waits in the kernel, for the driver"
        run.outcome()
        await _clear_leftovers()
        return f"{late}, and was ended"


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


async def _sleep_until(due_s: float) -> None:
    while (left_s := due_s - now().since_boot_s) > 0:
        await asyncio.sleep(min(left_s, _NAP_MAX_S))


async def _over_within(run: QuickRun, limit_s: float) -> bool:
    give_up_s = time.monotonic() + limit_s
    while not run.over():
        if time.monotonic() > give_up_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def _clear_leftovers() -> tuple[int, ...]:
    """End the processes that earlier runs left behind; return the ids of those still there after `HARD_S`."""
    give_up_s = time.monotonic() + HARD_S
    while (left := end_leftovers()) and time.monotonic() < give_up_s:
        await asyncio.sleep(_LOOK_S)
    return left


def _end_now(run: QuickRun) -> None:
    """End the run with blocking waits: the event loop is shutting down."""
    for end, limit_s in ((run.end_softly, END_SOFT_S), (run.end_hard, END_HARD_S)):
        end()
        give_up_s = time.monotonic() + limit_s
        while time.monotonic() < give_up_s:
            if run.over():
                end_leftovers()
                return
            time.sleep(_LOOK_S)
    run.abandon()
    end_leftovers()
