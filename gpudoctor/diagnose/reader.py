"""Turns the lines of one file into events: strips the prefixes, then tries the reader of each library in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from gpudoctor.diagnose.events import MOST_RANKS, Event, Role, clipped
from gpudoctor.diagnose.patterns import job_facts
from gpudoctor.diagnose.patterns.catalogue import error_event, with_place
from gpudoctor.diagnose.patterns.exceptions import exception_event, quoted_exception
from gpudoctor.diagnose.patterns.job_facts import OF_A_KERNEL, is_harmless, read_facts
from gpudoctor.diagnose.patterns.launchers import ElasticTable, expanded, read_launcher
from gpudoctor.diagnose.patterns.ray import RayReader
from gpudoctor.diagnose.patterns.repeated_lines import RepeatedLines
from gpudoctor.diagnose.patterns.watchdog import CoordinationReader, StallReader, read_watchdog
from gpudoctor.diagnose.tracebacks import Tracebacks
from gpudoctor.diagnose.wrapped_lines import HeldLine, StrippedLine, may_go_on
from gpudoctor.facts.kernel_log.messages import parse_message
from gpudoctor.facts.kernel_log.records import read_line
from gpudoctor.statements.about import peer_in
from gpudoctor.statements.classes import kind_of
from gpudoctor.statements.prefixes import Labels, Origin, stripped, with_short_numbers
from gpudoctor.statements.reader import statement_of

_MOST_TEXT = 8192
# a file that begins with a line of a traceback, or with its exception, lacks what came before
_INSIDE = re.compile(
    r"  File |    |\^|(?:[A-Za-z_]\w{0,60}\.){0,8}\w{0,60}(?:Error|Exception): |(?P<begin>Traceback \(most recent)"
)
# the end of a progress bar, and another writer's words right behind it
_BAR = re.compile(r"\d/\d+ \[[^\]\[]{1,80}(?:it/s|s/it)[^\]\[]{0,400}\](?=[A-Z\[])")
_RANKS_LINE = re.compile(r"\[rank\d{1,6}\]:\[[EWFI]\d{4} ")  # of torch
_RULE = re.compile(r"\s*-{40,}\s*$")
_FRAME = 2
_LAST_ERROR = re.compile(r"^Last error:\s*$")  # of NCCL: its words are in the next line
# another program's line, or a frame
_NOT_NCCLS = re.compile(r"Traceback|Exception raised from|\w{1,80}:\d+:\d+ |[a-z]\w{0,80}: |\w{0,80}Warning: ")
_TWO_WORDS = re.compile(r"[A-Za-z]{2,40}[^A-Za-z]{1,40}[A-Za-z]{2}")
# a place that a line of its own names, right under the sentence that it belongs to: "  Remote host:   n7"
_PLACE = re.compile(
    r"\s*(?P<key>(?:[A-Za-z]{1,12} )?(?:[Hh]ost(?:name)?|[Nn]ode|GPU|[Dd]evice|[Pp]ort)) *: *(?P<value>\S{1,100})\s*$"
)
_MOST_PLACES = 6
_MOST_WRITERS = 100_000
_RETURNED: dict[str, tuple[str, Role]] = {
    "1": ("nccl_cuda_unknown", "wrapper"),
    "2": ("nccl_unknown", "wrapper"),
    "6": ("peer_lost", "victim"),
}
_Reader = Callable[[StrippedLine], list[Event] | None]


def _of_text(read: Callable[[str], Event | list[Event] | None]) -> _Reader:
    """A reader that needs the text alone; what it finds of an agent belongs to the agent's thread."""

    def events(line: StrippedLine) -> list[Event] | None:
        found = read(line.text)
        found = [found] if isinstance(found, Event) else found
        for event in found or ():
            if line.origin.thread and event.detail.get("by") == "agent":
                event.detail["agent"] = line.origin.thread
        return found or None

    return events


_WATCHDOG = _of_text(read_watchdog)


class _Told(msgspec.Struct):
    """A statement whose places may follow in the next lines."""

    event: Event
    last: int
    places: int = 0

    def goes_on(self, line: StrippedLine) -> bool:
        """Whether the line belongs to it, and was added to its message."""
        message = self.event.word("message") or ""
        if line.number != self.last + 1 or self.places >= _MOST_PLACES:
            return False
        if (place := _PLACE.match(line.text)) is None:
            return False
        before = ", " if self.places else " " if message.endswith(":") else "; "
        message, self.places = f"{message}{before}{place['key']}: {place['value']}", self.places + 1
        self.event.detail["message"], self.last = clipped(message), line.number
        return True


