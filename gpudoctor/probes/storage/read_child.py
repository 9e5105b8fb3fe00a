"""The process that reads one path: it lists or creates files, starts readers, and reports each result.

A path that hangs blocks only this process; the parent ends it with its readers. Orders and answers are JSON lines.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from gpudoctor.facts.model.measured_hardware import ReadMethod, ReadPattern, StorageRead
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.storage import page_cache
from gpudoctor.probes.storage.listing import DataFile, listed
from gpudoctor.probes.storage.page_cache import cold, held_in_ram, mount_below, opened
from gpudoctor.probes.storage.readers import SEQUENTIAL_BYTES, ReadersStuckError, pieces_of, read_at_once
from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all
from gpudoctor.text.units import short_size

_PATTERNS: tuple[ReadPattern, ...] = ("sequential", "random")
_MOST_WAIT_S = 3.0  # estimate for one read by each reader, if they share the bandwidth that one reader got
_LEAST_FILE_BYTES = 4096  # files smaller than a page are not worth measuring
_CACHED_BYTES = 64 << 20
_OPENS_S = 0.3
# of the file that is created if the user names none
_WRITE_S = 4.0
_OWN_BYTES = 512 << 20
_LEAST_OWN_BYTES = 64 << 20
_SYNC_BYTES = 32 << 20
_SHARE_OF_FREE = 20


class ReadOrder(msgspec.Struct, frozen=True):
    """What to read: `read` without figures, and its path in hexadecimal, since it need not be UTF-8 as JSON requires.

    `readers`: numbers of concurrent readers, one measurement each, which ends after `seconds` or `most_bytes`.
    """

    read: StorageRead
    path_hex: str
    readers: tuple[int, ...]
    seconds: float = 1.0
    most_bytes: int = 16 << 30


class ReadAnswer(msgspec.Struct, frozen=True):
    """The step that the process is in, and what it has measured so far."""

    doing: str
    read: StorageRead


class NothingToReadError(Exception):
    """There is no file to read; the text gives the reason. `tried`: creating one was attempted and failed."""

    def __init__(self, text: str, *, tried: bool = False) -> None:
        super().__init__(text)
        self.tried = tried


class _Report:
    """What has been measured so far; sent to the parent after each change."""

    def __init__(self, descriptor: int, read: StorageRead) -> None:
        self.read = read
        self._descriptor = descriptor
        self._doing = "start"

    def doing(self, text: str) -> None:
        self._doing = text
        self.found()

    def found(self, **fields: Any) -> None:
        self.read = msgspec.structs.replace(self.read, **fields)
        try:
            write_all(self._descriptor, msgspec.json.encode(ReadAnswer(self._doing, self.read)) + b"\n")
        except BrokenPipeError:
            leave(1)

    def left_out(self, *text: str) -> None:
        self.found(left_out=(*self.read.left_out, *text))


def begin(descriptor: str, order: str) -> None:
    """Execute the order (JSON) and answer on the pipe. Ends the process."""
    asked = msgspec.json.decode(order, type=ReadOrder)
    report = _Report(int(descriptor), asked.read)
    try:
        _read(asked, report)
    except (NothingToReadError, ReadersStuckError) as error:
        # a name that is not UTF-8 has lone surrogates, which JSON cannot represent
        text = str(error).encode("utf-8", "replace").decode()
        untried = isinstance(error, NothingToReadError) and not error.tried
        report.found(failure=Missing(text, "absent" if untried else "failed"))
    except OSError as error:
        denied = isinstance(error, PermissionError)
        report.found(failure=Missing(f"it answers {error.strerror or error}", "denied" if denied else "failed"))
    leave()


def _read(order: ReadOrder, report: _Report) -> None:
    path, own_file = os.fsdecode(bytes.fromhex(order.path_hex)), order.read.own_file
    report.doing("look the path up")
    mount = mount_below(path)
    if own_file:
        why = None if mount is None else held_in_ram(mount)
        if why is not None and why.kind == "unsupported":
            raise NothingToReadError(f"{path}: {why.reason}, no storage to measure; name data by --data")
        report.doing("write a file to read")
        files = [made_in(path)]
    else:
        report.doing("list files")
        files = _to_read(path, report)
    method = _method(files[0])
    report.found(files=len(files), bytes_found=sum(file.size_bytes for file in files), method=method)
    witness = max(files, key=lambda file: file.size_bytes).path
    stayed: list[float | None] = []
    for turn, pattern in enumerate(_PATTERNS):
        alone_gb_s = 0.0
        pieces = pieces_of(files, pattern)
        for step, readers in enumerate(order.readers):
            waits_s = readers * pieces[0].length / (alone_gb_s * 1e9) if alone_gb_s else 0.0
            if waits_s > _MOST_WAIT_S:
                report.left_out(f"{pattern}, {readers} readers: one read of each would take {waits_s:.0f} s")
                continue
            report.doing(f"{pattern}, {readers} reader{'s' * (readers > 1)}")
            if method == "dropped":
                page_cache.drop(file.path for file in files)
                stayed.append(page_cache.resident_share(witness))
            # start elsewhere each time: what the last measurement read may be in a cache of the disk or server
            at = len(pieces) * (turn * len(order.readers) + step) // (2 * len(order.readers))
            shifted = [*pieces[at:], *pieces[:at]]
            rate = read_at_once(files, shifted, pattern, readers, method, order.seconds, order.most_bytes)
            alone_gb_s = alone_gb_s or rate.gb_s
            report.found(rates=(*report.read.rates, rate))
    is_cold = cold(mount, method, page_cache.goes_past(witness) if method == "direct" else None, stayed)
    report.doing("open files, read from the page cache")
    opens_per_s, p99_us = _opens(files, own_file=own_file)
    report.found(cold=is_cold, cached_gb_s=_cached_gb_s(witness), opens_per_s=opens_per_s, open_p99_us=p99_us)


def made_in(folder: str) -> DataFile:
    """Create an unnamed file of up to 512 MiB of random bytes, synced to disk, which disappears with this process.

    Writes for at most 4 seconds, and at most a twentieth of the free space. Raises OSError, NothingToReadError.
    """
    try:
        space = os.statvfs(folder)
    except FileNotFoundError:
        raise NothingToReadError(f"TMPDIR is {folder}, which is not there; name data by --data", tried=True) from None
    size_bytes = min(_OWN_BYTES, space.f_bavail * space.f_frsize // _SHARE_OF_FREE) & -_SYNC_BYTES
    if size_bytes < _LEAST_OWN_BYTES:
        raise NothingToReadError(f"{folder} has too little room for a file to read; name data by --data")
    descriptor = _without_name(folder)
    try:
        written = _fill(descriptor, size_bytes)
        why = f"{folder} took {written >> 20} MiB in {_WRITE_S:g} s, too little to be read; name data by --data"
    except OSError as error:
        written, why = 0, f"writing a file to read in {folder}: {error.strerror or error}"
    if written < _LEAST_OWN_BYTES:
        os.close(descriptor)
        raise NothingToReadError(why, tried=True)
    return DataFile(f"/proc/self/fd/{descriptor}", written)


def _without_name(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # NFS, FUSE and old kernels have no O_TMPFILE
        descriptor, path = tempfile.mkstemp(prefix=".gpudoctor-", dir=folder)
        os.unlink(path)  # noqa: PTH108
        return descriptor


def _fill(descriptor: int, size_bytes: int) -> int:
    """Write random bytes, synced after each 32 MiB so that nothing is written back during reads. Raises OSError."""
    noise = os.urandom(_SYNC_BYTES)  # incompressible
    written, give_up_s = 0, monotonic() + _WRITE_S
    while written < size_bytes and monotonic() < give_up_s:
        # rotated each time, so that no two pieces are equal
        turn = written // _SYNC_BYTES * 4099
        write_all(descriptor, noise[turn:] + noise[:turn])
        os.fdatasync(descriptor)
        written += len(noise)
    return written


def _to_read(path: str, report: _Report) -> list[DataFile]:
    found = listed([path], _LEAST_FILE_BYTES)
    if not found.files:
        raise NothingToReadError(found.why_none(_LEAST_FILE_BYTES))
    whole = sum(file.size_bytes for file in found.files)
    if whole < SEQUENTIAL_BYTES:
        raise NothingToReadError(f"{short_size(whole)} of files in all: too little to measure; 1 MiB or more is wanted")
    report.left_out(*found.left_out(_LEAST_FILE_BYTES))
    return found.files


def _method(file: DataFile) -> ReadMethod:
    """ "direct" if a read with O_DIRECT works; many file systems accept the flag but no such read. Raises OSError."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return "dropped"
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as buffer:
            return "direct" if os.preadv(descriptor, [buffer], 0) > 0 else "dropped"
    except OSError:
        return "dropped"
    finally:
        os.close(descriptor)


