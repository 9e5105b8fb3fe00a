"""The answer, as `gpudoctor.diagnosis/1` has it."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "gpudoctor.diagnosis/1"
Verdict = Literal["cause", "unknown", "nothing"]
Confidence = Literal["certain", "likely", "possible"]


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

    `unknown` without a cause: no line is known to come from a job.
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
    error: str | None = None

    @property
    def not_recognised(self) -> bool:
        """Whether no line is known to come from a job, so that finding nothing proves nothing."""
        return self.verdict == "unknown" and self.cause is None
