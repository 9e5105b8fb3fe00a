"""Forked processes that continue in this program, and so share what it has imported or read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NoReturn

from gpudoctor.process.ending import RunningProcess, leave, reap


class ForkedProcess(RunningProcess):
    """A forked child that runs a function and never returns into the caller's code. Raise OSError if fork fails.

    With `new_session` it leads a session, with `new_group` a process group: if it is stopped when its parent ends, the
    kernel lets it go on, as its group is orphaned then (credentials(7); a session would be orphaned from the start). It
    ends with status 0 when `run` returns, and with 1 and a traceback if `run`
    raises.
    """

    def __init__(self, run: Callable[[], object], *, new_session: bool = False, new_group: bool = False) -> None:
        self._returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(run, new_session, new_group)
        if new_group:
            with suppress(OSError):  # it has done so itself, or has ended
                os.setpgid(self.pid, self.pid)

    @property
    def returncode(self) -> int | None:
        return self._returncode

    def ends_within(self, limit_s: float) -> int | None:
        end_s = monotonic() + limit_s
        pause_s = 0.0005
        while self._returncode is None:
            ended = reap(self.pid)
            if ended is not None:
                self._returncode = ended[1]
            elif monotonic() >= end_s:
                return None
            else:
                sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)
        return self._returncode

    def abandon(self) -> None:
        self._returncode = -signal.SIGKILL


def _be_child(run: Callable[[], object], new_session: bool, new_group: bool) -> NoReturn:
    status = 1
    try:
        if new_session:
            os.setsid()
        elif new_group:
            os.setpgid(0, 0)
        run()
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here
        import traceback

        traceback.print_exc()
    finally:
        leave(status)