def _as_last_error(text: str, events: list[Event]) -> list[Event]:
    """What the line behind NCCL's "Last error:" says: in words that no table knows neither progress nor an end."""
    if any(event.role not in ("said", "fact", "progress", "done") for event in events):
        return events
    if _TWO_WORDS.search(text) is None or _NOT_NCCLS.match(text) or is_harmless(text):
        return []
    detail: dict[str, str | int] = {"form": "program", "severity": "error", "message": text.strip(), "by": "last_error"}
    return [Event(role="said", what="cause", detail=detail)]


def _lines_of_ranks(text: str) -> Iterator[str]:
    """The text, divided before each label of a rank but the first: what stands before that is its own."""
    labels = [found.start() for found in _RANKS_LINE.finditer(text)][1:]
    for start, end in pairwise((0, *labels, len(text))):
        yield text[start:end]


class LogReader:
    """Reads one file: call `read` for each line of interest in order, then `end`.

    `labels` may change between lines, as more lines of a growing file show them.
    """

    def __init__(self, file: int, labels: Labels) -> None:
        self.labels = labels
        self._file = file
        self._traces = Tracebacks()
        self._table = ElasticTable()
        self._ray = RayReader()
        self._held: HeldLine | None = None
        self._spawned: int | None = None
        self._begun = False
        self._repeated = RepeatedLines()
        self._probed: tuple[int, str] | None = None
        self._rule = -_FRAME  # the line of the last rule of dashes
        self._told: _Told | None = None
        self._last_error = -1  # the line that introduces NCCL's
        self._seen: set[object] = set()
        launcher = _of_text(read_launcher)
        # each gives its events, or None if the line is not its own; the first that decides ends it
        self._readers: tuple[_Reader, ...] = (
            self._kernel, _of_text(self._table.read), launcher, _of_text(self._ray.read), _of_text(StallReader().read),
            _of_text(CoordinationReader().read), _uncaught, self._nccl_line, _WATCHDOG, self._traceback, _plain,
        )  # fmt: skip
        self._may_name_no_error = (launcher, _WATCHDOG)  # then the readers after them look for it

    def read(self, number: int, raw: str) -> Iterator[Event]:
        """The events of one line; the parts of a progress bar, separated by carriage returns, have the same number.

        So has what another writer put right behind a bar or another rank's line, without a line of its own.
        """
        for part in raw.split("\r") if "\r" in raw else (raw,):
            bar = _BAR.search(part) if "it/s" in part or "s/it" in part else None
            for piece in (part[: bar.end()], part[bar.end() :]) if bar else (part,):
                for line in _lines_of_ranks(piece) if "]:[" in piece else (piece,):
                    if line:
                        yield from self._read(number, line)

    def end(self) -> Iterator[Event]:
        """The events of a line that was held because it might have continued, and of a last line with an exception."""
        yield from self._flush()
        for event in self._traces.without_end():  # the text was cut off, or the exception was never printed
            event.file = self._file
            yield event
        for event, last in self._repeated.events():
            yield self._placed(event, last)

    def _read(self, number: int, raw: str) -> Iterator[Event]:
        raw = raw.removeprefix(self.labels.margin)
        if len(raw) > _MOST_TEXT:  # no expression needs more, and some take the square of it
            raw = f"{raw[: _MOST_TEXT // 2]} ... {raw[-_MOST_TEXT // 2 :]}"
        shortened = with_short_numbers(raw)
        origin, text = stripped(shortened, self.labels)
        line = StrippedLine(number, origin, text, raw, framed=number - self._rule <= _FRAME)
        if text.strip():
            self._rule = number if _RULE.match(text) else -_FRAME
        if self._held is not None:
            if self._held.takes(line):
                return
            yield from self._flush()
        if may_go_on(line):
            line.raw = shortened
            self._held = HeldLine(line, number, number)
            return
        if not self._begun and text.strip():
            self._begun = True
            if number <= 2 and (inside := _INSIDE.match(text)):
                what = "begins_failing" if inside["begin"] else "begins_inside"
                yield self._placed(Event(role="fact", what=what), line)
        yield from self._whole(line)

    def _flush(self) -> Iterator[Event]:
        if self._held is not None:
            held, self._held = self._held, None
            yield from self._whole(held.line)

    def _whole(self, line: StrippedLine) -> Iterator[Event]:
        origin = line.origin
        names_rank = origin.rank is not None or origin.local_rank is not None or origin.task is not None
        if names_rank and self._is_new(origin.stream):
            yield self._placed(Event(role="fact", what="seen"), line)
        # of this line alone: the task whose label it has need not be on the daemon's node
        if origin.host is None and (stepd := job_facts.STEPD.match(line.text)):
            origin.host = stepd["host"]
        if self._told is not None and not self._told.goes_on(line):
            self._told = None
        moved, text = False, line.text
        events = [*self._events(line)]
        if line.number == self._last_error + 1:
            events = _as_last_error(text, events)
        if _LAST_ERROR.search(text):
            self._last_error = line.number
        for event in events:
            moved = moved or event.role in ("progress", "done", "exit", "ending") or event.what == "work"
            if event.role == "said" and event.word("message"):
                self._told = _Told(event, line.last or line.number)
            yield self._placed(event, line)
        self._repeated.read(line, text, moved=moved)

    def _is_new(self, writer: object) -> bool:
        """Whether this is the writer's first line, which is then noted."""
        is_new = writer not in self._seen and len(self._seen) < _MOST_WRITERS
        if is_new:
            self._seen.add(writer)
        return is_new

    def _placed(self, event: Event, line: StrippedLine) -> Event:
        event.file, event.line, event.text = self._file, line.number, event.text or line.raw.strip()
        origin = line.origin
        if origin.level in ("W", "I", "V") and event.role in ("cause", "echo", "victim"):
            event.detail["warning"] = 1
            if event.role == "cause":  # a process that warns goes on
                event.role, event.strength = "echo", 1
        for field in ("rank", "local_rank", "task", "host", "pid", "ip", "gpu", "time_s"):
            if getattr(event, field) is None:
                setattr(event, field, getattr(origin, field))
        if event.role == "victim" and (peer := peer_in(event.text)):
            event.detail.setdefault("peer", peer)
        if event.role == "cause" and event.rank is None and (failed := job_facts.FAILED_ON_RANK.search(event.text)):
            event.rank = int(failed[1])
        for field in ("rank", "local_rank", "task"):
            if (getattr(event, field) or 0) >= MOST_RANKS:
                setattr(event, field, None)
        return event

    def _events(self, line: StrippedLine) -> Iterator[Event]:
        elsewhere = False  # the error is: somebody tells only that there was one
        for read in self._readers:
            events = read(line)
            if events and events[0].role in ("exit", "wrapper") and (raised := quoted_exception(line.text)):
                events = [*events, raised]
            yield from (e for e in events or () if not (elsewhere and e.role == "said"))
            first = events[0] if events else None
            names_no_error = first is not None and first.role == "wrapper" and read in self._may_name_no_error
            if events is not None and not names_no_error:
                return
            elsewhere = elsewhere or names_no_error

    def _nccl_line(self, line: StrippedLine) -> list[Event] | None:
        if "NCCL " not in line.text and (unnamed := job_facts.NCCL_WITHOUT_NAME.match(line.text)):
            line.text = f"{line.text[: unnamed.end()]}NCCL {line.text[unnamed.end() :]}"
        text = line.text
        head = (job_facts.NCCL.match(text) or job_facts.NCCL_BARE.search(text)) if "NCCL " in text else None
        return list(self._nccl(head, line.origin, text)) if head is not None else None

    def _traceback(self, line: StrippedLine) -> list[Event] | None:
        number, text, origin = line.number, line.text, line.origin
        if spawned := re.match(r"-- Process (\d+) terminated with the following error", text):
            self._spawned = int(spawned[1])
        stream = (origin.stream, self._table.rank)
        labelled = origin.rank is not None or (origin.host is not None and origin.host in self.labels.hosts)
        inside, exception = self._traces.read(
            stream,
            number,
            text,
            origin.rank,
            labelled=labelled,
            level=origin.level or origin.level_word,
            clocked=origin.time_s is not None,
            in_table=self._table.rank is not None,
        )
        if exception is None:
            return [] if inside else None
        if exception.rank is None:
            exception.rank = self._table.rank
        if exception.rank is None and origin.rank is None:
            exception.rank = self._spawned if self._spawned is not None else self._ray.rank
            if exception.rank is not None:
                exception.detail["repeated"] = 1  # printed by a controller, which is another process
        if raised_in := self._ray.raised_in:
            exception.pid, exception.ip = int(raised_in["pid"]), raised_in["ip"]
            exception.detail["address"] = raised_in["ip"]
        self._spawned, self._ray.raised_in = None, {}
        return [with_place(exception, text)]

    def _nccl(self, head: re.Match[str], origin: Origin, text: str) -> Iterator[Event]:
        if head["host"]:
            origin.host, origin.pid = head["host"], int(head["pid"])
        if head["dev"]:
            origin.gpu = head["dev"]
        if head["host"] and self._is_new((origin.host, origin.pid)):
            yield Event(role="fact", what="seen")
        message = text[head.end() :]
        if init := job_facts.INIT.search(message):
            detail: dict[str, str | int] = {"comm_rank": int(init["rank"]), "world": int(init["world"])}
            complete = int("COMPLETE" in message)
            detail |= {"dev": int(init["dev"]), "bus": job_facts.bus_id(init["bus"]), "complete": complete}
            yield Event(role="fact", what="comm", detail=detail)
            return
        if job_facts.RETRIES.search(message):
            yield Event(role="said", what="network", detail={"form": "sentence", "message": message})
        if job_facts.INTERFACE.search(message):
            yield Event(role="fact", what="interface")
            return
        if (rank := job_facts.rank_of_connection(message)) is not None:
            yield Event(role="fact", what="comm_rank", detail={"comm_rank": rank})
        gave_up = "Call to connect returned" in message and "retrying" not in message
        if head["level"] == "WARN":
            yield from _nccl_warning(text, message)
        elif returned := job_facts.RETURNED.search(message):
            what, role = _RETURNED[returned["code"]]
            yield Event(role=role, what=what, strength=1, names_rank=False)
        elif gave_up or job_facts.LAST_RETRY.search(message):
            yield Event(role="echo", what="bootstrap_connect_failed", strength=1)

    def _kernel(self, line: StrippedLine) -> list[Event] | None:
        text, origin = line.text, line.origin
        if not job_facts.KERNEL.search(text):
            return None
        if probed := job_facts.PROBED.search(text):  # the driver's report on it goes on in the next lines
            self._probed = line.number, probed["gpu"]
        reported = parse_message(read_line(line.raw).message)
        if reported is None and origin.rank is None and origin.local_rank is None:  # no rank prints kernel messages
            reported = parse_message(read_line(text).message)
        if reported is None:
            return None
        if reported.kind == "xid":
            first = job_facts.PREVIOUS_XID.search(text)
            code = int(first["code"]) if first else reported.code or 0
            return [Event(role="cause", what="gpu_xid", gpu=reported.bus_id, strength=2, detail={"xid": code})]
        if reported.kind == "off-bus":
            near = self._probed[1] if self._probed and line.number <= self._probed[0] + 3 else None
            return [Event(role="cause", what="gpu_lost", gpu=reported.bus_id or near, strength=3)]
        if reported.kind == "aer":
            return [Event(role="fact", what="aer", gpu=reported.bus_id)]
        if reported.kind in ("gsp", "nvlink", "rm"):
            return [Event(role="cause", what="gpu_xid", gpu=reported.bus_id, strength=1)]
        return None


