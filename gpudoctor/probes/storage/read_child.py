"""The process that reads one path: it lists or makes files, has readers read them, and says what it finds on the way.

A path that hangs holds this process alone; whoever waits for it ends it with its readers.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.facts.model.measured_storage import ReadMethod, ReadPattern
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.system.block_devices import read_devices
from gpudoctor.facts.system.mounts import Mount, mount_of, read_mounts
from gpudoctor.facts.system.sysfs import read_int
from gpudoctor.probes.storage import page_cache
from gpudoctor.probes.storage.files import DataFile, NothingToReadError, listed, made_in
from gpudoctor.probes.storage.messages import (
    FilesFound,
    RateMeasured,
    ReadAnswer,
    ReadEnd,
    ReadFailure,
    ReadLeftOut,
    ReadOrder,
    ReadStep,
)
from gpudoctor.probes.storage.readers import ReadersStuckError, pieces_of, read_at_once
from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all

_PATTERNS: tuple[ReadPattern, ...] = ("sequential", "random")
_MOST_WAIT_S = 3.0  # for one read of each of the readers, if they share what one reader got
_STAYED = 0.02  # of the pages: what others have open or mapped
_CACHED_BYTES = 64 << 20
_OPENS_S = 0.3
# file systems that take O_DIRECT and keep a cache of their own (the ARC), which mincore does not tell
_OWN_CACHE = ("zfs",)
_IN_RAM = ("tmpfs", "ramfs")
# those that read compressed or inline data through the page cache, whatever was asked for
_MAY_BUFFER = ("btrfs", "bcachefs", "f2fs", "ntfs3", "9p")


def begin(descriptor: str, order: str) -> None:
    """Read as the order (JSON) says, and answer on the pipe. Ends the process."""
    asked = msgspec.json.decode(order, type=ReadOrder)

    def say(answer: ReadAnswer) -> None:
        try:
            write_all(int(descriptor), msgspec.json.encode(answer) + b"\n")
        except BrokenPipeError:
            leave(1)

    try:
        _read(asked, say)
    except NothingToReadError as error:
        say(ReadFailure(Missing(str(error), "failed" if error.tried else "absent")))
    except ReadersStuckError as error:
        # a name that is not UTF-8 has lone surrogates, which no JSON takes
        say(ReadFailure(Missing(str(error).encode("utf-8", "replace").decode(), "failed")))
    except OSError as error:
        denied = isinstance(error, PermissionError)
        say(ReadFailure(Missing(f"it answers {error.strerror or error}", "denied" if denied else "failed")))
    leave()


def _read(order: ReadOrder, say: Callable[[ReadAnswer], None]) -> None:
    path = os.fsdecode(bytes.fromhex(order.path_hex))
    say(ReadStep("look the path up"))
    mount = _mount(path)
    fs_type = mount.fs_type if mount is not None else ""
    if order.own_file:
        if fs_type in _IN_RAM:
            raise NothingToReadError(f"{path} is in RAM ({fs_type}): no storage to measure; name data by --data")
        say(ReadStep("write a file to read"))
        files = [made_in(path)]
    else:
        say(ReadStep("list files"))
        files = listed(path)
    method = _method(files[0])
    say(FilesFound(len(files), sum(file.size_bytes for file in files), method))
    witness = max(files, key=lambda file: file.size_bytes).path
    stayed: list[float | None] = []
    for turn, pattern in enumerate(_PATTERNS):
        alone_gb_s = 0.0
        pieces = pieces_of(files, pattern)
        for step, readers in enumerate(order.readers):
            waits_s = readers * pieces[0].length / (alone_gb_s * 1e9) if alone_gb_s else 0.0
            if waits_s > _MOST_WAIT_S:
                say(ReadLeftOut(f"{pattern}, {readers} readers: one read of each would take {waits_s:.0f} s"))
                continue
            say(ReadStep(f"{pattern}, {readers} reader{'s' * (readers > 1)}"))
            if method == "dropped":
                page_cache.drop(file.path for file in files)
                stayed.append(page_cache.resident_share(witness))
            # another beginning each time: what the last measurement read may lie in a cache of the disk or server
            at = len(pieces) * (turn * len(order.readers) + step) // (2 * len(order.readers))
            shifted = [*pieces[at:], *pieces[:at]]
            rate = read_at_once(files, shifted, pattern, readers, method, order.seconds, order.most_bytes)
            alone_gb_s = alone_gb_s or rate.gb_s
            say(RateMeasured(rate))
    cold = _cold(mount, method, page_cache.goes_past(witness) if method == "direct" else None, stayed)
    say(ReadStep("open files, read from the page cache"))
    opens_per_s, p99_us = _opens(files, own_file=order.own_file)
    say(ReadEnd(cold, _cached_gb_s(witness), opens_per_s, p99_us))


def _mount(path: str) -> Mount | None:
    mounts = read_mounts()
    return None if isinstance(mounts, Missing) else mount_of(os.path.realpath(path), mounts)


def _buffered_loop(mount: Mount) -> str | None:
    """The loop device below a mount whose file is read through the page cache, by name."""
    for disk in known(read_devices(mount, Path("/"))) or ():
        if disk.name.startswith("loop") and read_int(Path("/sys/block") / disk.name / "loop/dio") != 1:
            return disk.name
    return None


def _method(file: DataFile) -> ReadMethod:
    """Whether a read with O_DIRECT comes back; many file systems take the flag and then no read. Raise OSError."""
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


def _cold(
    mount: Mount | None, method: ReadMethod, goes_past: bool | None, stayed: Sequence[float | None]
) -> bool | Missing:
    """True if no cache in this machine's RAM answered, by what is known of it; else why that cannot be said."""
    fs_type = mount.fs_type if mount is not None else "its file system"
    if fs_type in _IN_RAM:
        return Missing(f"{fs_type} is in RAM", "unsupported")
    if fs_type in _OWN_CACHE:
        return Missing(f"{fs_type} reads through a cache of its own in RAM, O_DIRECT or not", "failed")
    if mount is not None and (loop := _buffered_loop(mount)) is not None:
        return Missing(f"{loop} is a file, which the kernel reads through the page cache", "failed")
    if method == "direct":
        if goes_past is False:
            return Missing(f"{fs_type} went through the page cache in spite of O_DIRECT", "failed")
        options = mount.system_options if mount is not None else ()
        if goes_past is None and (fs_type in _MAY_BUFFER or "data=journal" in options):
            return Missing(f"{fs_type} may go through the page cache in spite of O_DIRECT", "failed")
        return True
    if not stayed or None in stayed:
        return Missing("no O_DIRECT there, and of another user's files the kernel tells not what is cached", "failed")
    most = max(share for share in stayed if share is not None)
    if most > _STAYED:
        return Missing(f"no O_DIRECT there, and {most:.0%} of a file stayed in the page cache", "failed")
    return True


def _cached_gb_s(path: str) -> float | Missing:
    """One reader's rate for what it has just read: what a second epoch gets if the data fits into RAM."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = min(os.fstat(descriptor).st_size, _CACHED_BYTES)
        buffer = bytearray(min(size, 1 << 20))
        # into the cache first, as much as comes in a second
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
    except OSError as error:
        return Missing(f"reading it again: {error.strerror or error}", "failed")
    finally:
        os.close(descriptor)


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
