"""The reader of kernel logs, and the join of one machine's logs: pieces of one, or the same lines from two programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import reduce
from operator import add

from msgspec.structs import replace

from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.kernel_log.lines import MAX_EVENTS, read_kernel_text
from gpudoctor.facts.kernel_log.message_tables import HOST_WORDS, host_message
from gpudoctor.facts.kernel_log.messages import HARD_WORDS, MARK
from gpudoctor.facts.kernel_log.records import read_line, unwrapped
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import HostEvent, KernelEvent, KernelLog, Node

_KERNEL_LINE = re.compile(
    r"(?:<\d+>|[a-z]+ *:[a-z]+ *: )?(?:\[ *\+?\d+\.\d{3,9}\] |\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] "
    r"|\d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]\d\d:\d\d )"
    r"|\d{1,3},\d+,\d+,"
)
_LONGEST_ORIGIN = 170  # a date and a host
_BARE_MESSAGE = re.compile(
    r"\s*(?:NVRM: |nvidia-nvswitch\d*: |(?:mce: |\{\d{1,9}\})?\[Hardware Error\]: "
    r"|(?:nvidia|pcieport|mlx5_core|pci|nouveau|vfio-pci) [0-9a-f]{4}:[0-9a-f]{2}:"
    r"|dmesg: read kernel buffer failed)"
)
_DAY_S = 86_400.0
# also of syslogd's messages to all terminals: " kernel:[Hardware Error]: ..."
_TAG, _VERSION = re.compile(r"kernel:(?: |(?=\[))"), re.compile(r"\d+\.\d")
_CONTINUED = re.compile(r" {10,}\S")  # dmesg and journalctl indent continuation lines by the width of the timestamp
_STAMPED = re.compile(
    r"\[ *\+?\d+\.\d|\[[A-Z][a-z]{2} |\d{4}-\d\d-\d\dT\d\d:|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |<\d+>"
    r"|\d+,\d+,\d+,|[a-z]+ *:[a-z]+ *:|\{"
)


def is_kernel_line(line: str) -> bool:
    rest = unwrapped(line.lstrip(" \t"))
    at = line.find(" kernel: ", 1, _LONGEST_ORIGIN)
    if (at > 0 and not line[:at].isspace()) or _KERNEL_LINE.match(line) or _KERNEL_LINE.match(rest):
        return True
    return rest.startswith("{") and read_line(rest).origin == "kernel"


def _begins_kernel_log(line: str) -> object:
    message = line.lstrip()
    if tag := _TAG.match(message):  # "kernel: 6.8.0" is not a log line
        return _VERSION.match(message, tag.end()) is None
    if is_kernel_line(line) or _BARE_MESSAGE.match(unwrapped(line)):
        return True
    # without a timestamp, only a message in the table of host events is certain to be from the kernel
    return any(word in line for word in HOST_WORDS) and host_message(unwrapped(message).lstrip(" \t")) is not None


def _goes_on_kernel_log(line: str) -> object:
    return _CONTINUED.match(line) or _STAMPED.match(line) or MARK.search(line) or _begins_kernel_log(line)


@text_reader("kernel log", _begins_kernel_log, _goes_on_kernel_log, may_be=HARD_WORDS.search, in_pieces=True)
def read_kernel_log(block: Block) -> Part:
    return Part(Node(kernel_log=read_kernel_text(block.text, block.file)))


def joined_logs(logs: Iterable[KernelLog]) -> KernelLog | None:
    """Merge the logs: dmesg and the journal contain the same lines, so the highest count of each event is kept."""
    ordered = sorted(logs, key=lambda log: (-len(known(log.events) or ()), repr(log)))
    return _capped(reduce(joined, ordered)) if ordered else None


def joined(log: KernelLog, other: KernelLog, *, goes_on: bool = False) -> KernelLog:
    """Two logs of the same time, or a log and its next piece, which counts what the first does not."""
    if isinstance(log.events, Missing) or isinstance(other.events, Missing):
        return other if isinstance(log.events, Missing) else log
    count: Callable[[int, int], int] = add if goes_on else max
    more = other.events if goes_on else _not_in(log.events, other.events)
    hosts = _joined_events(_host_events(log, other), count)
    sources = [*(known(log.source) or "").split(", "), *(known(other.source) or "").split(", ")]
    # what one log of the same time leaves out may be in the other
    cut = (log.truncated or other.truncated) if goes_on else (log.truncated and other.truncated)
    mismatches = (other.api_mismatch, log.api_mismatch) if goes_on else (log.api_mismatch, other.api_mismatch)
    whole = replace(
        log,
        events=(*log.events, *more),
        source=", ".join(dict.fromkeys(filter(None, sources))) or log.source,
        quoted=count(log.quoted, other.quoted),
        # events that no log confirms as the kernel's could have been written by any user
        forgeable=log.forgeable or (other.forgeable and bool(more)),
        truncated=cut,
        gap=(log.gap or other.gap) if cut else None,
        host_events=hosts or (log.host_events if known(log.host_events) is not None else other.host_events),
        api_mismatch=mismatches[0] or mismatches[1],
    )
    return _capped(whole) if goes_on else whole


def _host_events(log: KernelLog, other: KernelLog) -> tuple[HostEvent, ...]:
    return (*(known(log.host_events) or ()), *(known(other.host_events) or ()))


def _not_in(events: Iterable[KernelEvent], others: Iterable[KernelEvent]) -> list[KernelEvent]:
    """Those of the other events that come up more often there."""
    have = Counter(map(_key, events))
    more: list[KernelEvent] = []
    for event in others:
        have[_key(event)] -= 1
        if have[_key(event)] < 0:
            more.append(event)
    return more


def _key(event: KernelEvent) -> tuple[str, int | None, str | None, str]:
    return (event.kind, event.code, event.bus_id, read_line(event.text).message)


def _joined_events(events: Iterable[HostEvent], count: Callable[[int, int], int]) -> tuple[HostEvent, ...]:
    """One event per kind and device; `count` combines two counts into one."""
    found: dict[tuple[str, str | None], HostEvent] = {}
    for event in events:
        before = found.get(key := (event.kind, event.device))
        found[key] = event if before is None else _both(before, event, count)
    return tuple(found[key] for key in sorted(found, key=repr))


def _both(one: HostEvent, other: HostEvent, count: Callable[[int, int], int]) -> HostEvent:
    first, last = (one, other) if (other.last_s or 0) >= (one.last_s or 0) else (other, one)
    firsts = [s for s in (one.first_s, other.first_s) if s is not None]
    in_day = None
    if first.count_last_day is not None and last.count_last_day is not None:
        apart_s = (last.last_s or 0.0) - (first.last_s or 0.0)
        in_day = last.count_last_day if apart_s > _DAY_S else count(first.count_last_day, last.count_last_day)
    return replace(
        last,
        count=count(one.count, other.count),
        first_s=min(firsts) if firsts else None,
        count_last_day=in_day,
    )


def _capped(log: KernelLog) -> KernelLog:
    if isinstance(log.events, Missing) or len(log.events) <= MAX_EVENTS:
        return log
    return replace(log, events=log.events[:MAX_EVENTS], truncated=True, gap=f"more than {MAX_EVENTS} different events")
