"""The kernel log since boot, from /dev/kmsg, the journal or both; and new lines as they arrive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.kernel_log.lines import collect, is_of_interest, kmsg_events
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
    if not isinstance(ring, Missing):
        text, overtaken = ring
        if (first := first_of_kmsg(text)) is not None:
            sequence, starts_s = first
            log, loading = collect(kmsg_records(text, is_of_interest), _RING_BUFFER)
            overwritten = sequence > 0 and not loading
            if overwritten or overtaken:
                return _joined(text, log, starts_s if overwritten else None, _read_journal(root, limit_s))
            return replace(log, starts_s=starts_s if sequence > 0 else None)
        ring = Missing(f"{_RING_BUFFER} holds no kernel messages", "absent")
    journal = _read_journal(root, limit_s)
    if isinstance(journal, _Journal):
        log, loading = collect(journal.records, _JOURNAL_NAME)
        return _reaching_back(log, loading, journal)
    unread = ring if journal is None else journal
    return KernelLog(events=unread, source=unread)


def _joined(text: str, log: KernelLog, starts_s: float | None, journal: _Journal | Missing | None) -> KernelLog:
    """The rest of the ring buffer (`text`, with its events in `log`) joined with the journal."""
    if starts_s is None:
        gap = "the kernel's ring buffer was overwritten while it was read"
    else:
        missing = f"{starts_s:.0f} s of log" if starts_s >= 1 else "its first lines"
        gap = f"the kernel's ring buffer has been overwritten since boot: {missing} missing"
    if isinstance(journal, _Journal):
        both = _each_once(journal.records, kmsg_records(text, is_of_interest))
        log, loading = collect(both, f"{_RING_BUFFER} and {_JOURNAL_NAME}")
        return _reaching_back(log, loading, journal, f"{gap}, and ", starts_s)
    why = "there is no journal" if journal is None else f"the journal was not read: {journal.reason}"
    return replace(log, truncated=True, gap=f"{gap}, and {why}", starts_s=starts_s)


def _reaching_back(
    log: KernelLog, loading: bool, journal: _Journal, gap: str = "", starts_s: float | None = None
) -> KernelLog:
    """A log with lines of the journal, and what is missing of it.

    `loading`: it has the driver's first message; `gap` and `starts_s`: of the ring buffer, if it has a part of it.
    """
    from_boot = journal.starts_s <= _FROM_BOOT_S
    if not journal.cut and (from_boot or loading):
        return replace(log, starts_s=None if from_boot else journal.starts_s)
    if journal.cut:
        gap += f"only the journal's newest {_JOURNAL_LINES} lines or {_JOURNAL_BYTES >> 20} MiB were read"
    else:
        gap += f"the journal begins {journal.starts_s:.0f} s after boot"
    first_s = journal.starts_s if starts_s is None else min(starts_s, journal.starts_s)
    return replace(log, truncated=True, gap=gap, starts_s=first_s)


def _each_once(journal: Iterable[LogRecord], ring: Iterable[LogRecord]) -> list[LogRecord]:
    """The records of both, by time. Records with the same kernel timestamp (microseconds) and message are the same."""
    records = {(record.time_s and round(record.time_s, 6), record.message): record for record in (*journal, *ring)}
    return sorted(records.values(), key=lambda record: record.time_s or 0.0)


def _read_ring_buffer(path: AnyPath) -> tuple[str, bool] | Missing:
    """Every record in the buffer, and whether the kernel overwrote records while they were read."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return missing_from(error, _RING_BUFFER)
    parts: list[bytes] = []
    size = lost = 0
    overtaken = False
    try:
        for part in _records_of(device):
            if part is None:
                overtaken = overtaken or size > 0
                lost += 1
            else:
                lost = 0
                parts.append(part)
                size += len(part)
            if size >= _MAX_BYTES or lost >= _MAX_OVERTAKEN:
                break
    except OSError as error:
        return missing_from(error, _RING_BUFFER)
    finally:
        os.close(device)
    if lost == _MAX_OVERTAKEN and not parts:
        return Missing(f"{_RING_BUFFER}: overwritten faster than it can be read", "failed")
    return b"".join(parts).decode("utf-8", "replace"), overtaken


def _records_of(device: int) -> Iterator[bytes | None]:
    """Yield the records that /dev/kmsg has now, one per read; None where the kernel overwrote the next one.

    What is not that device has an end, for which b"" is yielded. Raise OSError.
    """
    part: bytes | None = None
    while part != b"":
        try:
            part = os.read(device, 1 << 16)
        except BlockingIOError:
            return
        except BrokenPipeError:
            part = None  # the next read returns the oldest record left
        yield part


def _read_journal(root: AnyPath, deadline_s: float) -> _Journal | Missing | None:
    """The journal's newest kernel lines since boot; Missing if journalctl hung or died.

    None if there are none, or if the root is not this machine's.
    """
    if os.fspath(root) != ROOT:
        return None
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
        try:
            for part in islice(_records_of(self._device), _MOST_RECORDS):
                if part is None:
                    gap = (_GAP,)
                elif part:
                    parts.append(part)
                else:  # poll would call it readable forever
                    self._has_end = True
        except OSError:
            self.close()
        return (*gap, *kmsg_events(b"".join(parts).decode("utf-8", "replace"))[-_MOST_EVENTS:])

    def close(self) -> None:
        if self._device is not None:
            os.close(self._device)
            self._device = None
