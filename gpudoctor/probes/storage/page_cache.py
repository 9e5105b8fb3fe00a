"""Whether a file lies in this machine's page cache, and how it is got out of there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress

_MOST_BYTES = 1 << 30  # of one file: one byte a page is asked for
_PROBED_BYTES = 1 << 20
_FOLIO_BYTES = 512 * mmap.PAGESIZE  # the largest piece of the cache: it is dropped as a whole or not at all


def drop(paths: Iterable[str]) -> None:
    """Ask the kernel to forget these files; pages that are dirty, or that somebody has mapped, stay."""
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def drop_range(descriptor: int, begin: int, length: int) -> None:
    """Ask the kernel to forget a range of a file, and so much around it that no piece of its cache lies half outside.

    Raise OSError.
    """
    first = begin // _FOLIO_BYTES * _FOLIO_BYTES
    end = -(-(begin + length) // _FOLIO_BYTES) * _FOLIO_BYTES
    os.posix_fadvise(descriptor, first, end - first, os.POSIX_FADV_DONTNEED)


def goes_past(path: str) -> bool | None:
    """Whether a read with O_DIRECT leaves the page cache as it was; None if the kernel does not tell this user.

    Some file systems take the flag and read through the cache. The first MiB of the file is dropped, and read so: if it
    is in the cache then, they do.
    """
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        drop_range(descriptor, 0, _PROBED_BYTES)
        if resident_share(path, _PROBED_BYTES) != 0.0:  # somebody has it mapped
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
    """The share of a file's first pages that are in the page cache; None if the kernel does not tell this user.

    mincore(2) tells those alone who own the file or may write to it; to others every page is in the cache.
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
    told = (ctypes.c_ubyte * pages)()
    first = ctypes.c_char.from_buffer(mapped)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        error = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), told)
    finally:
        del first  # else the mapping cannot be closed
    return None if error else sum(page & 1 for page in bytes(told)) / pages
