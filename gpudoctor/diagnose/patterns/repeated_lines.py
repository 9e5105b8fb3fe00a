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
    r"(?i)checkpoint|ckpt|\bsav(?:e|ed|ing)\b|eval|valid|\btest|infer|generat|predict|load|compil|export|convert|rollout|tokeniz|serv|queue|written"
    r"|^(?:\S{1,80}[$#]|\$) |NVRM: |kernel: "
)
_LEAST_ALIKE, _MOST_OTHERS, _MOST_BLANK = 3, 4, 3
_MOST_KINDS = 1024  # four lines of each of 256 ranks; only the ends of each kind are kept


class _Alike(msgspec.Struct):
    """Lines that differ only in their times: how many, and the ends of them, so that a long log takes no memory."""

    first: StrippedLine
    last: StrippedLine
    count: int = 0

    def add(self, line: StrippedLine) -> None:
        self.last, self.count = line, self.count + 1


class RepeatedLines:
    """Those of one file since its last work: `read` each line, then `events`."""

    def __init__(self) -> None:
        self._kind = ""
        self._run: _Alike | None = None
        self._clocked: dict[str, _Alike] = {}
        self._others = self._number = 0

    def read(self, line: StrippedLine, text: str, *, moved: bool) -> None:
        """Take a line; `moved`: whether it tells of work or an end. A gap between the numbers may have been work."""
        if moved or line.number > self._number + _MOST_BLANK:
            self._clocked, self._others = {}, 0
        self._number = max(line.last, line.number)
        if moved:
            self._kind, self._run = "", None
        if moved or not text.strip():
            return
        kind = _TIMES.sub("0", text[:400])
        if kind != self._kind or self._run is None:
            self._kind, self._run = kind, _Alike(line, line)
        self._run.add(line)
        if self._others > _MOST_OTHERS:
            return
        if _NO_HEARTBEAT.search(text):
            self._others = _MOST_OTHERS + 1
        elif line.origin.time_s is None:
            self._others += bool(text.strip(" -=*"))
        elif kind not in self._clocked and len(self._clocked) >= _MOST_KINDS:
            self._others = _MOST_OTHERS + 1
        else:
            self._clocked.setdefault(kind, _Alike(line, line)).add(line)

    def events(self) -> Iterator[tuple[Event, StrippedLine]]:
        """The last line if it came three times, and what came with a clock and hardly anything else between."""
        if self._run is not None and self._run.count >= _LEAST_ALIKE:
            yield Event(role="fact", what="repeated", detail={"times": self._run.count}), self._run.first
        beats = [alike for alike in self._clocked.values() if alike.count >= _LEAST_ALIKE]
        if beats and self._others + len(self._clocked) - len(beats) <= _MOST_OTHERS:
            first_s = int(beats[0].first.origin.time_s or 0)
            yield Event(role="fact", what="heartbeat", detail={"first_s": first_s}), beats[0].last
