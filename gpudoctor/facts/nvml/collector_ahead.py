"""A collector process that is forked before this one has imported its checks: both import at once.

It makes no driver call, loads no driver library and reads nothing of the machine until it is handed its order. What
it needs before that, and this process needs too, is imported before the fork, once for both.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from fcntl import fcntl
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from gpudoctor.facts.nvml.channel import Crumbs, make_memory

_GRACE_S = 0.3
_SIGKILL = 9
_F_SETPIPE_SZ = 1031  # Linux's
_PIPE_BYTES = 1 << 20  # more than 16 GPUs tell: it need not wait for anybody to listen


class ForkedProcess:
    """A forked child, as much of `subprocess.Popen` as its end takes."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """The exit status, -n for signal n; raise subprocess.TimeoutExpired where it still runs after so long."""
        status = self.waited(timeout)
        if status is None:
            from subprocess import TimeoutExpired

            raise TimeoutExpired("the forked collector", timeout)
        return status

    def waited(self, limit_s: float) -> int | None:
        """The exit status, or None where it still runs after so long."""
        end_s = monotonic() + limit_s
        pause_s = 0.0005
        while self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # whoever started this process has it ignore SIGCHLD
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif monotonic() >= end_s:
                return None
            else:
                sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)
        return self.returncode


class Ahead:
    """The process that waits for its order, to read below a root with pynvml or what stands in for it.

    `pipe`, `crumbs` and `errors` are as those of a collector that was started in another way, and whoever takes them
    closes them. `ordered` says what was ordered, `ordered_s` when (monotonic). Raise OSError where it cannot be forked.
    """

    def __init__(self) -> None:
        parent = os.getpid()
        with ExitStack() as theirs, ExitStack() as ours:
            memory = _kept(make_memory(), theirs)
            self.errors = _kept(make_memory(), ours)
            self.crumbs = Crumbs(memory)
            ours.callback(self.crumbs.close)
            orders, self._orders = os.pipe()
            _kept(orders, theirs), _kept(self._orders, ours)
            self.pipe, out = os.pipe()
            _kept(self.pipe, ours), _kept(out, theirs)
            with suppress(OSError):
                fcntl(out, _F_SETPIPE_SZ, _PIPE_BYTES)
            pid = os.fork()
            if pid == 0:
                _collect(orders, out, memory, self.errors, parent)
            ours.pop_all()
        self.process = ForkedProcess(pid)
        # in the child's numbers, which stay the same
        self._order = {"pipe": out, "crumbs": memory, "parent_pid": parent}
        self.ordered: tuple[str, str | None] | None = None
        self.ordered_s = 0.0

    def send(self, root: Path, nvml: str | None) -> None:
        """Have it read the driver; whether it has ended before shows at its end of the pipe."""
        import msgspec

        self.ordered, self.ordered_s = (str(root), nvml), monotonic()
        order = msgspec.json.encode({**self._order, "root": str(root), "nvml": nvml})
        try:
            while order:
                order = order[os.write(self._orders, order) :]
        except BrokenPipeError:
            pass
        finally:
            os.close(self._orders)

    def dismiss(self) -> None:
        """End it, with an order or without."""
        self.crumbs.close()
        for fd in (self.pipe, self.errors, *(() if self.ordered else (self._orders,))):
            os.close(fd)
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, _SIGKILL)
        self.process.waited(_GRACE_S)  # no longer: it may sit in a driver call that nothing ends


def _kept(fd: int, stack: ExitStack) -> int:
    stack.callback(os.close, fd)
    return fd


_waiting: Ahead | None = None


def start_ahead() -> None:
    """Fork the process where that is safe: this one must have a single thread. Else, and on any failure, do nothing."""
    global _waiting
    try:
        if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 - names, not Paths
            return
        _waiting = Ahead()
    except OSError:  # not Linux; no more processes or files may be opened: who needs a collector will say so
        return


def order_ahead(root: Path, nvml: str | None = None) -> None:
    """Let the process, if there is one, read the driver now: `take_ahead` finds what it has told until then.

    The first order is the one that counts.
    """
    if _waiting is not None and _waiting.ordered is None:
        _waiting.send(root, nvml)


def take_ahead(root: Path, nvml: str | None) -> Ahead | None:
    """The process, once; it has its order. None where there is none, or it was ordered to read something else."""
    global _waiting
    ahead, _waiting = _waiting, None
    if ahead is not None and ahead.ordered is None:
        ahead.send(root, nvml)
    if ahead is not None and ahead.ordered != (str(root), nvml):
        ahead.dismiss()
        return None
    return ahead


def dismiss_ahead() -> None:
    """End the process where nobody has taken it."""
    global _waiting
    ahead, _waiting = _waiting, None
    if ahead is not None:
        ahead.dismiss()


def _collect(orders: int, pipe: int, memory: int, errors: int, parent: int) -> NoReturn:
    """In the child: import, wait for the order, read the driver as `collector_child` does; never returns."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd, stream in ((null, 0), (null, 1), (errors, 2)):
            os.dup2(fd, stream)
        if sys.stderr is None:  # it was closed when Python started
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not Paths
            if int(name) not in (0, 1, 2, orders, pipe, memory):
                with suppress(OSError):  # the listing's own
                    os.close(int(name))
        from gpudoctor.facts.nvml.collector_child import wait_for_order

        wait_for_order(orders, parent)
    except BaseException:  # noqa: BLE001 - the last words of a process are for its post-mortem
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)
