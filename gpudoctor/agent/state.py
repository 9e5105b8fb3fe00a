"""The state that survives a restart: the last report, when it was made, and the streaks of failures."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor.agent.node_status import Last, Moment
from gpudoctor.errors import UserError
from gpudoctor.process.private_folder import make_private_folder, read_own_file, why_not_private
from gpudoctor.report.output_files import write_file
from gpudoctor.text.output import printable, say

STATE_FILE, LOCK_FILE = "agent.json", "agent.lock"
# a report of 16 GPUs is below 1 MiB
STATE_BYTES_MAX = 64 << 20


def now() -> Moment:
    return Moment(_boot(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        # unique, so that no saved moment counts as being from this boot
        return f"unknown since {time.time()}"


class WatchedSubject(msgspec.Struct, frozen=True):
    """What the agent checks: this host, or the source given by `--node` and `--fault`. State of another is not used."""

    host: str
    node: str | None = None
    faults: tuple[str, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    schema: Literal["gpudoctor.agent-state/1"]
    subject: WatchedSubject
    last: Last


def default_directory(environ: Mapping[str, str]) -> Path:
    """systemd's StateDirectory=, else XDG's state directory. Raise UserError if neither is known."""
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    xdg = environ.get("XDG_STATE_HOME", "")
    if Path(xdg).is_absolute():
        return Path(xdg) / "gpudoctor"
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise UserError("no home directory is known: --state DIR says where the agent keeps its state")
    return home / ".local" / "state" / "gpudoctor"


class StateDirectory:
    """A folder that one agent at a time uses, held by a lock.

    Raise UserError if another agent holds it, if it cannot be written, or if other users could change it: its content
    decides about alarms.
    """

    def __init__(self, folder: Path, subject: WatchedSubject) -> None:
        self.folder = folder
        self._subject = subject
        self._failing: str | None = None
        try:
            make_private_folder(folder)
            foreign = why_not_private(folder)
            if foreign is not None:
                raise UserError(f"--state {printable(foreign)}; a folder that is not there yet is made for us alone")
            self._lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"--state {printable(str(folder))}: cannot be written: {why}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UserError(
                f"--state {printable(str(folder))}: another agent keeps its state there; give each its own"
            ) from None
        except OSError as error:
            self.close()
            raise UserError(f"--state {printable(str(folder))}: cannot be locked: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._lock)

    def load(self) -> Last | None:
        """The last run that an earlier agent saved; None if there is none, or (with a message) if it is unusable."""
        path = self.folder / STATE_FILE
        try:
            return self._read(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or str(error)
            say(f"the state in {printable(str(path))} is not used, and will be replaced: {printable(why)[:200]}")
            return None

    def _read(self, path: Path) -> Last:
        retained = msgspec.json.decode(read_own_file(path, STATE_BYTES_MAX), type=_Kept)
        if retained.subject != self._subject:
            raise ValueError("it is of another node")
        return retained.last

    def save(self, last: Last) -> bool:
        """Write the state atomically. Return False if that fails, with a message at the first failure only."""
        text = msgspec.json.encode(_Kept("gpudoctor.agent-state/1", self._subject, last)).decode()
        try:
            write_file(self.folder / STATE_FILE, text + "\n")
        except UserError as error:
            if self._failing != str(error):
                say(f"the state is not kept: {error}")
            self._failing = str(error)
            return False
        self._failing = None
        return True
