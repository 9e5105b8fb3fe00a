"""Creates an unnamed file to read, if the user names no data."""

from __future__ import annotations

import os
import tempfile
from time import monotonic

from gpudoctor.probes.storage.listing import DataFile
from gpudoctor.process.pipes import write_all

_WRITE_S = 4.0
_OWN_BYTES = 512 << 20
_LEAST_OWN_BYTES = 64 << 20
_SYNC_BYTES = 32 << 20
_SHARE_OF_FREE = 20


class NothingToReadError(Exception):
    """There is no file to read; the text gives the reason. `tried`: creating one was attempted and failed."""

    def __init__(self, text: str, *, tried: bool = False) -> None:
        super().__init__(text)
        self.tried = tried


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
