"""Whether a file lies in this machine's page cache, and how it is got out of there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress

_MOST_BYTES = 1 << 30  # of one file: one byte a page is asked for


def drop(paths: Iterable[str]) -> None:
    """Ask the kernel to forget these files; pages that are dirty, or that somebody has mapped, stay."""
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def resident_share(path: str) -> float | None:
    """The share of a file's pages that are in the page cache; None if the kernel does not tell this user.

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
        size = min(seen.st_size, _MOST_BYTES)
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
