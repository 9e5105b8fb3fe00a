"""The answer, as `gpudoctor.diagnosis/1` has it, and the same without names of hosts, files and persons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Literal

import msgspec

from gpudoctor.facts.redaction.shapes import shapes_taken_out
from gpudoctor.text.units import listed

SCHEMA = "gpudoctor.diagnosis/1"
Verdict = Literal["cause", "unknown", "nothing"]
Confidence = Literal["certain", "likely", "possible"]
_HOSTS = ("host", "hosts", "than")


class EvidenceLine(msgspec.Struct, frozen=True):
    """A line that shows it; `line` is 0 if the file has no lines (a dump)."""

    file: str
    line: int
    text: str


class Mentioned(msgspec.Struct, frozen=True):
    """Whom the lines of a cause name, or come from, without showing that one of them is at fault."""

    ranks: tuple[int, ...] = ()
    local_ranks: tuple[int, ...] = ()
    tasks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """`local ranks 0, 1, host n7`."""
        each = ((self.ranks, "rank"), (self.local_ranks, "local rank"), (self.tasks, "task"), (self.pids, "pid"))
        parts = [counted_out(values, noun) for values, noun in (*each, (self.hosts, "host"), (self.gpus, "GPU"))]
        return ", ".join(filter(None, parts))


class Cause(msgspec.Struct, frozen=True):
    """One hypothesis. `rank` is the global rank or null: null rather than a guess; `ranks` if it is several at once.

    `gpu` is a PCI bus id, or the index that the process itself counts by. `mentioned` is null if one of them is known.
    """

    what: str
    rank: int | None
    host: str | None
    gpu: str | None
    confidence: Confidence
    text: str
    evidence: tuple[EvidenceLine, ...] = ()
    ranks: tuple[int, ...] = ()
    mentioned: Mentioned | None = None

    @property
    def place(self) -> str:
        """Where, in words."""
        ranks = self.ranks if len(self.ranks) > 1 or self.rank is None else (self.rank,)
        parts = (counted_out(ranks, "rank"), self.host and f"host {self.host}", self.gpu and f"GPU {self.gpu}")
        if place := ", ".join(filter(None, parts)):
            return place
        return f"not known; its lines name {self.mentioned.words if self.mentioned else 'no rank or host'}"


def counted_out(values: Iterable[int | str], noun: str) -> str:
    """The values behind their noun; at most 16, none is "".

    >>> counted_out([3], "rank"), counted_out([2, 1], "rank"), counted_out([], "rank")
    ('rank 3', 'ranks 1, 2', '')
    """
    each = [str(value) for value in sorted(values)]
    return f"{noun}{'s' if len(each) > 1 else ''} {listed(each, 16)}" if each else ""


class AlsoSaid(msgspec.Struct, frozen=True):
    """Another failure that the text tells of, in its own words; `before`: above the cause in the same file."""

    what: str
    file: str
    line: int
    text: str
    before: bool


class Victim(msgspec.Struct, frozen=True):
    """A rank or host that only lost others or waited for them, with what it said."""

    rank: int | None
    host: str | None
    text: str
    evidence: tuple[EvidenceLine, ...] = ()


class NextStep(msgspec.Struct, frozen=True):
    """A command to run, and on which host (null: on any, or on each)."""

    command: str
    host: str | None = None
    why: str = ""


class TimelineEntry(msgspec.Struct, frozen=True):
    """One event in the order of the files; `time` as the log has it, of its own clock."""

    time: str | None
    rank: int | None
    host: str | None
    what: str
    file: str
    line: int
    text: str


class ClockSkew(msgspec.Struct, frozen=True):
    """The clock of `host` is ahead of that of `than` by `seconds` (behind, if negative), by so many pairs of events.

    `zone`: nearly whole half hours, so that the hosts write times of different zones.
    """

    host: str
    than: str
    seconds: float
    zone: bool
    pairs: int

    @property
    def words(self) -> str:
        """As people say it."""
        way = "ahead of" if self.seconds > 0 else "behind"
        zone = ": other time zones" if self.zone else ""
        return f"{self.host} is about {abs(self.seconds):.0f} s {way} {self.than}{zone}"


class Unread(msgspec.Struct, frozen=True):
    """What could not be read, and why."""

    file: str
    reason: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What happened first, where, and why. `others` are the hypotheses that remain: beside a certain cause only
    certain ones at another place. `also`: what else the text tells of, in its order, without a claim.

    `unknown` without a cause: no line is known to come from a job (`recognised` is false), nothing shows that it
    moved or ended, or a file could not be read.
    `error` is set if there is no answer (exit 2, or ended by a signal), and then nothing else says anything.
    `unexplained`: if nothing is found, last lines that mention an error in words that no reader recognises.
    """

    schema: str = SCHEMA
    verdict: Verdict
    cause: Cause | None
    others: tuple[Cause, ...] = ()
    also: tuple[AlsoSaid, ...] = ()
    victims: tuple[Victim, ...] = ()
    collect: tuple[str, ...] = ()
    next: tuple[NextStep, ...] = ()
    reason: str = ""
    world_size: int | None = None
    silent_ranks: tuple[int, ...] = ()
    files: int = 0
    unread: tuple[Unread, ...] = ()
    clocks: tuple[ClockSkew, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    unexplained: tuple[EvidenceLine, ...] = ()
    recognised: bool = True
    error: str | None = None

    @property
    def word(self) -> str:
        """The verdict as people read it."""
        if self.error is not None:
            return "NO ANSWER"
        if self.verdict == "nothing":
            return "RECOVERED" if self.cause else "NOTHING FOUND"
        return self.verdict.upper() if self.cause or self.recognised else "NOT RECOGNISED"


def redacted_diagnosis(answer: Diagnosis) -> Diagnosis:
    """The same answer without names of hosts, files, paths and addresses; ranks, lines and bus ids stay."""
    hosts: dict[str, str] = {}
    files: dict[str, str] = {}

    def numbered(key: str, text: str) -> str:
        if key in _HOSTS:
            hosts.setdefault(text, f"host-{len(hosts) + 1}")
        elif key == "file":
            files.setdefault(text, f"file-{len(files) + 1}{PurePath(text).suffix[:8]}")
        return text

    def hidden(key: str, text: str) -> str:
        if key in ("text", "reason"):
            return shapes_taken_out(pattern.sub(lambda found: hosts[found[0]], text))
        return hosts[text] if key in _HOSTS else files[text] if key == "file" else text

    plain = _replaced(msgspec.to_builtins(answer), numbered)
    pattern = re.compile("|".join(map(re.escape, sorted(hosts, key=len, reverse=True))) or r"(?!)")
    return msgspec.convert(_replaced(plain, hidden), Diagnosis)


def _replaced(thing: Any, new: Callable[[str, str], str], key: str = "") -> Any:
    """Plain data with each text replaced by what `new` makes of its key and of the text."""
    if isinstance(thing, str):
        return new(key, thing)
    if isinstance(thing, dict):
        return {name: _replaced(value, new, name) for name, value in thing.items()}
    return [_replaced(item, new, key) for item in thing] if isinstance(thing, (list, tuple)) else thing
