"""The kernel log since boot, from /dev/kmsg, the journal or both; and new lines as they arrive."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from gpudoctor.facts.kernel_log.lines import KernelEvents, collect, is_of_interest, kmsg_events
from gpudoctor.facts.kernel_log.records import LogRecord, first_of_kmsg, kmsg_records, text_records
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, KernelLog
from gpudoctor.facts.system.sysfs import ROOT, AnyPath, missing_from, run_command
from gpudoctor.lazy import lazy_imports, lazy_pattern

with lazy_imports():
    from gpudoctor.process import ending

_RING_BUFFER = "/dev/kmsg"
_MAX_BYTES = 64 << 20
_MAX_OVERTAKEN = 1000  # reads in a row; normally one, several if the log is flooded
_JOURNAL_DEADLINE_S = 5.0
_JOURNAL_LINES = 100_000  # the newest ones: if something floods the log, the journal grows to gigabytes
_JOURNAL_BYTES = 16 << 20
# -k selects _TRANSPORT=kernel; without -a, a message with an unprintable byte is printed as "[123B blob data]"
_JOURNAL = ("journalctl", "-k", "-b", "-a", "-o", "short-monotonic", "--no-pager", "-q", "-n", str(_JOURNAL_LINES))
_JOURNAL_LINE = lazy_pattern(r"\[ *(\d+\.\d+)\] \S+ kernel: ")
_JOURNAL_NAME = " ".join(_JOURNAL[:3])
# The kernel's first messages have the time 0; NVIDIA's driver is never loaded within the first second
_FROM_BOOT_S = 1.0
_MOST_RECORDS = 2000  # per tick; the rest is read at the next one
_MOST_EVENTS = 200
_GAP = KernelEvent("gap", "kernel lines were overwritten before they could be read")


class _Ring(msgspec.Struct, frozen=True):
    """The content of /dev/kmsg; `overtaken`: the kernel overwrote records while they were read."""

    text: str
    overtaken: bool = False


class _Journal(msgspec.Struct, frozen=True):
    """The journal's lines of interest; `starts_s`: the time of its very first line, in seconds since boot.

    `cut`: only the newest lines were read.
    """

    records: tuple[LogRecord, ...]
    starts_s: float
    cut: bool


def read_kernel_log(root: AnyPath, deadline_s: float = _JOURNAL_DEADLINE_S) -> KernelLog:
    """The events since boot; Missing if neither /dev/kmsg nor the journal may be read.

    If journalctl hangs (longer than 5 s or `deadline_s`, whichever is less) or is killed by a signal, the reading
    failed; it was not denied.

    If the ring buffer reaches back neither to boot nor to the loading of the driver, the journal's lines are added,
    each line once; `truncated` is set if that is not enough. A source without any kernel line (a /dev/kmsg that a
    container engine redirected, a journal of another user) counts as unread: it is no evidence about the GPUs. Only
    lines with the kernel's facility count.
    """
    ring = _read_ring_buffer(root / "dev/kmsg")
    limit_s = min(deadline_s, _JOURNAL_DEADLINE_S)
    if isinstance(ring, _Ring):
        first = first_of_kmsg(ring.text)
        if first is not None:
            sequence, starts_s = first
            found = collect(kmsg_records(ring.text, is_of_interest))
            overwritten = sequence > 0 and not found.loading
            if not overwritten and not ring.overtaken:
                log = found.log(_RING_BUFFER)
                return msgspec.structs.replace(log, starts_s=starts_s if sequence > 0 else None)
            journal = _read_journal(limit_s) if os.fspath(root) == ROOT else None
            return _joined(ring, found, starts_s if overwritten else None, journal)
        ring = Missing(f"{_RING_BUFFER} holds no kernel messages", "absent")
    if os.fspath(root) == ROOT:
        journal = _read_journal(limit_s)
        if isinstance(journal, Missing):
            return KernelLog(events=journal, source=journal)
        if journal is not None:
            return _of_journal(journal)
    return KernelLog(events=ring, source=ring)


def _joined(ring: _Ring, found: KernelEvents, starts_s: float | None, journal: _Journal | Missing | None) -> KernelLog:
    """The rest of the ring buffer joined with the journal."""
    if starts_s is None:
        gap = "the kernel's ring buffer was overwritten while it was read"
    else:
        gap = f"the kernel's ring buffer has been overwritten since boot: {starts_s:.0f} s of log missing"
    if not isinstance(journal, _Journal):
        why = "there is no journal" if journal is None else f"the journal was not read: {journal.reason}"
        log = found.log(_RING_BUFFER)
        return msgspec.structs.replace(log, truncated=True, gap=f"{gap}, and {why}", starts_s=starts_s)
    both = collect(_each_once(journal.records, kmsg_records(ring.text, is_of_interest)))
    log = both.log(f"{_RING_BUFFER} and {_JOURNAL_NAME}")
    if not journal.cut and (journal.starts_s <= _FROM_BOOT_S or both.loading):
        return msgspec.structs.replace(log, starts_s=None if journal.starts_s <= _FROM_BOOT_S else journal.starts_s)
    why = _shortage(journal)
    first_s = journal.starts_s if starts_s is None else min(starts_s, journal.starts_s)
    return msgspec.structs.replace(log, truncated=True, gap=f"{gap}, and {why}", starts_s=first_s)


def _of_journal(journal: _Journal) -> KernelLog:
    found = collect(journal.records)
    log = found.log(_JOURNAL_NAME)
    if journal.starts_s <= _FROM_BOOT_S and not journal.cut:
        return log
    log = msgspec.structs.replace(log, starts_s=journal.starts_s)
    if found.loading and not journal.cut:
        return log
    return msgspec.structs.replace(log, truncated=True, gap=_shortage(journal))


def _shortage(journal: _Journal) -> str:
    if journal.cut:
        return f"only the journal's newest {_JOURNAL_LINES} lines or {_JOURNAL_BYTES >> 20} MiB were read"
    return f"the journal begins {journal.starts_s:.0f} s after boot"


def _each_once(journal: Iterable[LogRecord], ring: Iterable[LogRecord]) -> list[LogRecord]:
    """The records of both, by time. Records with the same kernel timestamp (microseconds) and message are the same."""
    records = {(record.time_s and round(record.time_s, 6), record.message): record for record in (*journal, *ring)}
    return sorted(records.values(), key=lambda record: record.time_s or 0.0)


def _read_ring_buffer(path: AnyPath) -> _Ring | Missing:
    """Every record in the buffer; the device returns one per read, and EAGAIN after the last."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return missing_from(error, _RING_BUFFER)
    parts: list[bytes] = []
    size = 0
    overtaken = False
    lost = 0
    try:
        while size < _MAX_BYTES and lost < _MAX_OVERTAKEN:
            try:
                part = os.read(device, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # the kernel overwrote the next record; continue with the oldest one left
                overtaken = overtaken or size > 0
                lost += 1
                continue
            if not part:
                break
            lost = 0
            parts.append(part)
            size += len(part)
    except OSError as error:
        return missing_from(error, _RING_BUFFER)
    finally:
        os.close(device)
    if lost == _MAX_OVERTAKEN and not parts:
        return Missing(f"{_RING_BUFFER}: overwritten faster than it can be read", "failed")
    return _Ring(b"".join(parts).decode("utf-8", "replace"), overtaken)


def _read_journal(deadline_s: float) -> _Journal | Missing | None:
    """The journal's newest kernel lines since boot; None if there are none, Missing if journalctl hung or died."""
    answer = run_command(list(_JOURNAL), deadline_s=deadline_s, max_bytes=_JOURNAL_BYTES)
    if isinstance(answer, Missing):
        return answer if answer.kind == "failed" else None
    if answer.returncode is not None and answer.returncode < 0:
        return Missing(f"journalctl was ended by {ending.signal_name(-answer.returncode)}", "failed")
    if not (answer.returncode == 0 or answer.truncated):
        return None
    lines = answer.stdout.split("\n")
    starts_s = next((found[1] for line in lines if (found := _JOURNAL_LINE.match(line))), None)
    if starts_s is None:
        return None
    cut = answer.truncated or len(lines) > _JOURNAL_LINES
    return _Journal(tuple(text_records(lines, is_of_interest, from_kernel=True)), float(starts_s), cut)


# New lines of the kernel log as they arrive.


class KernelTail:
    """Reads events that occur after its creation; none if /dev/kmsg may not be read (which the facts report).

    Lines that the kernel overwrote before they were read are reported as one event of kind "gap". Call `close`.
    """

    def __init__(self, root: AnyPath = ROOT) -> None:
        self._device: int | None = None
        self._has_end = False
        with suppress(OSError):
            self._device = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._device, 0, os.SEEK_END)

    @property
    def descriptor(self) -> int | None:
        """Readable when there are new lines; None if it cannot be waited for."""
        return None if self._has_end else self._device

    def read(self) -> tuple[KernelEvent, ...]:
        """The events since the last call; never waits."""
        if self._device is None:
            return ()
        parts: list[bytes] = []
        gap: tuple[KernelEvent, ...] = ()
        for _ in range(_MOST_RECORDS):
            try:
                part = os.read(self._device, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:
                gap = (_GAP,)
                continue
            except OSError:
                self.close()
                break
            if not part:  # not /dev/kmsg, which has no end: poll would call it readable forever
                self._has_end = True
                break
            parts.append(part)
        return (*gap, *kmsg_events(b"".join(parts).decode("utf-8", "replace"))[-_MOST_EVENTS:])

    def close(self) -> None:
        """Close the device."""
        if self._device is not None:
            os.close(self._device)
            self._device = None
