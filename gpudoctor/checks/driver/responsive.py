"""driver.responsive: does every driver call return, and how long does the driver take to start?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import READINGS, VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.deadlines import START
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Driver, Unanswered
from gpudoctor.statements.xids import STOPPED_CODES

_HANGS = "the driver or the GPU's own processor (GSP) hangs; every tool that asks will hang with it"
_CRASHES = "the driver's library crashed; every program that makes this call will crash with it"
_STARTS_THE_GPU = ("nvmlInit", "nvmlDeviceGetHandle", "nvmlDeviceGetCount")
WAKING = "time to start the driver and its GPUs"
_WORTH_TELLING_S = 1.0


_INIT_S = Limit(
    10,
    "s",
    "a driver that is awake answers at once; 8 GPUs that it has to start take 2 to 10 s",
    name="init_s",
    status="warn",
)
_WAKE_S = Limit(
    4, "s", "for each GPU without persistence mode: 1 to 3 s is usual, one after another", name="wake_s", status="warn"
)
_CALL_S = Limit(5, "s", "calls of more than 5 s come before a hang (field reports)", name="call_s", status="warn")
_HUNG_START_S = Limit(START.seconds, "s", START.source, name="hung_start_s")


@check(
    "driver.responsive",
    title="Every driver call answered in time",
    impact="no-work",
    needs_gpu=False,
    limits=(_INIT_S, _WAKE_S, _CALL_S, _HUNG_START_S),
    explains=(
        *("driver.loaded", "gpu.lost", *VIEWS),
        Explains(READINGS, gaps=True),
        Explains(("gpu.xid",), found=STOPPED_CODES),
    ),
)
def responsive(case: Case) -> Iterator[Finding]:
    """Fail for each call that did not return; warn if the driver is slow."""
    driver = case.node.driver
    unanswered = (*driver.unanswered, *case.measurements.unanswered)
    start, call = _slowest_start(case), _slowest_call(case)
    slow = [wait for wait in (start, call) if wait is not None and wait.took_s > wait.limit_s]
    yield from (_not_answered(case, hung) for hung in unanswered)
    yield from map(_slow, slow)
    if unanswered or slow:
        return
    calls = driver.calls
    if isinstance(calls, Missing):
        yield unread(NODE, "driver calls", calls)
        return
    if calls == 0:
        yield skip(NODE, "no driver call was made: there is no driver to ask")
        return
    slowest = known(driver.slowest_call_s)
    text = f"{calls} calls answered" + (f", the slowest in {slowest:.3g} s" if slowest is not None else "")
    yield ok(NODE, Found(text, slowest, "s" if slowest is not None else None))
    if start is not None and start.took_s >= _WORTH_TELLING_S:
        yield ok(NODE, Found(start.words, start.took_s, "s"), start.expected, Evidence(WAKING, f"{start.took_s:.3g} s"))


def _not_answered(case: Case, hung: Unanswered) -> Finding:
    subject, start_s = _subject(case, hung.gpu), case.limit(_HUNG_START_S)
    on_gpu = f" on GPU {hung.gpu}" if hung.gpu is not None else ""
    text = f"{hung.call}{on_gpu} {hung.reason} within {hung.waited_s:g} s" if hung.hangs else hung.words
    evidence = Evidence(hung.call, f"{hung.reason} ({hung.waited_s:g} s)")
    if hung.hangs and hung.call.startswith(_STARTS_THE_GPU) and hung.waited_s < start_s:
        # without persistence mode the call starts the GPU, which may take long on healthy nodes
        advice = Advice("Give it time.", f"gpudoctor check driver --level quick --deadline {start_s + 10:g}")
        return unknown(subject, f"{text}; a driver that has to wake its GPUs may need more", evidence, advice=[advice])
    if hung.killed:
        # the kernel kills a process if the driver's module fails (oops) in its call, or if memory runs out
        advice = Advice("Look which it was, and check again.", "dmesg | grep -iE 'oops|bug:|killed process'")
        return unknown(
            subject, f"{text}: the driver's kernel module went wrong, or memory ran out", evidence, advice=[advice]
        )
    return fail(
        subject,
        Found(text, hung.waited_s, "s"),
        Expected("an answer before the deadline", "<=", hung.waited_s, "s", "deadline of the reader"),
        evidence,
        likely=_HANGS if hung.hangs else _CRASHES,
        advice=[
            "Drain the node; do not start more tools that call the driver.",
            Advice(
                "Look for Xid 119, 120 or 79 and for processes in state D.",
                "dmesg | grep -i xid; ps -eo pid,stat,comm | grep ' D'",
            ),
            "Reset the GPU if it lets you, else power-cycle the node: a plain reboot may hang too.",
        ],
    )


class _Wait(NamedTuple):
    """How long the driver took for a call, or to start all GPUs, and how long it may take.

    `what` is the source of the evidence, `words` the text of the finding.
    """

    subject: Subject
    what: str
    words: str
    took_s: float
    limit_s: float
    source: str

    @property
    def expected(self) -> Expected:
        return Expected(f"at most {self.limit_s:g} s", "<=", self.limit_s, "s", self.source)


def _slowest_start(case: Case) -> _Wait | None:
    """The longest measured start time; None if none was measured.

    Unless persistence mode is known to be on for every GPU, the driver gets the time to wake them.
    """
    driver, gpus = case.node.driver, case.node.gpus
    times = [known(driver.init_s), known(driver.start_s)]
    if _starts_a_gpu(driver):  # for facts recorded before `start_s` existed
        times.append(known(driver.slowest_call_s))
    measured = [seconds for seconds in times if seconds is not None]
    if not measured:
        return None
    took_s = max(measured)
    limit_s, limit = case.limit(_INIT_S), _INIT_S
    persistence = [known(gpu.settings.persistence) for gpu in gpus]
    asleep_s = case.limit(_WAKE_S) * (known(driver.device_count) or len(gpus))
    if not all(persistence) and asleep_s >= limit_s:
        limit_s, limit = asleep_s, _WAKE_S
    if False in persistence:
        text = f"persistence mode is off: the driver took {took_s:.3g} s to wake"
    else:
        text = f"the driver took {took_s:.3g} s to start"
    return _Wait(NODE, WAKING, text, took_s, limit_s, case.limit_source(limit))


def _starts_a_gpu(driver: Driver) -> bool:
    return (known(driver.slowest_call) or "").startswith(_STARTS_THE_GPU)


def _slowest_call(case: Case) -> _Wait | None:
    driver = case.node.driver
    call, took_s = known(driver.slowest_call) or "a driver call", known(driver.slowest_call_s)
    if took_s is None or _starts_a_gpu(driver):
        return None
    on_gpu = re.search(r" on GPU ([0-9]{1,6})$", call)
    subject, text = _subject(case, int(on_gpu[1]) if on_gpu else None), f"{call} took {took_s:.3g} s"
    return _Wait(subject, call, text, took_s, case.limit(_CALL_S), case.limit_source(_CALL_S))


def _slow(wait: _Wait) -> Finding:
    return warn(
        wait.subject,
        Found(wait.words, wait.took_s, "s"),
        wait.expected,
        Evidence(wait.what, f"{wait.took_s:.3g} s"),
        likely="a GPU is slow to wake or its processor (GSP) is in trouble",
        advice=[
            Advice("Keep the driver awake, so that its start is paid once.", "nvidia-smi -pm 1"),
            Advice("Look for GSP timeouts.", "dmesg | grep -i -e xid -e gsp"),
            "Run gpudoctor check driver again: if it stays slow, drain the node before it hangs.",
        ],
    )


def _subject(case: Case, index: int | None) -> Subject:
    if index is None:
        return NODE
    gpu = next((g for g in case.node.gpus if g.index == index), None)
    return of_gpu(gpu) if gpu else Subject(kind="gpu", gpu=index)