def _nccl_warning(text: str, message: str) -> Iterator[Event]:
    """A known error, or what NCCL says in its own words; nothing if it is harmless."""
    if event := error_event(text):
        if event.what == "duplicate_rank":  # rank 0 prints it, of others
            event.host = event.gpu = ""
        yield event
    elif not is_harmless(text):
        detail: dict[str, str | int] = {"form": "level", "severity": "error", "message": message}
        yield Event(role="said", what=kind_of(message), detail=detail)


def _uncaught(line: StrippedLine) -> list[Event] | None:
    found = job_facts.UNCAUGHT.search(line.text) if "ncaught " in line.text or '"message"' in line.text else None
    if found is None:
        return None
    event = exception_event(found["exception"] or found["held"])
    event.rank = int(found["rank"]) if found["rank"] else None
    return [with_place(event, line.text)]


def _plain(line: StrippedLine) -> list[Event]:
    """What a table knows, else facts, else what the line says by its form."""
    text = line.text
    event = error_event(text)
    if event is None:
        reported = list(read_facts(text))
        if not reported or reported[0].role == "progress":  # "AssertionError: size mismatch at step 3"
            return list(_statement(line, reported)) or reported
        return reported
    if tasks := event.word("tasks"):
        place = event.word("host")
        return [Event(role="cause", what="host_oom", strength=3, task=n, host=place) for n in expanded(tasks)[:64]]
    event.gpu, event.host = event.word("gpu"), event.word("host") or event.word("node")
    if event.role == "ending" and event.what != "terminated_signal" and event.host is None:
        event.host = ""  # any node of the job may have printed the scheduler's line
    if pid := event.word("pid"):
        event.pid = int(pid)
    return [with_place(event, text)]


def _statement(line: StrippedLine, reported: list[Event]) -> Iterator[Event]:
    """What the line says by its form, if no table knows it; each kernel log has such words: what matters is known."""
    if OF_A_KERNEL.search(line.raw) or is_harmless(line.raw):
        return
    found = statement_of(line.number, line.origin, line.text)
    if found is None or (reported and found.form != "exception"):
        return
    # of another class it may be of a part that the launcher can do without
    spoken = line.framed and found.form == "sentence" and found.kind in ("network", "resource")
    form = "level" if spoken else found.form
    detail: dict[str, str | int] = {"form": form, "severity": found.severity, "message": found.message}
    yield Event(role="said", what=found.kind, detail=detail)
