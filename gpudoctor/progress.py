"""Progress of a check on stderr: JSON lines for programs, one rewritten line for a terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from gpudoctor.json_text import terminal_safe
from gpudoctor.lazy_import import lazy_imports
from gpudoctor.output import is_terminal, printable
from gpudoctor.process.ending import send_signal

with lazy_imports():
    import threading

    from gpudoctor.probes.runner import messages as rank_messages

# README: a standard check of this machine's GPUs takes about half a minute
USUAL_STANDARD_S = 30.0


class ProgressLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is starting now: `progress` in words ("all_reduce of 64 MiB").

    `rank` and `probe` (launch, collective, link, compute, train) are set if a rank reported it. `left_s`: seconds that
    the whole run usually still takes; absent if unknown.
    """

    progress: str
    rank: int | None = None
    probe: str | None = None
    left_s: float | None = None


class ProgressLines:
    """Writes progress as JSON lines; called with words, and through `hear` with the messages of ranks.

    `write` takes one line without its newline. `duration_s`: how long a burn keeps up its load, in seconds.
    """

    def __init__(
        self, write: Callable[[str], None], duration_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._duration_s = duration_s
        self._clock = clock
        self._began_s = clock()
        self._ends_s: float | None = None
        self._said: dict[int, tuple[str, str]] = {}

    def __call__(self, words: str) -> None:
        # empty words clear the line of a terminal
        if words:
            self._tell(ProgressLine(words))

    def expect(self, total_s: float) -> None:
        """Set how long the whole run usually takes, in seconds from its start."""
        self._ends_s = self._began_s + total_s

    def hear(self, rank: int, message: object) -> None:
        """Report the message of a rank if it starts a new phase; those of the launcher (rank below 0) never do."""
        if rank < 0 or not isinstance(message, rank_messages.Phase):
            return
        if self._said.get(rank) == (message.probe, message.text):
            return
        self._said[rank] = (message.probe, message.text)
        if self._duration_s is not None and self._ends_s is None and message.probe != "launch":
            self._ends_s = self._clock() + self._duration_s
        self._tell(ProgressLine(message.text, rank, message.probe))

    def _tell(self, line: ProgressLine) -> None:
        left_s = None if self._ends_s is None else round(self._ends_s - self._clock(), 1)
        if left_s is not None and left_s > 0:
            line = msgspec.structs.replace(line, left_s=left_s)
        self._write(terminal_safe(msgspec.json.encode(line)).decode())


def terminal_progress() -> Callable[[str], None] | None:
    """A function that rewrites one line of stderr; None if stderr is not a terminal."""
    if not is_terminal(sys.stderr):
        return None

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{printable(text)[:76]}")
        sys.stderr.flush()

    return show


def progress_to_stderr(duration_s: float | None) -> ProgressLines:
    """Progress lines on stderr; when its reader has gone, the run ends as if by SIGTERM.

    A program that asked for progress lines and has ended cannot take the report either, and the load must not continue
    without it.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # not a file, closed, or not there at all
        pass
    else:
        threading.Thread(target=_end_with_reader, args=(descriptor,), daemon=True).start()
    return ProgressLines(_write_line, duration_s)


def _write_line(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def _end_with_reader(descriptor: int) -> None:
    """Wait until the other end of a pipe, socket or terminal is closed (never, for a file), then send SIGTERM."""
    poll = select.poll()
    poll.register(descriptor, 0)  # poll always reports errors and hang-ups
    while True:
        events = poll.poll()
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
            send_signal(os.getpid(), signal.SIGTERM)
            return
        if any(event & select.POLLNVAL for _, event in events):
            return
