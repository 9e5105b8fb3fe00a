"""Whether a file is in this machine's page cache, and how to evict it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress

_MOST_BYTES = 1 << 30  # checked of one file; mincore needs one byte per page
_PROBED_BYTES = 1 << 20
_FOLIO_BYTES = 512 * mmap.PAGESIZE  # the largest unit of the page cache, which is dropped as a whole or not at all


def drop(paths: Iterable[str]) -> None:
    """Ask the kernel to evict these files; dirty and mapped pages stay."""
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


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
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        drop_range(descriptor, 0, _PROBED_BYTES)
        if resident_share(path, _PROBED_BYTES) != 0.0:  # a process has it mapped
            return None
        with mmap.mmap(-1, _PROBED_BYTES) as buffer:
            os.preadv(descriptor, [buffer], 0)
        return resident_share(path, _PROBED_BYTES) == 0.0
    except OSError:
        return None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def resident_share(path: str, most_bytes: int = _MOST_BYTES) -> float | None:
    """The share of a file's first pages that are in the page cache; None if the kernel does not disclose it.

    mincore(2) is accurate only for users who own the file or may write to it; for others all pages look cached.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        seen = os.fstat(descriptor)
        if seen.st_uid != os.geteuid() and not os.access(path, os.W_OK):
            return None
        size = min(seen.st_size, most_bytes)
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
            return _share(mapped, size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


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
