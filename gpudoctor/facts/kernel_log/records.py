"""Find where the kernel's message begins in a log line, and whether the kernel wrote it. Pure: text in, records out.

Users choose text that the kernel prints: the name of a program that crashes, of a file, a cgroup, a USB device. So a
message is only recognised from its first character, after prefixes of a closed grammar: timestamps, syslog's host and
tag, facility and level, and what container runtimes, grep and clush put before a line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from gpudoctor.lazy import lazy_pattern

# "kernel": the line or its source shows that the kernel wrote it. "other": it has another facility. "program":
# syslog's tag is that of a program. "text": unknown; anyone who may write to syslog could have written it.
Origin = Literal["kernel", "other", "program", "text"]

MAX_LINE = 2000
_MOST_PASSED = 1000  # no message has this many lines
_MAX_JSON = 1 << 16  # journald puts some thirty fields around a message

_MONOTONIC = r"\[ *(?P<seconds>\d{1,10}\.\d{1,9})(?: <[^>\]]{1,20}>)?\]"
_BRACKETED = (
    _MONOTONIC,
    r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]?\d [\d:]{8} \d{4}(?: <[^>\]]{1,20}>)?\]",  # dmesg -T, with -d too
    r"\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\]",  # dmesg -H, the first line of a minute
    r"\[ *\+\d{1,10}\.\d{1,9}\]|\[<[^>\]]{1,20}>\]",  # dmesg -H and --time-format=delta
    r"\[\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)?\]:?",  # Talos
)
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?"
_PLAIN = (
    rf"(?:[A-Z][a-z]{{2}} )?{_ISO}(?: [A-Z]{{3,5}})?",  # dmesg --time-format=iso, rsyslog, journalctl -o short-full
    r"(?:\d{4} )?[A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,6})?(?: \d{4})?",  # syslog, journalctl
    r"[A-Z][a-z]{2} [ \d]?\d \d{4} \d\d:\d\d:\d\d(?:\.\d{1,6})?",
    r"(?:[^\W\d_]{3,5}\.?|\d{1,2}月) [ \d]?\d \d\d:\d\d:\d\d",  # a month in another language
    r"\d{1,10}\.\d{6}",  # journalctl -o short-unix; dmesg's stamp without its brackets
)
_STAMP = lazy_pattern(rf"(?:{'|'.join(_BRACKETED)}) ?|(?P<plain>{'|'.join(_PLAIN)}) ")
_SECOND_STAMP = lazy_pattern(rf"{_MONOTONIC} ?")  # the kernel's timestamp after syslog's tag
_CALLER = lazy_pattern(r"\[ *[TC]\d{1,10}\] ?")  # CONFIG_PRINTK_CALLER
_KMSG = lazy_pattern(r"(\d{1,5}),(\d{1,19}),(\d{1,19}),[^;]{0,80};")
_PRIORITY = lazy_pattern(r"<(\d{1,3})>(?:1 (?=\d{4}-))?")  # dmesg -r; the 1 is RFC 5424's version
_DECODED = lazy_pattern(
    r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d|local\d) *: *"
    r"(?:emerg|alert|crit|err|warn|notice|info|debug) *: "
)
_HOST = r"[^\s:;,'\"\[\]{}()]{1,253}"
_STRUCTURED = r"\[[\w@.-]{1,64}(?: [\w@.-]{1,64}=\"[^\"\]\\]{0,200}\"){0,20}\]"
_KERNEL_TAG = lazy_pattern(
    rf"(?:{_HOST} )? ?(?:kern\.\w{{3,7}} )?(?:(?:imklog|rsyslogd?|syslogd|syslog-ng)\[\d{{1,10}}\]: )?"
    # RFC 5424 after the host: program, process, message id, structured data (syslog-ng adds some)
    # vmunix: the kernel's tag in old syslog daemons
    r"(?:(?:kernel|vmunix)(?:\[\d{1,10}\])?:(?: |(?=\[))"
    rf"|kernel (?:-|\d{{1,10}}) (?:-|[!-~]{{1,32}}) (?:-|(?:{_STRUCTURED}){{1,5}}) )"
)
_PROGRAM_TAG = lazy_pattern(rf"{_HOST} [\w./@-]{{1,64}}(?P<pid>\[\d{{1,10}}\])?: ")
_STAMP_BEGIN = rf"\[ *\+?\d{{1,10}}\.\d|\[[A-Z][a-z]{{2}} ?\w|{_ISO} |[A-Z][a-z]{{2}} [ \d]?\d \d\d:"
_WRAPPINGS = lazy_pattern(
    r"\d{1,9}[:\t] ?"  # grep -n, cat -n
    rf"|\d{{1,9}} {{2}}(?={_STAMP_BEGIN}|<\d|(?:kernel: )?NVRM: )"  # cat -n, copied from a terminal
    # grep in several files
    r"|[\w./+@-]{0,200}(?:\.(?:log|txt|out)|/(?:messages|syslog|kmsg|dmesg|kern))[\w.-]{0,20}:(?:\d{1,9}:)?"
    rf"|(?:[\w./+@-]{{0,200}}(?:\.(?:log|txt|out)|/(?:messages|syslog|kmsg|dmesg|kern))[\w.]{{0,20}}-)?\d{{0,9}}-?"
    rf"(?<=-)(?={_STAMP_BEGIN}|<\d|(?:kernel: )?NVRM: )"  # grep -A and -n: a context line
    r"|\"?MESSAGE\"?(?:=| : \")"  # journalctl -o export, verbose and json-pretty
    r"|\[pod/[^\]\s]{1,300}\] "  # kubectl logs --prefix
    r"|[\w.-]{1,64} {0,64}\| "  # docker compose logs
    rf"|{_ISO} std(?:out|err) [FP] "  # the kubelet's log files
    rf"|{_ISO} (?={_STAMP_BEGIN}|<\d|\{{)"  # docker logs --timestamps
    rf"|[\w.-]{{1,64}}: (?={_STAMP_BEGIN}|kern *: *\w)"  # clush, pdsh, talosctl
)
_MOST_WRAPPINGS = 3
_COLOURS = lazy_pattern(r"\x1b\[[0-9;]{0,20}[mK]")  # dmesg --color=always
_BYTES = '"MESSAGE":['  # journalctl -o json, for a message with unprintable bytes


class LogRecord(msgspec.Struct, frozen=True):
    """One line of a kernel log. `message` is the text after its prefixes, `line` the original line.

    `time_s` is in seconds since boot if the line counts from boot. `stamped`: the message has a log prefix.
    `continued`: it has none, and continues the message of this earlier record.
    """

    line: str
    message: str
    origin: Origin = "text"
    time_s: float | None = None
    stamped: bool = False
    continued: LogRecord | None = None


def kmsg_records(text: str, keeps: Callable[[str], bool]) -> Iterator[LogRecord]:
    """Yield the wanted messages in the content of /dev/kmsg: whole records, never their " KEY=value" lines.

    The kernel writes a line end inside a message as \\x0a there. It is kept, because the text after it is not the start
    of a message.
    """
    for line in text.split("\n"):
        if keeps(line) and (record := _kmsg_record(line)) is not None:
            yield record


def text_records(lines: Iterable[str], keeps: Callable[[str], bool], from_kernel: bool = False) -> Iterator[LogRecord]:
    """Yield the wanted lines of dmesg, syslog, journalctl (text or JSON), /dev/kmsg, or any other text.

    `from_kernel`: the text only contains messages of the kernel (journalctl -k).
    """
    current = _OpenMessage()
    # only examined if a later line may continue one of them
    passed: deque[str] = deque(maxlen=_MOST_PASSED)
    for coloured in lines:
        raw = _COLOURS.sub("", coloured) if "\x1b" in coloured else coloured
        if not keeps(raw) and _BYTES not in raw:
            passed.append(raw)
            continue
        record = read_line(_clipped(raw))
        if raw[:1] in " \t" or not record.stamped:
            for before in passed:
                current.record(before, read_line(_clipped(before)))
            continued = current.record(raw, record)
            if continued is None:
                continue
            record = continued
        else:
            current = _OpenMessage(record)
        passed.clear()
        if from_kernel and record.origin != "kernel":
            record = msgspec.structs.replace(record, origin="kernel" if record.origin == "text" else "other")
        yield record


class _OpenMessage:
    """The current message in a text, to which further lines may belong; dmesg and journalctl indent these."""

    def __init__(self, head: LogRecord | None = None) -> None:
        self._head = head
        self._indent = 0

    def record(self, raw: str, record: LogRecord) -> LogRecord | None:
        """The next line's record in this context; None if it is not a message (" KEY=value" of /dev/kmsg)."""
        indent = len(raw) - len(raw.lstrip(" \t"))
        head = self._head
        if head is not None and record.line and (indent > self._indent or not record.stamped):
            if indent and _KMSG.match(head.line):
                return None
            # anything in it that looks like a timestamp is part of the message
            message = unwrapped(record.line).lstrip(" \t")
            return LogRecord(record.line, message, head.origin, head.time_s, continued=head)
        if record.stamped:
            self._head, self._indent = record, indent
        return record


