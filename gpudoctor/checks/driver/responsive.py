"""Does every call of the driver come back, and how long does the driver take to start?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import VIEWS
from gpudoctor.checks.core.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    Subject,
    fail,
    of_gpu,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.facts.deadlines import START
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Driver

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
        "driver.loaded",
        "gpu.*",
        "pcie.*",
        "nvlink.*",
        "topology.*",
        *VIEWS,
    ),
)
def responsive(case: Case) -> Iterator[Finding]:
    """Fail for each call that did not return; warn where the driver is slow."""
    driver = case.node.driver
    unanswered = (*driver.unanswered, *case.measurements.unanswered)
    for hung in unanswered:
        where = f" on GPU {hung.gpu}" if hung.gpu is not None else ""
        text = f"{hung.call}{where} {hung.reason} within {hung.waited_s:g} s" if hung.hangs else hung.words
        start_s = case.limit(_HUNG_START_S)
        if hung.hangs and hung.call.startswith(_STARTS_THE_GPU) and hung.waited_s < start_s:
            # without persistence mode it wakes the GPU, which healthy nodes may take long for
            yield unknown(
                _subject(case, hung.gpu),
                f"{text}; a driver that has to wake its GPUs may need more",
                Evidence(hung.call, f"{hung.reason} ({hung.waited_s:g} s)"),
                advice=[Advice("Give it time.", f"gpudoctor check driver --level quick --deadline {start_s + 10:g}")],
            )
            continue
        if "SIGKILL" in hung.reason:
            # so ends the kernel who is in a driver's module that goes wrong, but also who takes too much memory
            yield unknown(
                _subject(case, hung.gpu),
                f"{text}: the driver's kernel module went wrong, or memory ran out",
                Evidence(hung.call, f"{hung.reason} ({hung.waited_s:g} s)"),
                advice=[Advice("Look which it was, and check again.", "dmesg | grep -iE 'oops|bug:|killed process'")],
            )
            continue
        yield fail(
            _subject(case, hung.gpu),
            Found(text, hung.waited_s, "s"),
            Expected("an answer before the deadline", "<=", hung.waited_s, "s", "deadline of the reader"),
            Evidence(hung.call, f"{hung.reason} ({hung.waited_s:g} s)"),
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
    woken = _waking(case)
    slow = tuple(_slow(case, woken))
    yield from slow
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
    if woken is not None and woken.took_s >= _WORTH_TELLING_S:
        yield ok(NODE, Found(woken.words, woken.took_s, "s"), woken.expected, Evidence(WAKING, f"{woken.took_s:.3g} s"))


class _Waking(NamedTuple):
    """How long the driver took to start all GPUs, in seconds and in words, and how long it may."""

    took_s: float
    words: str
    limit_s: float
    expected: Expected


def _waking(case: Case) -> _Waking | None:
    """None where nobody told; GPUs whose persistence mode is not known to be on may have slept."""
    driver, gpus = case.node.driver, case.node.gpus
    times = [known(driver.init_s), known(driver.start_s)]
    if _starts_a_gpu(driver):  # as facts have it that were recorded before `start_s` was
        times.append(known(driver.slowest_call_s))
    told = [seconds for seconds in times if seconds is not None]
    if not told:
        return None
    took_s = max(told)
    limit_s, limit = case.limit(_INIT_S), _INIT_S
    if any(known(gpu.settings.persistence) is not True for gpu in gpus):
        asleep_s = case.limit(_WAKE_S) * (known(driver.device_count) or len(gpus))
        if asleep_s >= limit_s:
            limit_s, limit = asleep_s, _WAKE_S
    if any(known(gpu.settings.persistence) is False for gpu in gpus):
        words = f"persistence mode is off: the driver took {took_s:.3g} s to wake"
    else:
        words = f"the driver took {took_s:.3g} s to start"
    return _Waking(took_s, words, limit_s, _at_most(case, limit_s, limit))


def _at_most(case: Case, limit_s: float, limit: Limit) -> Expected:
    return Expected(f"at most {limit_s:g} s", "<=", limit_s, "s", case.limit_source(limit))


def _starts_a_gpu(driver: Driver) -> bool:
    return (known(driver.slowest_call) or "").startswith(_STARTS_THE_GPU)


def _slow(case: Case, woken: _Waking | None) -> Iterator[Finding]:
    driver = case.node.driver
    slow = []
    if woken is not None and woken.took_s > woken.limit_s:
        slow.append((NODE, woken.words, WAKING, woken.took_s, woken.expected))
    call, took_s = known(driver.slowest_call) or "a driver call", known(driver.slowest_call_s)
    limit_s = case.limit(_CALL_S)
    if took_s is not None and took_s > limit_s and not _starts_a_gpu(driver):
        on_gpu = re.search(r" on GPU ([0-9]{1,6})$", call)
        subject = _subject(case, int(on_gpu[1]) if on_gpu else None)
        slow.append((subject, f"{call} took {took_s:.3g} s", call, took_s, _at_most(case, limit_s, _CALL_S)))
    for subject, text, what, took_s, expected in slow:
        yield warn(
            subject,
            Found(text, took_s, "s"),
            expected,
            Evidence(what, f"{took_s:.3g} s"),
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
