"""The lines of a kernel log -> events. Pure: text in, facts out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from gpudoctor.facts.kernel_log.message_tables import HOST_WORDS, host_message
from gpudoctor.facts.kernel_log.messages import (
    API_MISMATCH,
    HARD_WORDS,
    INSTALLED_FAULT,
    LOADING,
    WORDS,
    begins_coded,
    holds_a_name,
    in_one_line,
    installed_gpu,
    is_sxid,
    may_go_on,
    parse_message,
    sxid_detail,
    words_of_xid,
)
from gpudoctor.facts.kernel_log.records import LogRecord, kmsg_records, read_line, text_records
from gpudoctor.facts.model.driver import DRIVER_VERSION, ApiMismatch, HostEvent, HostEventKind, KernelEvent, KernelLog
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.lazy import lazy_pattern

MAX_EVENTS = 10_000
_ONE_PROBED = "probe routine failed for 1 device"
# A flood of one message must not push out the one that matters: this many are kept of each kind, code and device
MAX_REPEATS = 100
MAX_SUBJECTS = 1000  # distinct kinds and devices of host events
_DAY_S = 86_400.0
_WORDS = (*WORDS, *HOST_WORDS)
_HARDWARE_ERROR = lazy_pattern(r"(?:mce: |\{\d{1,9}\})?\[Hardware Error\]: *\S")
_HARMLESS = "event severity: info"  # acpi/apei/ghes.c
_MISMATCH = lazy_pattern(
    rf"has the version ({DRIVER_VERSION}),? but this kernel module has the version ({DRIVER_VERSION})"
)
_MISMATCH_LINES = 4
_CUT_OFF = Missing("the driver's message is cut off in the log", "failed")
_ONE_VERSION = lazy_pattern(rf"(kernel module )?has(?: the)? version ({DRIVER_VERSION})(?:,|\s|$)")
_Subject = tuple[HostEventKind, str | None, str | None]
_EventKey = tuple[str, int | None, str | None]


def is_of_interest(line: str) -> bool:
    """Whether a line contains a word from the tables; any other line can be skipped."""
    # a loop over `in` is several times faster than one pattern with this many words
    return any(word in line for word in _WORDS)


def _interest_in(text: str) -> Callable[[str], bool]:
    """`is_of_interest` for the lines of this text, restricted to the words that it contains."""
    parts = tuple(word for word in _WORDS if word in text)
    return lambda line: any(word in line for word in parts) if parts else False


def read_kernel_text(text: str, source: str) -> KernelLog:
    """A captured kernel log as facts; `truncated` is set if events were left out.

    Accepts dmesg (`[  123.456]`, `-T`, `-x`, `-r`, `--time-format=iso`), syslog and journalctl lines, raw /dev/kmsg
    records, and ignores anything else. Bus ids are in sysfs' form (function 0 if the line has none). `time_s` is in
    seconds since boot, and known if the line counts from boot. At most `MAX_EVENTS` are kept, and `MAX_REPEATS` per
    kind, code and device: the first ones, and the last.

    An Xid after an unknown prefix is an event of kind "unclear", without a code: a user's text can look like that.
    The events of an empty text, or of one that contains only dmesg's error message, are Missing.
    """
    if not text.strip():
        return KernelLog(events=Missing(f"{source} is empty", "absent"), source=source)
    if text.lstrip().startswith("dmesg: ") and "not permitted" in text[:200]:
        return KernelLog(events=Missing(f"{source}: no permission to read the kernel log", "denied"), source=source)
    # only "\n" ends a line: a program's name may contain other characters at which str.splitlines splits
    log, _ = collect(text_records(text.split("\n"), _interest_in(text)), source)
    return log


def kmsg_events(text: str) -> tuple[KernelEvent, ...]:
    """The events in records of /dev/kmsg."""
    log, _ = collect(kmsg_records(text, is_of_interest), "/dev/kmsg")
    return known(log.events) or ()


def driver_words(event: KernelEvent) -> str:
    """The driver's message in the line of an event, without the log's prefixes and the name of the process."""
    return words_of_xid(read_line(event.text).message)


class _InstalledGpus:
    """The GPUs that the driver named since it was loaded, each before the line that tells its fault."""

    def __init__(self) -> None:
        self._all: set[str] = set()
        self._last: str | None = None  # its fault is still to come

    def completed(self, message: str, event: KernelEvent | None) -> KernelEvent | None:
        """The event of the message; if the message names no GPU, with the one that a line before it named."""
        if named := installed_gpu(message):
            self._all.add(named)
            self._last = named
        bus_id = None
        if INSTALLED_FAULT.search(message):
            bus_id, self._last = self._last, None
        elif _ONE_PROBED in message and len(self._all) == 1:
            (bus_id,) = self._all  # the line with the fault, which need not begin with NVRM, was not pasted
        if event is None or event.bus_id is not None or event.kind not in ("off-bus", "rm"):
            return event
        return msgspec.structs.replace(event, bus_id=bus_id)


def collect(records: Iterable[LogRecord], source: str) -> tuple[KernelLog, bool]:
    """The events of one log, in the order of its lines; and whether it has the driver's first message."""
    retained = _RetainedEvents()
    quoted = 0
    forgeable = loading = False
    installed = _InstalledGpus()
    host, mismatch = HostEvents(), MismatchLines()
    for number, record in enumerate(records):
        message = record.message
        if not is_of_interest(message):
            continue
        if record.origin in ("kernel", "text"):
            mismatch.add(message)
            if record.continued is None or may_go_on(record.continued.message):
                host.add(message, record.time_s)
        event = _event_of(record)
        if event == "quoted":
            quoted += 1
            continue
        if message.startswith(LOADING) and record.origin in ("kernel", "text"):
            loading = True
            installed = _InstalledGpus()
        event = installed.completed(message, event)
        if event is None:
            if record.origin in ("kernel", "text") and not record.continued and (detail := sxid_detail(message)):
                detail = msgspec.structs.replace(detail, text=record.line, time_s=record.time_s)
                forgeable = forgeable or record.origin == "text"
                retained.add_detail(number, detail)
            continue
        forgeable = forgeable or (record.origin == "text" and event.kind != "unclear")
        retained.add(number, event)
    log = KernelLog(
        retained.in_order(),
        source,
        retained.truncated,
        f"more than {MAX_EVENTS} different events" if retained.truncated else None,
        quoted=quoted,
        forgeable=forgeable,
        host_events=host.events,
        api_mismatch=mismatch.found,
    )
    return log, loading


