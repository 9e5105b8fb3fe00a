"""A process that calls stat and statvfs on the user's paths, one thread per path: a dead mount blocks only its thread.

Imports only the standard library, since `check --level quick` waits for it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from gpudoctor.lazy import lazy_imports
from gpudoctor.process.pipes import write_all

with lazy_imports():
    # `status_of` in the process of the caller needs neither
    import json
    import threading

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "block device",
    stat.S_IFCHR: "character device",
}


def answer(descriptor: str, paths: str) -> None:
    """Write one JSON line per path to the pipe, each as soon as it is known; `paths` is a JSON list."""
    asked = json.loads(paths)
    writing = threading.Lock()
    threads = [
        threading.Thread(target=_answer_one, args=(int(descriptor), writing, place, path), daemon=True)
        for place, path in enumerate(asked)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def status_of(path: str) -> dict[str, object]:
    """The fields of a `PathStatus` except `place`; never raises, and hangs if the mount does."""
    try:
        return _status(path)
    except FileNotFoundError:
        return {**_of_nearest(path), "error": errno.ENOENT}
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return {"error": getattr(error, "errno", None) or errno.EINVAL}


def _answer_one(descriptor: int, writing: threading.Lock, place: int, path: str) -> None:
    line = json.dumps({"place": place, **status_of(path)}).encode() + b"\n"
    with writing, suppress(BrokenPipeError):  # the parent has closed its end
        write_all(descriptor, line)


def _of_nearest(path: str) -> dict[str, object]:
    """The status of the nearest existing parent folder, where a cache that does not exist yet will be created."""
    while (path := os.path.dirname(path)) != "/":
        with suppress(OSError):
            return _status(path)
    return _status(path)


def _status(path: str) -> dict[str, object]:
    seen = os.stat(path)
    kind = _KINDS.get(stat.S_IFMT(seen.st_mode), "special file")
    space = os.statvfs(path)
    return {
        # after stat, which tells a loop of links from a missing file
        "resolved": os.path.realpath(path),
        "kind": kind,
        "size_bytes": seen.st_size if kind == "file" else None,
        "readable": os.access(path, os.R_OK | os.X_OK if kind == "folder" else os.R_OK),
        # never true on a read-only mount, whatever the mode says
        "writable": os.access(path, os.W_OK),
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
        "inodes": space.f_files,
        "inodes_free": space.f_favail,
        "read_only": bool(space.f_flag & os.ST_RDONLY),
    }
