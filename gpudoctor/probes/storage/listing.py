"""Selects the user's files to read below a path. Nothing is opened for writing.

Files that are mostly holes or preallocated space are left out: reading those does not touch the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from time import monotonic

import msgspec

from gpudoctor.probes.storage.page_cache import opened
from gpudoctor.text.units import short_size

_MOST_FILES = 4096
_MOST_NAMES = 50_000
_NAMES_S = 2.0
_FILES_S = 3.0
_STAT_BLOCK_BYTES = 512  # unit of st_blocks whatever the file system's block size; stat(2)
_MOST_EXTENTS = 1000  # examined of one file
# linux/fiemap.h: the ioctl, `struct fiemap`, `struct fiemap_extent`, and two of its flags
_FIEMAP = 0xC020660B
_QUESTION = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=Q8xQ16xI12x")
_LAST, _UNWRITTEN = 0x1, 0x800
_EXTENTS_A_CALL = 200


class DataFile(msgspec.Struct, frozen=True):
    """The path by which readers open a file, and its size."""

    path: str
    size_bytes: int


class Listing(msgspec.Struct):
    """Files to read, and what else was found.

    `empty`: number of files of 0 bytes. `small`, `holes`, `elsewhere`: whether there were files too small, files that
    are mostly holes, or folders and files on other file systems. `refused`: the error of a path that is not readable.
    """

    files: list[DataFile] = msgspec.field(default_factory=list)
    empty: int = 0
    small: bool = False
    holes: bool = False
    elsewhere: bool = False
    refused: str | None = None

    def left_out(self, least_bytes: int) -> tuple[str, ...]:
        """What was found but is not read, and why."""
        reasons = (
            (self.small, f"files there are smaller than {short_size(least_bytes)}"),
            (self.empty > 0, "files there have 0 bytes"),
            (self.holes, "most of a file is holes, or room set aside, which come from no disk"),
            (self.refused is not None, f"files there cannot be read: {self.refused}"),
            (self.elsewhere, "what lies on other file systems below is to be named by a --data of its own"),
        )
        return tuple(text for met, text in reasons if met)

    def why_none(self, least_bytes: int) -> str:
        return "; ".join(self.left_out(least_bytes)) or "there is no file"


def listed(paths: Iterable[str], least_bytes: int = 1) -> Listing:
    """Regular files at and below these paths, on the same file system as each path, evenly over at most 50 000 names.

    Takes at most 5 seconds and returns at most 4096 files. Links are followed, since caches of models and data sets
    consist of them. A file with several names counts once: read by its second name it would come from the page cache.
    Raises OSError if a path cannot be looked up.
    """
    found = Listing()
    names = _names(paths, found)
    seen: set[tuple[int, int]] = set()
    give_up_s = monotonic() + _FILES_S
    for path, device in sorted(names)[:: max(1, -(-len(names) // _MOST_FILES))]:
        if monotonic() > give_up_s:
            break
        try:
            _add_file(path, device, least_bytes, seen, found)
        except OSError as error:
            found.refused = error.strerror or str(error)
    return found


def _names(paths: Iterable[str], found: Listing) -> list[tuple[str, int]]:
    """Names and devices, breadth first, so that a limit omits the deepest ones."""
    names: list[tuple[str, int]] = []
    folders: deque[tuple[str, int]] = deque()
    seen: set[tuple[int, int]] = set()
    for path in paths:
        top = os.stat(path)  # noqa: PTH116 - pathlib is slow for many paths
        (folders if stat.S_ISDIR(top.st_mode) else names).append((path, top.st_dev))
        seen.add((top.st_dev, top.st_ino))
    give_up_s = monotonic() + _NAMES_S
    while folders:
        folder, device = folders.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(names) >= _MOST_NAMES or monotonic() > give_up_s:
                        return names
                    below = _folder(entry)
                    if below is None:
                        names.append((entry.path, device))
                    elif below[0] != device:
                        found.elsewhere = True
                    elif below not in seen:
                        seen.add(below)
                        folders.append((entry.path, device))
        except OSError as error:  # this folder is not readable, or has vanished; others may be readable
            found.refused = error.strerror or str(error)
    return names


def _folder(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """Device and inode of a folder; None for anything else, including dangling links."""
    try:
        if not entry.is_dir():
            return None
        below = entry.stat()
    except OSError:  # a loop of links
        return None
    return below.st_dev, below.st_ino


def _add_file(path: str, device: int, least_bytes: int, seen: set[tuple[int, int]], found: Listing) -> None:
    """Add a file to the listing, or note why it is not read. Raises OSError."""
    file = os.stat(path)  # noqa: PTH116
    if not stat.S_ISREG(file.st_mode):
        return
    if file.st_dev != device:
        found.elsewhere = True
    elif file.st_size == 0:
        found.empty += 1
    elif file.st_size < least_bytes:
        found.small = True
    elif (file.st_dev, file.st_ino) in seen:
        return
    elif mostly_holes(path, file):
        found.holes = True
    else:
        seen.add((file.st_dev, file.st_ino))
        found.files.append(DataFile(path, file.st_size))


def mostly_holes(path: str, of_file: os.stat_result) -> bool:
    """Whether more than half of a file is holes or space preallocated by fallocate(2). Raises OSError.

    On a file system that reports no extents (NFS, FUSE), a file that occupies half its size on disk counts as data.
    """
    size = of_file.st_size
    with opened(path, os.O_NONBLOCK) as descriptor:
        try:
            return _is_mostly_holes(_extents_by_fiemap(descriptor, size), size)
        except OSError:
            whole = of_file.st_blocks * _STAT_BLOCK_BYTES * 2 >= size
            return not whole and _is_mostly_holes(_extents_by_lseek(descriptor), size)


def _is_mostly_holes(written: Iterator[tuple[int, int]], size: int) -> bool:
    data_bytes, looked_at = 0, size
    for place, (begin, end) in enumerate(islice(written, _MOST_EXTENTS), 1):
        data_bytes += end - begin
        if data_bytes * 2 >= size:
            return False
        if place == _MOST_EXTENTS:
            looked_at = end
    return data_bytes * 2 < looked_at


def _extents_by_fiemap(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
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


def _extents_by_lseek(descriptor: int) -> Iterator[tuple[int, int]]:
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