class _RetainedEvents:
    """Of each kind, code and device the first events and the last; `truncated` if there were too many in all."""

    def __init__(self) -> None:
        self._alike: dict[_EventKey, list[tuple[int, KernelEvent]]] = {}
        self._details: dict[_EventKey, tuple[int, KernelEvent]] = {}
        self._total = 0
        self.truncated = False

    def add(self, number: int, event: KernelEvent) -> None:
        key = (event.kind, event.code, event.bus_id)
        alike = self._alike.get(key, [])
        if len(alike) >= MAX_REPEATS:
            alike[-1] = (number, event)
        elif self._total >= MAX_EVENTS:
            self.truncated = True
        else:
            self._alike.setdefault(key, alike).append((number, event))
            self._total += 1

    def add_detail(self, number: int, detail: KernelEvent) -> None:
        """A second line of an event, for a log without the line itself."""
        self._details.setdefault((detail.kind, detail.code, detail.bus_id), (number, detail))

    def in_order(self) -> tuple[KernelEvent, ...]:
        for key, detail in list(self._details.items())[: MAX_EVENTS - self._total]:
            self._alike.setdefault(key, [detail])
        ordered = sorted((item for alike in self._alike.values() for item in alike), key=lambda item: item[0])
        return tuple(event for _, event in ordered)


