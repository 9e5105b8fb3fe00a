"""Lines that differ only in their times, again and again at the end of a log: of a job that stands still."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.wrapped_lines import StrippedLine

# what differs between two lines of one who waits: the time of day, and how long it has waited
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d|\b\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?"
    r"|\b\d+(?:\.\d+)? ?(?:ms|s|secs?|seconds?|min|minutes?|h|hours?)\b"
)
# a job at these makes no step for long; at a shell's prompt, and in a kernel's log, another text begins
_NO_HEARTBEAT = re.compile(
    r"(?i)checkpoint|ckpt|\bsav(?:e|ed|ing)\b|eval|valid|\btest|infer|generat|predict|load|compil|export|convert"
    r"|^(?:\S{1,80}[$#]|\$) |NVRM: |kernel: "
)
_LEAST_ALIKE = 3
_MOST_OTHERS, _MOST_KINDS, _MOST_BLANK = 4, 64, 3


class _Alike(msgspec.Struct):
    kind: str
    first: StrippedLine
    last: StrippedLine
    times: int = 0


class RepeatedLines:
    """Those of one file since its last work: `read` each line, then `events`."""

    def __init__(self) -> None:
        self._run: _Alike | None = None
        self._clocked: dict[str, _Alike] = {}
        self._others = self._number = 0

    def read(self, line: StrippedLine, text: str, *, moved: bool) -> None:
        """Take a line; `moved`: whether it tells of work or an end. A gap between the numbers may have been work."""
        if moved or line.number > self._number + _MOST_BLANK:
            self._clocked, self._others = {}, 0
        self._number = max(line.last, line.number)
        if moved or not text.strip():
            self._run = None if moved else self._run
            return
        kind = _TIMES.sub("0", text[:400])
        if self._run is None or self._run.kind != kind:
            self._run = _Alike(kind, line, line)
        self._run.times += 1
        if _NO_HEARTBEAT.search(text):
            self._others = _MOST_OTHERS + 1
        elif line.origin.time_s is None or len(self._clocked) >= _MOST_KINDS:
            self._others += bool(text.strip(" -=*"))
        else:
            alike = self._clocked.setdefault(kind, _Alike(kind, line, line))
            alike.last, alike.times = line, alike.times + 1

    def events(self) -> Iterator[tuple[Event, StrippedLine]]:
        """The last line if it came three times, and what came with a clock and hardly anything else between."""
        if self._run and self._run.times >= _LEAST_ALIKE:
            yield Event(role="fact", what="repeated", detail={"times": self._run.times}), self._run.first
        beats = [alike for alike in self._clocked.values() if alike.times >= _LEAST_ALIKE]
        if beats and self._others + len(self._clocked) - len(beats) <= _MOST_OTHERS:
            first_s = int(beats[0].first.origin.time_s or 0)
            yield Event(role="fact", what="heartbeat", detail={"first_s": first_s}), beats[0].last