def _clipped(raw: str) -> str:
    line = raw.strip(" \t\r\n")
    return line[: _MAX_JSON if line[:1] == "{" else MAX_LINE]


def read_line(line: str) -> LogRecord:
    """Parse a single line without context.

    >>> record = read_line("Nov 14 07:00:14 node12 kernel: [  123.5] NVRM: Xid")
    >>> record.message, record.time_s, record.origin
    ('NVRM: Xid', 123.5, 'text')
    >>> read_line("3,1377,123500000,-;NVRM: Xid").origin, read_line("[ 1.5] traps: NVRM: Xid[77] trap").message
    ('kernel', 'traps: NVRM: Xid[77] trap')
    """
    rest = unwrapped(line)
    at = len(line) - len(rest)
    record = _json_record(rest) if rest.startswith("{") else _kmsg_record(rest)
    if record is not None:
        return record
    begin = at
    origin: Origin = "text"
    if priority := _PRIORITY.match(line, at):
        origin, at = "kernel" if int(priority[1]) < 8 else "other", priority.end()
    elif decoded := _DECODED.match(line, at):
        origin, at = "kernel" if decoded[1] == "kern" else "other", decoded.end()
    time_s = None
    stamp = _STAMP.match(line, at)
    if stamp is not None:
        time_s, at = _seconds(stamp), _behind_caller(line, stamp.end())
    if tag := _KERNEL_TAG.match(line, at):
        at = tag.end()
        if second := _SECOND_STAMP.match(line, at):
            time_s, at = _seconds(second), second.end()
        at = _behind_caller(line, at)
    elif stamp is not None and (program := _PROGRAM_TAG.match(line, at)) and (program["pid"] or stamp["plain"]):
        origin, at = "program", program.end()
    return LogRecord(line, line[at:].lstrip(" "), origin, time_s, stamped=at > begin)