def _event_of(record: LogRecord) -> KernelEvent | Literal["quoted"] | None:
    """The event in a line; "quoted" if it contains a driver message that the driver did not write; otherwise None.

    If the log does not show which lines are from the kernel, and the message is not known to contain a user's text,
    the line is an event of kind "unclear": it could be an Xid after an unknown prefix. The same applies to a complete
    driver message after a program's tag, in a text without syslog facilities.
    """
    message, head = record.message, record.continued
    if record.origin in ("kernel", "text") and (head is None or may_go_on(head.message)):
        event = parse_message(message)
        if event is not None:
            return msgspec.structs.replace(event, text=record.line, time_s=record.time_s)
        if not HARD_WORDS.search(message) or is_sxid(message):
            return None
        unclear = begins_coded(message) or (record.origin == "text" and not holds_a_name(message))
    else:
        if not HARD_WORDS.search(message):
            return None
        tagged = record.origin == "program" and head is None
        if tagged and (event := parse_message(message)) is not None:
            # a program tag directly before the driver's message may be an unusual tag of the kernel
            return msgspec.structs.replace(event, kind="unclear", text=record.line, time_s=record.time_s)
        unclear = record.origin == "text" or (tagged and begins_coded(message))
    return KernelEvent("unclear", record.line, time_s=record.time_s) if unclear else "quoted"


class HostEvents:
    """Counts the events of one log by kind, device and interface."""

    def __init__(self) -> None:
        self._found: dict[_Subject, HostEvent] = {}
        self._last_day: dict[_Subject, deque[tuple[float, int]]] = {}
        self._in_day: Counter[_Subject] = Counter()
        self._unread_error: HostEvent | None = None
        self._severity_known = False

    def add(self, message: str, time_s: float | None) -> None:
        """Count the message if it is in the table."""
        found = host_message(message)
        if found is None:
            if self._unread_error is None and _HARDWARE_ERROR.match(message):
                in_day = None if time_s is None else 1
                self._unread_error = HostEvent("machine-check", message, None, 1, time_s, time_s, in_day)
            self._severity_known = self._severity_known or _HARMLESS in message
            return
        self._severity_known = self._severity_known or found[0].startswith("machine-check")
        reported, errors = found[:3], found[3]
        before = self._found.get(reported)
        if before is None and len(self._found) >= MAX_SUBJECTS:
            return
        count, first_s = (errors, time_s) if before is None else (before.count + errors, before.first_s)
        in_day = None if time_s is None else self._in_last_day(reported, time_s, errors)
        self._found[reported] = HostEvent(reported[0], message, reported[1], count, first_s, time_s, in_day)

    def _in_last_day(self, reported: _Subject, time_s: float, errors: int) -> int:
        times = self._last_day.setdefault(reported, deque())
        times.append((time_s, errors))
        self._in_day[reported] += errors
        while times[0][0] < time_s - _DAY_S:
            self._in_day[reported] -= times.popleft()[1]
        return self._in_day[reported]

    @property
    def events(self) -> tuple[HostEvent, ...]:
        """One event per kind and device: of an adapter with several interfaces (representors), that of the most.

        Then the first hardware error that the table does not read, if it reads the severity of none.
        """
        most: dict[tuple[HostEventKind, str | None], HostEvent] = {}
        for (kind, device, _), event in self._found.items():
            if (before := most.get((kind, device))) is None or event.count >= before.count:
                most[kind, device] = event
        unread = () if self._severity_known or self._unread_error is None else (self._unread_error,)
        return (*most.values(), *unread)


def _of_first_line(message: str) -> ApiMismatch | None:
    """What the first line shows by itself: the next ones may be cut off. None for a version of another form."""
    if version := _ONE_VERSION.search(message):
        return ApiMismatch(_CUT_OFF, version[2]) if version[1] else ApiMismatch(version[2], _CUT_OFF)
    return None if " version " in message else ApiMismatch(_CUT_OFF, _CUT_OFF)


class MismatchLines:
    """Assembles the driver's multi-line message about a library of another version."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.found: ApiMismatch | None = None

    def add(self, message: str) -> None:
        if message.startswith(API_MISMATCH):
            self._lines = [message]
            self.found = self.found or _of_first_line(message)
        elif self._lines and message.startswith("NVRM: ") and len(self._lines) < _MISMATCH_LINES:
            self._lines.append(message)
        else:
            self._lines = []
            return
        whole = in_one_line("\n".join(line.strip() for line in self._lines))
        if versions := _MISMATCH.search(" ".join(whole.split())):
            self.found = ApiMismatch(versions[1], versions[2])
            self._lines = []
