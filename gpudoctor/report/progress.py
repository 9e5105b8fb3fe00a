"""Progress of a check on stderr: JSON lines for programs, one rewritten line for a terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.lazy import lazy_imports
from gpudoctor.process.ending import send_signal
from gpudoctor.text.json_text import terminal_safe
from gpudoctor.text.output import is_terminal, rewrite_line, write_stderr
from gpudoctor.text.units import duration_text

with lazy_imports():
    import threading

    from gpudoctor.probes.runner import messages as rank_messages

# README: a standard check of this machine's GPUs takes about half a minute
USUAL_STANDARD_S = 30.0


class ProgressLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is starting now: `progress` in words ("all_reduce of 64 MiB").

    `rank` and `probe` (launch, collective, link, compute, train) are set if a rank reported it, which is then in `step`
    of `steps`; `round` is set from the second time on that a burn repeats them. `elapsed_s`: seconds since the start.
    `left_s`: seconds that the whole run usually still takes; absent if unknown.
    """

    progress: str
    rank: int | None = None
    probe: str | None = None
    left_s: float | None = None
    step: int | None = None
    steps: int | None = None
    elapsed_s: float | None = None
    round: int | None = None

    @property
    def words(self) -> str:
        """ "step 2 of 3, 14 s, about 16 s left: all_reduce of 1 MiB"."""
        parts = [
            *([f"round {self.round}"] if self.round else []),
            *([f"step {self.step} of {self.steps}"] if self.step else []),
            *([duration_text(self.elapsed_s)] if self.elapsed_s is not None else []),
            *([f"about {duration_text(self.left_s)} left"] if self.left_s else []),
        ]
        return f"{', '.join(parts)}: {self.progress}" if parts else self.progress


class ProgressLines:
    """Progress as lines for `show`; called with words, and through `hear` with the messages of ranks.

    `show` gets None when there is nothing more to tell. `duration_s`: how long a burn keeps up its load, in seconds.
    """

    def __init__(
        self,
        show: Callable[[ProgressLine | None], None],
        duration_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._duration_s = duration_s
        self._clock = clock
        self._began_s = clock()
        self._ends_s: float | None = None
        self._steps: tuple[str, ...] = ()
        self._said: dict[int, tuple[str, str]] = {}
        self._rounds: dict[int, int] = {}

    def __call__(self, text: str) -> None:
        # empty words clear the line of a terminal
        if text:
            self._tell(ProgressLine(text))
        else:
            self._show(None)

    def expect(self, probes: Iterable[str], total_s: float | None) -> None:
        """Set what ranks will run, in this order, and how long the whole run usually takes from its start."""
        self._steps = ("launch", *probes)
        self._ends_s = None if total_s is None else self._began_s + total_s

    def hear(self, rank: int, message: object) -> None:
        """Report the message of a rank if it starts a new phase; those of the launcher (rank below 0) never do."""
        if rank < 0:
            return
        if isinstance(message, rank_messages.Finished) and message.probe in self._steps[-1:]:
            self._rounds[rank] = self._rounds.get(rank, 1) + 1
            self._said.pop(rank, None)
        if not isinstance(message, rank_messages.Phase):
            return
        if self._said.get(rank) == (message.probe, message.text):
            return
        self._said[rank] = (message.probe, message.text)
        if self._duration_s is not None and self._ends_s is None and message.probe != "launch":
            self._ends_s = self._clock() + self._duration_s
        line = ProgressLine(message.text, rank, message.probe, round=self._rounds.get(rank))
        if message.probe in self._steps:
            steps = self._steps
            line = msgspec.structs.replace(line, step=steps.index(message.probe) + 1, steps=len(steps))
        self._tell(line)

    def _tell(self, line: ProgressLine) -> None:
        now_s = self._clock()
        left_s = None if self._ends_s is None else round(self._ends_s - now_s, 1)
        self._show(
            msgspec.structs.replace(
                line, elapsed_s=round(now_s - self._began_s, 1), left_s=left_s if left_s and left_s > 0 else None
            )
        )


def terminal_progress(duration_s: float | None = None) -> ProgressLines | None:
    """Progress that rewrites one line of stderr; None if stderr is not a terminal."""
    if not is_terminal(sys.stderr):
        return None

    return ProgressLines(lambda line: rewrite_line(line.words if line is not None else ""), duration_s)


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


def _write_line(line: ProgressLine | None) -> None:
    if line is not None:
        write_stderr(terminal_safe(msgspec.json.encode(line)).decode() + "\n")


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
