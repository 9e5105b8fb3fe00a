"""Follows the logs of a running job until it stops making progress."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

import msgspec

from gpudoctor.diagnose.decoding import UnreadableError, refuse_to_follow
from gpudoctor.diagnose.diagnosis import Unread
from gpudoctor.diagnose.gather import GatheredLogs
from gpudoctor.diagnose.places import LogFile
from gpudoctor.diagnose.reader import LogReader
from gpudoctor.diagnose.sources import LogSource
from gpudoctor.statements.prefixes import LABEL_LINES, NO_LABELS, labels_of

_POLL_S = 0.5
_READ_BYTES = 1 << 20
_MAX_HELD = 1 << 20


class Stall(msgspec.Struct, frozen=True):
    """No progress for `seconds`. `last` has the last known step or line of each writer."""

    seconds: float
    last: tuple[str, ...]


class _Tail:
    """A growing file, or stdin. Raises OSError if it cannot be opened."""

    def __init__(self, source: LogSource, number: int, found: GatheredLogs) -> None:
        self.file = found.files[number]
        self._found = found
        self._path = source.path
        self._descriptor = 0 if source.path is None else os.open(source.path, os.O_RDONLY)
        self.is_stdin = source.path is None
        self._rest = b""
        self._begun = False
        self._early: list[str] = []
        self._reader = LogReader(number, NO_LABELS)
        self.ended = False
        self.last: dict[str, str] = {}
        self.progress = False

    def poll(self) -> bool:
        """Read what is new; whether it shows progress: a step, or any line as long as no step was ever seen.

        What is no text becomes an entry of `unread`, and is not read any more.
        """
        try:
            return self._poll()
        except (UnreadableError, OSError) as error:
            self.file.text, self.ended, self._rest = False, True, b""
            self._found.unread.append(Unread(self.file.name, getattr(error, "strerror", None) or str(error)))
            return False

    def _poll(self) -> bool:
        if self.ended or (self.is_stdin and not select.select([0], [], [], _POLL_S)[0]):
            return False
        data = os.read(self._descriptor, _READ_BYTES)
        if not data and self._moved_away():
            # what the former file ended with is a line of its own
            data = (b"\n" if self._rest else b"") + os.read(self._descriptor, _READ_BYTES)
        if not data:
            self.ended = self.is_stdin
            return False
        data = self._rest + data
        if not self._begun:
            refuse_to_follow(data)
            self._begun = b"\n" in data
        *lines, self._rest = data.split(b"\n")
        self._rest = self._rest[-_MAX_HELD:]
        return self._read([line.decode("utf-8", "replace") for line in lines])

    def _read(self, lines: list[str]) -> bool:
        if lines and len(self._early) < LABEL_LINES:
            self._early += lines[: LABEL_LINES - len(self._early)]
            self._reader.labels = labels_of(self._early)
        moved = [self._line(line) for line in lines]  # all of them, whichever is the first to move
        return any(moved)

    def _moved_away(self) -> bool:
        """Whether the file was rotated or truncated; if so, reading goes on at the beginning of the current one."""
        if self._path is None:
            return False
        try:
            now = self._path.stat()
            opened = os.fstat(self._descriptor)
            if (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino):
                if now.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR):
                    os.lseek(self._descriptor, 0, os.SEEK_SET)
                    return True
                return False
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError:  # in the middle of a rotation: the next poll tries again
            return False
        os.close(self._descriptor)
        self._descriptor = descriptor
        return True

    def _line(self, text: str) -> bool:
        self.file.lines += 1
        moved = False
        for event in self._reader.read(self.file.lines, text):
            self._found.log.add(event)
            who = f"rank {event.rank}" if event.rank is not None else self.file.name
            if event.role == "progress":
                moved = self.progress = True
                self.last[who] = f"step {event.number('step')}"
            elif event.role in ("wait", "stuck", "victim", "cause", "echo"):
                self.last[who] = event.text.strip()[:120]
        return moved or not self.progress

    def close(self) -> None:
        """Close the file and record the events of a last line without an end, and of one that was held."""
        if self._rest:
            self._read([self._rest.decode("utf-8", "replace")])
        self._found.log.extend(self._reader.end())
        self.file.like_a_job = self.file.text
        if not self.is_stdin:
            os.close(self._descriptor)


def follow(sources: list[LogSource], stall_s: float, say: Callable[[str], None]) -> tuple[GatheredLogs, Stall | None]:
    """Read until standard input ends, or until nothing moved for `stall_s` seconds."""
    found = GatheredLogs(files=[LogFile(source.name) for source in sources])
    tails: list[_Tail] = []
    for number, source in enumerate(sources):
        try:
            tails.append(_Tail(source, number, found))
        except OSError as error:  # no permission, gone since it was found, or too many files
            found.files[number].text = False
            found.unread.append(Unread(source.name, error.strerror or str(error)))
    moved_s = time.monotonic()
    stall: Stall | None = None
    say(f"following {len(tails)} file{'s' if len(tails) != 1 else ''}; Ctrl-C ends it")
    while True:
        moved = [tail.poll() for tail in tails]
        if any(moved):
            moved_s = time.monotonic()
        elif time.monotonic() - moved_s >= stall_s:
            last = tuple(f"{who}: {text}" for tail in tails for who, text in sorted(tail.last.items()))
            stall = Stall(stall_s, last)
            break
        if all(tail.ended for tail in tails):
            break
        if not any(tail.is_stdin and not tail.ended for tail in tails):
            time.sleep(_POLL_S)
    for tail in tails:
        tail.close()
    return found, stall
