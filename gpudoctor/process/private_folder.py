"""Private folders for our files, and whether another user could tamper with a file or folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_GROUP_OR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(folder: Path) -> None:
    """Create the folder and its missing parents, each with mode 0700. Raise OSError."""
    missing = [level for level in (folder, *folder.parents) if not os.path.lexists(level)]
    for level in reversed(missing):
        level.mkdir(mode=0o700, exist_ok=True)


def read_own_file(file: Path, most_bytes: int) -> bytes:
    """The content of a file that only this program writes. Raise OSError; ValueError if it is larger, or no file.

    A pipe or device of that name is removed: to read or to write it could wait without end.
    """
    with open(file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            file.unlink()
            raise ValueError("not a regular file")
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError("larger than can be")
    return data


def why_not_private(folder: Path, *, group_may_write: bool = False) -> str | None:
    """How a user other than root could change what is in this folder, in words; None if that is impossible.

    Examines only the folder itself, not its parents. Raise OSError.
    """
    writers = stat.S_IWOTH if group_may_write else _GROUP_OR_OTHERS
    foreign = _foreign_link(folder)
    return foreign or _distrust(folder, folder.stat(), writers)


def why_replaceable(file: Path) -> str | None:
    """How a user other than root could have replaced this file, in words; None if that is impossible.

    Examines the file and every folder and link on the path to it; to be called before code is loaded from it. A missing
    file counts as not replaceable. Raise OSError.
    """
    path, real = Path(os.path.abspath(file)), Path(os.path.realpath(file))  # noqa: PTH100
    for level in dict.fromkeys((*reversed(real.parents), *reversed(path.parents))):
        folder = level.stat()
        # in a sticky folder such as /tmp, users cannot rename or delete the entries of others
        writers = 0 if folder.st_mode & stat.S_ISVTX and level != real.parent else _GROUP_OR_OTHERS
        why = _foreign_link(level) or _distrust(level, folder, writers)
        if why is not None:
            return why
    if not os.path.lexists(path):
        return None
    if not stat.S_ISREG(path.lstat().st_mode):
        return f"{path} is no plain file"
    return _distrust(path, path.lstat(), _GROUP_OR_OTHERS)


def _foreign_link(path: Path) -> str | None:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode) and info.st_uid not in (0, os.geteuid()):
        return f"{path} is a link that another user made (uid {info.st_uid})"
    return None


def _distrust(path: Path, info: os.stat_result, writers: int) -> str | None:
    if info.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user (uid {info.st_uid})"
    if info.st_mode & writers:
        who = "everyone" if info.st_mode & writers & stat.S_IWOTH else "its group"
        return f"{who} may write to {path} (chmod go-w takes that away)"
    return None
