"""The answer, as `gpudoctor.diagnosis/1` has it, and the same without names of hosts, files and persons."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Literal, TypeVar

import msgspec

from gpudoctor.facts.redaction.shapes import shapes_taken_out

SCHEMA = "gpudoctor.diagnosis/1"
Verdict = Literal["cause", "unknown", "nothing"]
Confidence = Literal["certain", "likely", "possible"]
T = TypeVar("T")


class EvidenceLine(msgspec.Struct, frozen=True):
    """A line that shows it; `line` is 0 if the file has no lines (a dump)."""

    file: str
    line: int
    text: str


class Cause(msgspec.Struct, frozen=True):
    """One hypothesis. `rank` is the global rank or null: null rather than a guess; `ranks` if it is several at once.

    `gpu` is a PCI bus id, or the index that the process itself counts by.
    """

    what: str
    rank: int | None
    host: str | None
    gpu: str | None
    confidence: Confidence
    text: str
    evidence: tuple[EvidenceLine, ...] = ()
    ranks: tuple[int, ...] = ()


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
    """What happened first, where, and why. `others` are the hypotheses that remain.

    `unknown` without a cause: no line is known to come from a job (`recognised` is false), nothing shows that it
    moved or ended, or a file could not be read.
    `error` is set if there is no answer (exit 2, or ended by a signal), and then nothing else says anything.
    `unexplained`: if nothing is found, last lines that mention an error in words that no reader recognises.
    """

    schema: str = SCHEMA
    verdict: Verdict
    cause: Cause | None
    others: tuple[Cause, ...] = ()
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


def redacted_diagnosis(answer: Diagnosis) -> Diagnosis:
    """The same answer without names of hosts, files, paths and addresses; ranks, lines and bus ids stay."""
    hosts = {host: f"host-{number}" for number, host in enumerate(_named(answer, "host", "than"), 1)}
    files = {file: f"file-{number}{PurePath(file).suffix[:8]}" for number, file in enumerate(_named(answer, "file"), 1)}
    names = sorted(hosts, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(name) for name in names) or r"(?!)")
    return _replaced(answer, hosts, files, pattern)


def _named(thing: object, *fields: str) -> list[str]:
    found: dict[str, None] = {}

    def look(part: object) -> None:
        if isinstance(part, msgspec.Struct):
            for name in part.__struct_fields__:
                value = getattr(part, name)
                if name in fields and isinstance(value, str):
                    found[value] = None
                else:
                    look(value)
        elif isinstance(part, tuple):
            for item in part:
                look(item)

    look(thing)
    return list(found)


def _replaced(thing: T, hosts: dict[str, str], files: dict[str, str], pattern: re.Pattern[str]) -> T:
    if not isinstance(thing, msgspec.Struct):
        return thing
    changes: dict[str, object] = {}
    for name in thing.__struct_fields__:
        value = getattr(thing, name)
        if name in ("host", "than") and isinstance(value, str):
            changes[name] = hosts[value]
        elif name == "file" and isinstance(value, str):
            changes[name] = files[value]
        elif name in ("text", "reason") and isinstance(value, str):
            changes[name] = shapes_taken_out(pattern.sub(lambda found: hosts[found[0]], value))
        elif isinstance(value, tuple):
            changes[name] = tuple(_replaced(item, hosts, files, pattern) for item in value)
        elif isinstance(value, msgspec.Struct):
            changes[name] = _replaced(value, hosts, files, pattern)
    return msgspec.structs.replace(thing, **changes)
