"""Whether data comes from disks or servers, or from this machine's RAM; and how to evict a file from the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpudoctor.facts.model.measured_hardware import ReadMethod
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.system.mounts import RAM_DISK, Mount, mount_of, read_devices, read_mounts
from gpudoctor.facts.system.sysfs import read_int, read_text

_MOST_BYTES = 1 << 30  # checked of one file; mincore needs one byte per page
_PROBED_BYTES = 1 << 20
_FOLIO_BYTES = 512 * mmap.PAGESIZE  # the largest unit of the page cache, which is dropped as a whole or not at all
_STAYED = 0.02  # tolerated share of pages that cannot be evicted, because other processes have them open or mapped
_IN_RAM = ("tmpfs", "ramfs")
# accept O_DIRECT but have a separate cache (the ARC), which mincore does not cover
_OWN_CACHE = ("zfs",)
# read compressed or inline data through the page cache, or pass the flag to layers that may be in RAM
_MAY_BUFFER = ("btrfs", "bcachefs", "f2fs", "ntfs3", "9p", "overlay")
# in a chroot whose root is not a mount point
_NO_MOUNT = Missing("the mount table does not tell on what file system it lies", "failed")


@contextmanager
def opened(path: str, flags: int = 0) -> Iterator[int]:
    """The descriptor of a file or folder, open for reading with these flags until the block ends. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def drop(paths: Iterable[str]) -> None:
    """Ask the kernel to evict these files; dirty and mapped pages stay."""
    for path in paths:
        with suppress(OSError), opened(path) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def drop_range(descriptor: int, begin: int, length: int) -> None:
    """Ask the kernel to evict a range of a file, extended to whole folios. Raises OSError."""
    first = begin // _FOLIO_BYTES * _FOLIO_BYTES
    end = -(-(begin + length) // _FOLIO_BYTES) * _FOLIO_BYTES
    os.posix_fadvise(descriptor, first, end - first, os.POSIX_FADV_DONTNEED)


def goes_past(path: str) -> bool | None:
    """Whether O_DIRECT bypasses the page cache; None if the kernel does not disclose that to this user.

    Some file systems accept the flag and still read through the cache. To detect that, the first MiB of the file is
    evicted and read with O_DIRECT: if it is cached afterwards, the read went through the cache.
    """
    try:
        with opened(path, os.O_DIRECT) as descriptor, mmap.mmap(-1, _PROBED_BYTES) as buffer:
            drop_range(descriptor, 0, _PROBED_BYTES)
            if resident_share(path, _PROBED_BYTES) != 0.0:  # a process has it mapped
                return None
            os.preadv(descriptor, [buffer], 0)
        return resident_share(path, _PROBED_BYTES) == 0.0
    except OSError:
        return None


def resident_share(path: str, most_bytes: int = _MOST_BYTES) -> float | None:
    """The share of a file's first pages that are in the page cache; None if the kernel does not disclose it.

    mincore(2) is accurate only for users who own the file or may write to it; for others all pages look cached.
    """
    try:
        with opened(path) as descriptor:
            seen = os.fstat(descriptor)
            if seen.st_uid != os.geteuid() and not os.access(path, os.W_OK):
                return None
            size = min(seen.st_size, most_bytes)
            with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
                return _share(mapped, size)
    except (OSError, ValueError):
        return None


def _share(mapped: mmap.mmap, size: int) -> float | None:
    pages = -(-size // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * pages)()
    first = ctypes.c_char.from_buffer(mapped)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        error = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), resident)
    finally:
        del first  # otherwise the mapping cannot be closed
    return None if error else sum(page & 1 for page in bytes(resident)) / pages


def mount_below(path: str) -> Mount | None:
    """The mount that a path is on; None if the mount table does not contain it."""
    mounts = read_mounts()
    return None if isinstance(mounts, Missing) else mount_of(os.path.realpath(path), mounts)


def held_in_ram(mount: Mount) -> Missing | None:
    """Why data on a mount may come from RAM however it is read; None if disks or servers provide it.

    Missing with kind `unsupported`: it is in RAM; `failed`: that cannot be known.
    """
    fs_type = mount.fs_type
    if fs_type in _IN_RAM:
        return Missing(f"{fs_type} is in RAM", "unsupported")
    if fs_type in _OWN_CACHE:
        return Missing(f"{fs_type} reads through a cache of its own in RAM, O_DIRECT or not", "failed")
    if fs_type.startswith("fuse"):
        return Missing(f"{fs_type}: a process of this machine answers, which may hold files in RAM", "failed")
    for disk in known(read_devices(mount, Path("/"))) or ():
        if RAM_DISK.fullmatch(disk.name):
            return Missing(f"{disk.name} is in RAM", "unsupported")
        if disk.name.startswith("loop") and (why := _of_loop(disk.name)) is not None:
            return why
    return None


def may_stay_in_ram(file: str) -> Missing | None:
    """Why a file may come from RAM although the page cache is asked to evict it; None if nothing indicates that."""
    mount = mount_below(file)
    why = _NO_MOUNT if mount is None else held_in_ram(mount)
    if why is not None:
        return why
    drop([file])
    share = resident_share(file)
    return None if share is None or share <= _STAYED else Missing(_stayed_words(share), "failed")


def cold(
    mount: Mount | None, method: ReadMethod, goes_past: bool | None, stayed: Sequence[float | None]
) -> bool | Missing:
    """True if no cache in this machine's RAM can have served the reads; otherwise why that is not certain.

    `goes_past`: result of `goes_past`. `stayed`: shares of a file that could not be evicted.
    """
    if mount is None:
        return _NO_MOUNT
    if (why := held_in_ram(mount)) is not None:
        return why
    fs_type = mount.fs_type
    if method == "direct":
        if goes_past is False:
            return Missing(f"{fs_type} went through the page cache in spite of O_DIRECT", "failed")
        doubtful = fs_type in _MAY_BUFFER or "data=journal" in mount.system_options
        if goes_past is None and doubtful:
            return Missing(f"{fs_type} may go through the page cache in spite of O_DIRECT", "failed")
        return True
    if fs_type == "overlay":
        return Missing("no O_DIRECT there, and it is not known what lies below the layers", "failed")
    if not stayed or None in stayed:
        return Missing("no O_DIRECT there, and of another user's files the kernel tells not what is cached", "failed")
    most = max(share for share in stayed if share is not None)
    if most > _STAYED:
        return Missing(f"no O_DIRECT there, and {_stayed_words(most)}", "failed")
    return True


def _stayed_words(share: float) -> str:
    return f"{share:.0%} of a file stayed in the page cache"


def _of_loop(name: str) -> Missing | None:
    """Why a loop device may be served from RAM: its file is cached, in RAM, or at an unknown place; otherwise None."""
    folder = Path("/sys/block") / name / "loop"
    if read_int(folder / "dio") != 1:
        return Missing(f"{name} is a file, which the kernel reads through the page cache", "failed")
    file = read_text(folder / "backing_file")
    below = mount_below(file) if not isinstance(file, Missing) and os.path.exists(file) else None  # noqa: PTH110
    why = Missing("it is not known where that lies", "failed") if below is None else held_in_ram(below)
    return None if why is None else Missing(f"{name} is a file: {why.reason}", why.kind)
