"""Whether a file's bytes are on a disk: reading holes or merely preallocated space does not touch the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from itertools import islice

_STAT_BLOCK_BYTES = 512  # unit of st_blocks whatever the file system's block size; stat(2)
_MOST_EXTENTS = 1000  # examined of one file
# linux/fiemap.h: the ioctl, `struct fiemap`, `struct fiemap_extent`, and two of its flags
_FIEMAP = 0xC020660B
_QUESTION = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=Q8xQ16xI12x")
_LAST, _UNWRITTEN = 0x1, 0x800
_EXTENTS_A_CALL = 200


def mostly_holes(path: str, of_file: os.stat_result) -> bool:
    """Whether more than half of a file is holes or space preallocated by fallocate(2). Raises OSError.

    On a file system that reports no extents (NFS, FUSE), a file that occupies half its size on disk counts as data.
    """
    size = of_file.st_size
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            return _is_mostly_holes(_told_by_fiemap(descriptor, size), size)
        except OSError:
            whole = of_file.st_blocks * _STAT_BLOCK_BYTES * 2 >= size
            return not whole and _is_mostly_holes(_told_by_lseek(descriptor), size)
    finally:
        os.close(descriptor)


def _is_mostly_holes(written: Iterator[tuple[int, int]], size: int) -> bool:
    data_bytes, looked_at = 0, size
    for place, (begin, end) in enumerate(islice(written, _MOST_EXTENTS), 1):
        data_bytes += end - begin
        if data_bytes * 2 >= size:
            return False
        if place == _MOST_EXTENTS:
            looked_at = end
    return data_bytes * 2 < looked_at


def _told_by_fiemap(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each extent of written data. Raises OSError if the file system does not support FIEMAP."""
    begin = 0
    while begin < size:
        answer = bytearray(_QUESTION.size + _EXTENTS_A_CALL * _EXTENT.size)
        _QUESTION.pack_into(answer, 0, begin, size - begin, 0, 0, _EXTENTS_A_CALL, 0)
        fcntl.ioctl(descriptor, _FIEMAP, answer)
        mapped = _QUESTION.unpack_from(answer)[3]
        if not mapped:
            return
        for place in range(mapped):
            logical, length, flags = _EXTENT.unpack_from(answer, _QUESTION.size + place * _EXTENT.size)
            begin = logical + length
            if not flags & _UNWRITTEN:
                yield logical, min(begin, size)
            if flags & _LAST:
                return


def _told_by_lseek(descriptor: int) -> Iterator[tuple[int, int]]:
    end = 0
    while True:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no more data; other errors: SEEK_DATA is not supported
                raise
            return
        yield begin, end
