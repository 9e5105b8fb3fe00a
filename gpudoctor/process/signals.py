"""SIGINT, SIGTERM and SIGHUP of the main process: the first ends the work, and the report is still written whole."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gpudoctor.process.ending import ENDING_SIGNALS

# people press Ctrl-C more than once; service managers send SIGTERM and SIGHUP together
_PATIENCE_S = 2.0
_ignored: set[int] = set()
_ignored_at_start: tuple[int, ...] = ()


class InterruptedBySignal(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; `exit_code` is 128 + its number, as in the shell."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number


class WritingAbandoned(InterruptedBySignal):
    """A second signal arrived a while after the first: the report could not be written in time."""


def catch_signals() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into InterruptedBySignal in the main thread; SIGHUP stays ignored under nohup.

    The first signal unwinds the stack, so that ranks are ended and a partial report is made; further ones are ignored
    meanwhile, so that no process is left behind.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _overhear_all()
        raise InterruptedBySignal(number)

    global _ignored_at_start
    _ignored_at_start = tuple(n for n in ENDING_SIGNALS if signal.getsignal(n) is signal.SIG_IGN)
    _ignored.clear()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        _ignored.add(signal.SIGHUP)
    for number in ENDING_SIGNALS:
        if number not in _ignored:
            signal.signal(number, handle)
    # a parent that blocked them passed its mask on: only SIGKILL would end this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    # also inherited: with SIG_IGN the kernel keeps no exit status, and every child would seem to have succeeded
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def signals_postponed() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP that arrive in the block act at its end: for the moment in which something is made
    and not yet owned by anyone who would remove it.

    A handler runs in the main thread, whichever thread the signal came to, so in other threads this does nothing.
    """
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING_SIGNALS:
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    before[number] = handler
                    signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def ignored_at_start() -> tuple[int, ...]:
    """The ending signals that our caller ignores, as `nohup` and `&` in a script do: a command inherits that."""
    return _ignored_at_start


def _overhear_all() -> None:
    # not SIG_IGN: Python prints an error if a signal arrived just before
    for number in ENDING_SIGNALS:
        signal.signal(number, _overhear)


def ignore_signals() -> None:
    """Let no signal change the exit code any more: the interpreter is about to end."""
    _overhear_all()
    # block them first: Python prints an error if a signal arrived just before SIG_IGN
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _overhear(number: int, frame: FrameType | None) -> None:
    """Ignore a signal after the first."""


def hold_signals(came: InterruptedBySignal | None = None) -> list[int]:
    """Record the first signal in the returned list instead of raising it, so that the report is written whole.

    `came` is a first signal that has arrived already. Further ones are ignored for 2 s; after that one raises
    WritingAbandoned, since stdout may be a pipe without a reader. If the process is still alive 2 s later, the next
    one ends it at once.
    """
    noted = [] if came is None else [came.number]
    last_s = time.monotonic()
    abandoned = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal last_s, abandoned
        if not noted:
            noted.append(number)
            last_s = time.monotonic()
        elif time.monotonic() - last_s < _PATIENCE_S:
            return
        elif abandoned:
            os._exit(128 + number)
        else:
            abandoned, last_s = True, time.monotonic()
            raise WritingAbandoned(number)

    for number in ENDING_SIGNALS:
        if number not in _ignored:
            signal.signal(number, note)
    return noted
