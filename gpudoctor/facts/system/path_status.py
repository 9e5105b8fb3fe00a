"""stat and statvfs of the user's paths. A dead mount blocks the caller, so a child with a deadline calls them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Literal

import msgspec

from gpudoctor.facts.deadlines import PATH
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.mounts import may_hang, read_mounts
from gpudoctor.facts.system.path_status_child import status_of
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.die_with_parent import dependent_python
from gpudoctor.process.ending import kill_all
from gpudoctor.process.pipes import LineReader, pipe_with_child

with lazy_imports():
    # only a mount that may hang needs a process
    import json

    from gpudoctor.process import spawn

if TYPE_CHECKING:
    from gpudoctor.process.spawn import Child

# enough for a process that only reads; one that is blocked by a dead mount is abandoned
_KILL_GRACE_S = 0.2


class PathStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The result of stat and statvfs for one path; `error` is the errno of the first that failed, else None.

    With ENOENT the rest describes the nearest existing parent folder.
    `resolved` is the path without symbolic links. `free_bytes` and `inodes_free` are what this user may use;
    `inodes` is 0 if the file system has no fixed number. `readable` and `writable` come from access(2).
    """

    place: int
    error: int | None = None
    resolved: str = ""
    kind: Literal["file", "folder", "FIFO", "socket", "block device", "character device", "special file"] = "file"
    size_bytes: int | None = None
    readable: bool = False
    writable: bool = False
    total_bytes: int = 0
    free_bytes: int = 0
    inodes: int = 0
    inodes_free: int = 0
    read_only: bool = False


class PathQuestion:
    """A query for the status of paths, started at once; `answers` waits for the result, once. Never raises."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._give_up_s = monotonic() + PATH.seconds
        self._failure: Missing | None = None
        self._process: Child | None = None
        self._found: dict[int, PathStatus] = {}
        mounts = read_mounts()
        # only the disk of "/" and the kernel are involved: a process would cost more than the calls
        if not any(may_hang(path, mounts) for path in self._paths):
            for place, path in enumerate(self._paths):
                self._found[place] = msgspec.convert({"place": place, **status_of(path)}, PathStatus)
            return
        try:
            with pipe_with_child("writes") as (own, other):
                # json escapes what is not UTF-8, which no argument could carry otherwise
                argv = dependent_python(f"{__name__}_child", "answer", str(other), json.dumps(self._paths))
                self._process = spawn.Child(argv, pass_fds=[other])
            self._pipe = LineReader(own)
        except OSError as error:
            self._failure = Missing(f"no process could be started to ask: {error.strerror or error}", "failed")

    def answers(self) -> tuple[PathStatus | Missing, ...]:
        """The status of each path, in order; Missing (failed) for one that did not answer within the deadline."""
        found = self._found
        try:
            ended = self._process is None
            while not ended and len(found) < len(self._paths) and (left_s := self._give_up_s - monotonic()) > 0:
                lines = self._pipe.lines(left_s)
                ended = lines is None
                for line in lines or ():
                    # a path that is not UTF-8 has lone surrogates, which msgspec does not accept in JSON
                    status = msgspec.convert(json.loads(line), PathStatus)
                    found[status.place] = status
        finally:
            self.close()
        late = self._failure or Missing(f"did not answer within {PATH.seconds:g} s", "failed")
        return tuple(found.get(place, late) for place in range(len(self._paths)))

    def close(self) -> None:
        if self._process is not None:
            kill_all([self._process], _KILL_GRACE_S)
            os.close(self._pipe.descriptor)
            self._process = None


def ask_paths(paths: Sequence[str]) -> tuple[PathStatus | Missing, ...]:
    """The status of each path; Missing (failed) for one that does not answer within the deadline."""
    return PathQuestion(paths).answers()