def _cached_gb_s(path: str) -> float | Missing:
    """One reader's rate for data it has just read, which a second epoch gets if the data fits into RAM."""
    doing = "opening"
    try:
        with opened(path) as descriptor:
            doing = "reading"
            size = min(os.fstat(descriptor).st_size, _CACHED_BYTES)
            buffer = bytearray(min(size, 1 << 20))
            # fill the cache first, for at most a second
            give_up_s, offset = monotonic() + 1.0, 0
            while offset < size and monotonic() < give_up_s:
                offset += os.preadv(descriptor, [buffer], offset) or size
            size = min(size, offset)
            best = 0.0
            for _ in range(3):
                began_s = monotonic()
                total = sum(os.preadv(descriptor, [buffer], offset) for offset in range(0, size, len(buffer)))
                best = max(best, total / max(monotonic() - began_s, 1e-9) / 1e9)
            return best
    except OSError as error:  # the file may have vanished
        return Missing(f"{doing} it again: {error.strerror or error}", "failed")


def _opens(files: Sequence[DataFile], *, own_file: bool) -> tuple[float | Missing, float | Missing]:
    """Opens a second, and the 99th percentile of one in microseconds."""
    if own_file:
        nameless = Missing("the file has no name to be opened by", "unsupported")
        return nameless, nameless
    times: list[float] = []
    began_s = monotonic()
    while monotonic() - began_s < _OPENS_S:
        was_s = monotonic()
        with suppress(OSError):
            os.close(os.open(files[len(times) % len(files)].path, os.O_RDONLY | os.O_CLOEXEC))
        times.append((monotonic() - was_s) * 1e6)
    ordered = sorted(times)
    return len(times) / (sum(times) / 1e6), ordered[len(ordered) * 99 // 100]
