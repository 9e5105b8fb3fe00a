"""What is read: the user's own files below a path, or a file without a name where there are none to read."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections import deque
from time import monotonic

import msgspec

from gpudoctor.process.pipes import write_all

MOST_FILES = 4096
_LIST_S = 2.0
_LEAST_BYTES = 4096  # below a page there is nothing to read
_STAT_BLOCK_BYTES = 512  # stat(2): whatever the file system's own blocks are
_MOST_EXTENTS = 1000  # of one file
_WRITE_S = 4.0
_OWN_BYTES = 512 << 20
_LEAST_OWN_BYTES = 64 << 20
_SYNC_BYTES = 32 << 20
_SHARE_OF_FREE = 20


class NothingToReadError(Exception):
    """There is no file to read, and none could be made; the text says why. `tried`: it was tried and went wrong."""

    def __init__(self, text: str, *, tried: bool = False) -> None:
        super().__init__(text)
        self.tried = tried


class DataFile(msgspec.Struct, frozen=True):
    """A file as readers open it, and its size."""

    path: str
    size_bytes: int


def listed(path: str) -> list[DataFile]:
    """Files below a path, or the file itself: those of its own file system, the first 4096 in 2 seconds.

    Symbolic links to files are followed, since caches of models are made of them; those to folders are not. A file
    of several names counts once: read by its second name it would come from the page cache. Files that are mostly
    holes are left out. Raise OSError, NothingToReadError.
    """
    top = os.stat(path)  # noqa: PTH116 - many of them: as plain as can be
    if stat.S_ISREG(top.st_mode):
        if top.st_size < _LEAST_BYTES:
            raise NothingToReadError(f"a file of {top.st_size} bytes is too small to be read; 4 KiB or more are wanted")
        if mostly_holes(path, top):
            raise NothingToReadError("most of the file is holes (it is sparse), which come from no disk")
        return [DataFile(path, top.st_size)]
    found: list[DataFile] = []
    seen: set[int] = set()
    folders, give_up_s = deque([path]), monotonic() + _LIST_S
    while folders and len(found) < MOST_FILES and monotonic() < give_up_s:
        try:
            entries = sorted(os.scandir(folders.popleft()), key=lambda entry: entry.name)
        except OSError:  # this folder is not for us; others may be
            continue
        for entry in entries:
            if len(found) >= MOST_FILES or monotonic() >= give_up_s:
                break
            _take(entry, top.st_dev, found, seen, folders)
    if not found:
        raise NothingToReadError("no file of 4 KiB or more that may be read, and is not mostly holes, lies there")
    return found


def mostly_holes(path: str, of_file: os.stat_result) -> bool:
    """Whether more of a file is holes than data: no disk is asked for those. Raise OSError if it may not be read.

    A file that takes half its size on the disk is not looked into; one that is compressed has no holes.
    """
    size = of_file.st_size
    if of_file.st_blocks * _STAT_BLOCK_BYTES * 2 >= size:
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    data_bytes = end = 0
    try:
        for _ in range(_MOST_EXTENTS):
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
            data_bytes += end - begin
            if data_bytes * 2 >= size:
                return False
    except OSError as error:
        # ENXIO: no data from there on; a file system that knows of no holes answers otherwise
        return error.errno == errno.ENXIO
    finally:
        os.close(descriptor)
    return data_bytes * 2 < end


def _take(entry: os.DirEntry[str], device: int, found: list[DataFile], taken: set[int], folders: deque[str]) -> None:
    try:
        if entry.is_dir(follow_symlinks=False):
            if entry.stat(follow_symlinks=False).st_dev == device:
                folders.append(entry.path)
            return
        seen = entry.stat()
        fits = stat.S_ISREG(seen.st_mode) and seen.st_dev == device and seen.st_size >= _LEAST_BYTES
        if not fits or seen.st_ino in taken or not os.access(entry.path, os.R_OK) or mostly_holes(entry.path, seen):
            return
    except OSError:
        return
    taken.add(seen.st_ino)
    found.append(DataFile(entry.path, seen.st_size))


def made_in(folder: str) -> DataFile:
    """A new file without a name, of up to 512 MiB of noise, on the disk by now: it is gone with this process.

    Written for 4 seconds at most, and at most a twentieth of what is free. Raise OSError, NothingToReadError.
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
    except OSError as error:
        os.close(descriptor)
        raise NothingToReadError(f"writing a file to read in {folder}: {error.strerror or error}", tried=True) from None
    if written < _LEAST_OWN_BYTES:
        os.close(descriptor)
        why = f"{folder} took {written >> 20} MiB in {_WRITE_S:g} s, too little to be read; name data by --data"
        raise NothingToReadError(why, tried=True)
    return DataFile(f"/proc/self/fd/{descriptor}", written)


def _without_name(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # NFS, FUSE, old kernels
        descriptor, path = tempfile.mkstemp(prefix=".gpudoctor-", dir=folder)
        os.unlink(path)  # noqa: PTH108
        return descriptor


def _fill(descriptor: int, size_bytes: int) -> int:
    """Write noise, on the disk after each 32 MiB: nothing is left to be written while it is read. Raise OSError."""
    noise = os.urandom(_SYNC_BYTES)  # no disk makes it smaller
    written, give_up_s = 0, monotonic() + _WRITE_S
    while written < size_bytes and monotonic() < give_up_s:
        # begun elsewhere each time: no two pieces are alike
        turn = written // _SYNC_BYTES * 4099
        write_all(descriptor, noise[turn:] + noise[:turn])
        os.fdatasync(descriptor)
        written += len(noise)
    return written
