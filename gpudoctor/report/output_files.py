"""Output files that appear complete or not at all, and only at the path that was requested."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_pattern

if TYPE_CHECKING:
    from pathlib import Path

# how long to wait for a program to open a named pipe for reading
READER_DEADLINE_S = 5.0
_ENXIO = 6
_DESCRIPTOR = lazy_pattern(r"/(?:dev|proc/self)/fd/(\d{1,6})")
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_MAX_LINKS = 40  # the limit of the kernel (ELOOP)
_THERE = "there is one already, and it is not replaced"


class OutputError(UserError):
    """The file asked for with -o cannot be written."""


def write_file(path: Path, text: str) -> None:
    """Create or replace a file atomically. Raise OutputError, with everything left as it was.

    The mode of a new file follows the umask, since node_exporter must be able to read it. A replaced file keeps its
    mode, and its owner if permitted. A symbolic link is followed only to a file in the same directory or to a device.
    Pipes, terminals and /dev/stdout are written to directly.
    """
    with _refused(path):
        _write(path, text.encode("utf-8", "backslashreplace"))


def write_new_file(path: Path, data: bytes) -> None:
    """Create a file atomically; never replaces one. Raise OutputError."""
    with _refused(path):
        # a symbolic link counts as existing, even if dangling
        if os.path.lexists(path):
            raise _error(path, "is a directory" if path.is_dir() else _THERE)
        _put(path.parent, path.name, data, like=None, replace=False)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """What the file system refuses is raised as an OutputError."""
    try:
        yield
    except ValueError:
        raise _error(path, "not the name of a file") from None
    except FileExistsError:
        raise _error(path, _THERE) from None
    except OSError as error:
        raise _error(path, error.strerror or error) from None


def _error(path: Path, why: object) -> OutputError:
    return OutputError(f"{path}: cannot write: {why}")


def _write(path: Path, data: bytes) -> None:
    folder = path.parent.stat()
    if os.path.lexists(path):
        _refuse_foreign(path, path.lstat(), folder)
    number = _descriptor(path)
    if number is not None:
        _pour(os.dup(number), data)
        return
    try:
        present = path.stat()
    except FileNotFoundError:
        present = None
    if present is not None:
        if stat.S_ISDIR(present.st_mode):
            raise _error(path, "is a directory")
        if stat.S_ISBLK(present.st_mode):
            raise _error(path, "is a disk")
        if stat.S_ISCHR(present.st_mode):
            _pour(_open_stream(path, present), data)
            return
    name = path.name
    if path.is_symlink():
        name = _name_behind(path)
        if present is not None:
            _refuse_foreign(path, present, folder)
    if present is not None and not stat.S_ISREG(present.st_mode):
        _pour(_open_stream(path, present), data)
        return
    if present is not None and not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _error(path, "it is there and must not be written to")
    _put(path.parent, name, data, like=present, replace=True)


def _refuse_foreign(path: Path, found: os.stat_result, folder: os.stat_result) -> None:
    """Raise OutputError for a file that another user placed in /tmp or the like to intercept the output."""
    is_anyones = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if is_anyones and found.st_uid not in (os.geteuid(), folder.st_uid):
        owner = f"it belongs to another user (uid {found.st_uid})"
        raise _error(path, f"{owner}, in a directory where everyone may write; take another name")


def _name_behind(link: Path) -> str:
    """The name of the link's target. Raise OutputError if the target is in another directory."""
    place, name = os.path.split(os.path.realpath(link))
    if place != os.path.realpath(link.parent):
        target = f"it is a link into another directory, to {place}/{name}"
        raise _error(link, f"{target}, and is not followed; name that file itself")
    return name


def _descriptor(path: Path) -> int | None:
    """The open descriptor that /dev/stdout, /dev/fd/63 and the like refer to; None for other paths.

    It must not be opened by name: if it is a file, that would truncate what was already written to it.
    """
    name = os.path.abspath(path)  # noqa: PTH100 - links must not be followed here
    for _ in range(_MAX_LINKS):
        if name in _STREAMS:
            return _STREAMS[name]
        if match := _DESCRIPTOR.fullmatch(name):
            return int(match[1])
        try:
            name = os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(name)))  # noqa: PTH115, PTH118, PTH120
        except OSError:
            return None
    return None


def _open_stream(path: Path, seen: os.stat_result) -> int:
    """Open a pipe or a device for writing. Raise OutputError if a pipe gets no reader in time."""
    deadline = time.monotonic() + READER_DEADLINE_S
    while True:
        try:
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != _ENXIO or not stat.S_ISFIFO(seen.st_mode):
                raise
            if time.monotonic() > deadline:
                raise _error(path, "nobody reads this pipe") from None
            time.sleep(0.02)
    now = os.fstat(number)
    if (now.st_dev, now.st_ino) != (seen.st_dev, seen.st_ino):
        os.close(number)
        raise _error(path, "it was changed at this very moment")
    os.set_blocking(number, True)
    return number


def _pour(number: int, data: bytes) -> None:
    with os.fdopen(number, "wb") as stream:
        stream.write(data)


def _put(place: Path, name: str, data: bytes, *, like: os.stat_result | None, replace: bool) -> None:
    """Write a temporary file and rename it in `place`; `like` is the file whose mode and owner it gets. Raise OSError.

    All steps use one open directory: even if the path is changed meanwhile, nothing is written elsewhere.
    """
    folder = os.open(place, getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary = f".gpudoctor-{os.urandom(8).hex()}.tmp"
    try:
        if not _appeared_whole(folder, temporary, data, like):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            _fill(os.open(temporary, flags, 0o600, dir_fd=folder), data, like).close()
        if replace:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            _take_name(folder, temporary, name)
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        os.close(folder)


def _appeared_whole(folder: int, name: str, data: bytes, like: os.stat_result | None) -> bool:
    """Write an unnamed file (O_TMPFILE) and link it when complete; False if the file system does not support that.

    Nothing is left behind if this process is killed before the link.
    """
    try:
        number = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except (OSError, AttributeError):  # old or remote file systems; not Linux
        return False
    with _fill(number, data, like):
        try:
            os.link(f"/proc/self/fd/{number}", name, dst_dir_fd=folder, follow_symlinks=True)
        except OSError:  # no /proc, no hard links
            return False
    return True


def _fill(number: int, data: bytes, like: os.stat_result | None) -> BinaryIO:
    """Write all of it to the disk and return the file, still open."""
    file = os.fdopen(number, "wb")
    try:
        if like is None:
            os.fchmod(number, 0o666 & ~_umask())
        else:
            for uid, gid in ((like.st_uid, like.st_gid), (-1, like.st_gid)):
                with suppress(OSError):
                    os.fchown(number, uid, gid)
                    break
            os.fchmod(number, like.st_mode & 0o777)
        file.write(data)
        file.flush()
        os.fsync(number)
    except BaseException:
        with suppress(OSError):  # flushing the rest of the buffer fails again
            file.close()
        raise
    return file


def _take_name(folder: int, temporary: str, name: str) -> None:
    """Rename the file; the new name must be free."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name, then replace the placeholder
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=folder))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
