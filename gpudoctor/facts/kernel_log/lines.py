"""The lines of a kernel log -> events. Pure: text in, facts out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gpudoctor.facts.kernel_log.driver_messages import MismatchLines
from gpudoctor.facts.kernel_log.host_messages import HOST_WORDS, HostEvents
from gpudoctor.facts.kernel_log.messages import (
    HARD_WORDS,
    INSTALLED_LOST,
    INSTALLED_OTHER,
    LOADING,
    WORDS,
    begins_coded,
    holds_a_name,
    installed_gpu,
    is_sxid,
    may_go_on,
    parse_message,
    words_of_xid,
)
from gpudoctor.facts.kernel_log.records import LogRecord, kmsg_records, read_line, text_records
from gpudoctor.facts.model.kernel_log import ApiMismatch, HostEvent, KernelEvent, KernelLog
from gpudoctor.facts.model.missing import Missing

MAX_EVENTS = 10_000
# A flood of one message must not push out the one that matters: of each kind, code and device this many are kept
MAX_REPEATS = 100
_WORDS = (*WORDS, *HOST_WORDS)


def is_of_interest(line: str) -> bool:
    """Whether a line holds a word of a table: only then it is worth a closer look."""
    # a loop over `in` is several times faster here than one pattern of so many words
    return any(word in line for word in _WORDS)


def parse_kernel_lines(lines: Iterable[str]) -> tuple[KernelEvent, ...]:
    """The events in kernel log lines, in their order.

    Takes dmesg (`[  123.456]`, `-T`, `-x`, `-r`, `--time-format=iso`), syslog and journalctl lines, raw /dev/kmsg
    records, and anything else without complaint. Bus ids come out in sysfs' form (function 0 where
    the line names none). `time_s` is known where the line counts from boot. At most `MAX_EVENTS`
    are kept, and `MAX_REPEATS` of a kind, code and device: the first ones, and the last.

    An Xid behind a prefix that is not known is an event of kind "unclear", without a code: a user's words can look so.
    """
    return collect(text_records(lines, is_of_interest)).events


def read_kernel_text(text: str, source: str) -> KernelLog:
    """A captured kernel log as facts; `truncated` says that events were left out.

    Text without any line, or with dmesg's complaint instead, is no kernel log: its events are Missing.
    """
    if not text.strip():
        return KernelLog(events=Missing(f"{source} is empty", "absent"), source=source)
    if text.lstrip().startswith("dmesg: ") and "not permitted" in text[:200]:
        return KernelLog(events=Missing(f"{source}: no permission to read the kernel log", "denied"), source=source)
    # only "\n" ends a line: the name of a program may hold what str.splitlines takes for an end
    return collect(text_records(text.split("\n"), is_of_interest)).log(source)


def kmsg_events(text: str) -> tuple[KernelEvent, ...]:
    """The events in what /dev/kmsg gave."""
    return collect(kmsg_records(text, is_of_interest)).events


def driver_words(event: KernelEvent) -> str:
    """What the driver says in the line of an event: without the log's prefixes, and without the process it names."""
    return words_of_xid(read_line(event.text).message)


class KernelEvents(msgspec.Struct, frozen=True):
    """The events in a log. `quoted` and `forgeable` as in `KernelLog`; `loading`: it holds the driver's first line."""

    events: tuple[KernelEvent, ...] = ()
    truncated: bool = False
    quoted: int = 0
    forgeable: bool = False
    loading: bool = False
    host_events: tuple[HostEvent, ...] = ()
    api_mismatch: ApiMismatch | None = None

    def log(self, source: str) -> KernelLog:
        gap = f"more than {MAX_EVENTS} different events" if self.truncated else None
        return KernelLog(
            self.events,
            source,
            self.truncated,
            gap,
            quoted=self.quoted,
            forgeable=self.forgeable,
            host_events=self.host_events,
            api_mismatch=self.api_mismatch,
        )


def collect(records: Iterable[LogRecord]) -> KernelEvents:
    """The events of one log, in the order of its lines."""
    kept: dict[tuple[str, int | None, str | None], list[tuple[int, KernelEvent]]] = {}
    total = quoted = 0
    truncated = forgeable = loading = False
    named_at_boot: str | None = None
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
        named_at_boot = installed_gpu(message) or named_at_boot
        loading = loading or (message.startswith(LOADING) and record.origin in ("kernel", "text"))
        if INSTALLED_LOST in message and event is not None and event.kind == "off-bus" and event.bus_id is None:
            event = msgspec.structs.replace(event, bus_id=named_at_boot)
        if INSTALLED_LOST in message or INSTALLED_OTHER in message:
            named_at_boot = None
        if event is None:
            continue
        forgeable = forgeable or (record.origin == "text" and event.kind != "unclear")
        key = (event.kind, event.code, event.bus_id)
        same = kept.get(key, [])
        if len(same) >= MAX_REPEATS:
            same[-1] = (number, event)
        elif total >= MAX_EVENTS:
            truncated = True
        else:
            kept.setdefault(key, same).append((number, event))
            total += 1
    ordered = sorted((item for same in kept.values() for item in same), key=lambda item: item[0])
    events = tuple(event for _, event in ordered)
    return KernelEvents(events, truncated, quoted, forgeable, loading, host.events, mismatch.found)


def _event_of(record: LogRecord) -> KernelEvent | Literal["quoted"] | None:
    """The event that a line tells; "quoted" where the driver's words in it are not the driver's; None for any other.

    Where the log does not tell which lines are the kernel's, and the message is none that is known to hold a user's
    words, the line is an event of kind "unclear": it could be an Xid whose prefix nobody knows. It is the same with
    a whole message of the driver behind the tag of a program, in a text that does not tell the facility.
    """
    message = record.message
    head = record.continued
    if record.origin in ("kernel", "text") and (head is None or may_go_on(head.message)):
        event = parse_message(message)
        if event is not None:
            return msgspec.structs.replace(event, text=record.line, time_s=record.time_s)
        if not HARD_WORDS.search(message) or is_sxid(message):
            return None
        unclear = begins_coded(message) or (record.origin == "text" and not holds_a_name(message))
        return KernelEvent("unclear", record.line, time_s=record.time_s) if unclear else "quoted"
    if not HARD_WORDS.search(message):
        return None
    if record.origin == "program" and head is None and (event := parse_message(message)) is not None:
        # the tag of a program that writes nothing else before the driver's words may be a strange one of the kernel's
        return msgspec.structs.replace(event, kind="unclear", text=record.line, time_s=record.time_s)
    unclear = record.origin == "text" or (record.origin == "program" and head is None and begins_coded(message))
    return KernelEvent("unclear", record.line, time_s=record.time_s) if unclear else "quoted"
