"""The lock of the state folder: only one check at a time counts for a node's drain."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpudoctor.errors import UserError

_PAUSE_S = 0.1


class StateLockError(UserError):
    """The lock cannot be made; the text is the reason."""


class StateInUseError(UserError):
    """Another check holds the lock."""


@contextmanager
def locked_state(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of `folder`, which is made if it is missing; another holder may take `wait_s` to end.

    Raise StateLockError or StateInUseError.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise StateLockError(f"no lock could be made in {folder}: {error.strerror}") from None
    try:
        _take(lock, folder, time.monotonic() + wait_s)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # explicitly: a child that hangs in the driver may hold a copy
        os.close(lock)


def _take(lock: int, folder: Path, until_s: float) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise StateInUseError(f"{folder}: another check of this node runs") from None
        time.sleep(_PAUSE_S)