def unwrapped(line: str) -> str:
    """The line without the prefixes of container runtimes, grep and clush.

    >>> unwrapped("2024-11-14T07:00:14.5Z stderr F [ 1.5] eth0: up"), unwrapped("node12: [ 1.5] eth0: up")
    ('[ 1.5] eth0: up', '[ 1.5] eth0: up')
    """
    at = 0
    for _ in range(_MOST_WRAPPINGS):
        wrapping = _WRAPPINGS.match(line, at)
        if wrapping is None:
            break
        at = wrapping.end()
    return line[at:]


def _kmsg_record(line: str) -> LogRecord | None:
    found = _KMSG.match(line)
    if found is None:
        return None
    origin: Origin = "kernel" if int(found[1]) >> 3 == 0 else "other"
    return LogRecord(line, line[found.end() :], origin, int(found[3]) / 1e6, stamped=True)


def first_of_kmsg(text: str) -> tuple[int, float] | None:
    """Sequence number and seconds since boot of the first record in /dev/kmsg; None if there is none."""
    for line in text.split("\n"):
        if found := _KMSG.match(line):
            return int(found[2]), int(found[3]) / 1e6
    return None


def _json_record(line: str) -> LogRecord | None:
    """Parse a line of `journalctl -o json` or of Docker's json-file log; None for any other."""
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    for key in ("log", "message", "msg"):  # Docker's json-file; fluentd, vector and the like
        if "MESSAGE" not in entry and isinstance(entry.get(key), str):
            return read_line(entry[key].rstrip("\n")[:MAX_LINE].replace("\n", "\\x0a"))
    message = _text_of(entry.get("MESSAGE"))
    if message is None:
        return None
    transport = entry.get("_TRANSPORT")
    facility = entry.get("SYSLOG_FACILITY", "0")
    origin: Origin = "kernel" if transport == "kernel" and facility == "0" else "other"
    if transport is None and entry.get("SYSLOG_IDENTIFIER") == "kernel":
        origin = "text"
    stamp = entry.get("_SOURCE_MONOTONIC_TIMESTAMP", entry.get("__MONOTONIC_TIMESTAMP"))
    time_s = int(stamp) / 1e6 if isinstance(stamp, str) and stamp.isdecimal() and len(stamp) < 20 else None
    # as in /dev/kmsg: a line end inside a message does not begin a new one
    message = message.replace("\n", "\\x0a")[:MAX_LINE]
    return LogRecord(message, message, origin, time_s, stamped=True)


def _text_of(value: object) -> str | None:
    """A field of the journal: a string, or a list of bytes if not all of it is printable."""
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _seconds(stamp: re.Match[str]) -> float | None:
    return float(stamp["seconds"]) if stamp["seconds"] else None


def _behind_caller(line: str, at: int) -> int:
    caller = _CALLER.match(line, at)
    return caller.end() if caller else at
