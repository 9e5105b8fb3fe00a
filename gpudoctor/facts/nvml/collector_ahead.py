"""A collector process that is forked before this process imports its checks, so that both import in parallel.

It calls no driver, loads no driver library and reads nothing of the machine until it gets its order. Modules that
both processes need are imported before the fork, once for both.
"""

from __future__ import annotations

import os
import sys
import threading  # noqa: F401
from contextlib import ExitStack, suppress
from fcntl import fcntl
from time import monotonic

import msgspec

from gpudoctor.facts import deadlines  # noqa: F401 - this one and the next two: both processes need them
from gpudoctor.facts.nvml import codes, kernel_module  # noqa: F401
from gpudoctor.facts.nvml.channel import SIZE_BYTES, SharedCallTrace
from gpudoctor.facts.system import pci  # noqa: F401
from gpudoctor.facts.system.sysfs import AnyPath
from gpudoctor.process.die_with_parent import die_with_parent
from gpudoctor.process.ending import kill_all
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.pipes import anonymous_file, write_all

_GRACE_S = 0.3
_F_SETPIPE_SZ = 1031  # <linux/fcntl.h>
_PIPE_BYTES = 1 << 20  # holds the messages of more than 16 GPUs: the collector need not wait for a reader
_waiting: ForkedCollector | None = None


class ForkedCollector:
    """A forked process that waits for its order: a root to read below, and pynvml or its replacement.

    `pipe`, `trace` and `errors` are like those of a collector that was not forked; the one that takes the process
    closes them. `ordered` is the order, `ordered_s` its time (monotonic). Raise OSError if it cannot be forked.
    """

    def __init__(self) -> None:
        parent = os.getpid()
        with ExitStack() as other, ExitStack() as own:
            memory = _kept(anonymous_file(SIZE_BYTES), other)
            self.errors = _kept(anonymous_file(), own)
            self.trace = SharedCallTrace(memory)
            own.callback(self.trace.close)
            orders, self._orders = os.pipe()
            _kept(orders, other), _kept(self._orders, own)
            self.pipe, out = os.pipe()
            _kept(self.pipe, own), _kept(out, other)
            with suppress(OSError):
                fcntl(out, _F_SETPIPE_SZ, _PIPE_BYTES)
            self.process = ForkedProcess(lambda: _collect(orders, out, memory, self.errors, parent), new_session=True)
            own.pop_all()
        # descriptor numbers in the child, which are the same
        self._order = {"out": out, "trace": memory, "parent_pid": parent}
        self.ordered: tuple[str, str | None] | None = None
        self.ordered_s = 0.0

    def send(self, root: AnyPath, nvml: str | None) -> None:
        """Have it read the driver. If it has already ended, the reader of the pipe will notice."""
        self.ordered, self.ordered_s = (str(root), nvml), monotonic()
        order = msgspec.json.encode({**self._order, "root": str(root), "nvml": nvml})
        with suppress(BrokenPipeError):
            write_all(self._orders, order)
        os.close(self._orders)

    def dismiss(self) -> None:
        """End it, whether it has an order or not."""
        self.trace.close()
        for fd in (self.pipe, self.errors, *(() if self.ordered else (self._orders,))):
            os.close(fd)
        kill_all([self.process], _GRACE_S, group=False)  # wait no longer: it may be stuck in a driver call


def _kept(fd: int, stack: ExitStack) -> int:
    stack.callback(os.close, fd)
    return fd


def start_ahead() -> None:
    """Fork the process if that is safe: this one must have a single thread. Otherwise, and on failure, do nothing."""
    global _waiting
    try:
        if len(os.listdir("/proc/self/task")) != 1:
            return
        _waiting = ForkedCollector()
    except OSError:  # not Linux, or a limit on processes or files: `Collector` reports it if one is needed
        return


def order_ahead(root: AnyPath, nvml: str | None = None) -> None:
    """Let the process, if there is one, start to read the driver now. Later orders are ignored."""
    if _waiting is not None and _waiting.ordered is None:
        _waiting.send(root, nvml)


def take_ahead(root: AnyPath, nvml: str | None) -> ForkedCollector | None:
    """The process with its order, once; None if there is none, or if it was ordered to read something else."""
    global _waiting
    ahead, _waiting = _waiting, None
    if ahead is not None and ahead.ordered is None:
        ahead.send(root, nvml)
    if ahead is not None and ahead.ordered != (str(root), nvml):
        ahead.dismiss()
        return None
    return ahead


def dismiss_ahead() -> None:
    """End the process if it was not taken."""
    global _waiting
    ahead, _waiting = _waiting, None
    if ahead is not None:
        ahead.dismiss()


def _collect(orders: int, pipe: int, memory: int, errors: int, parent: int) -> None:
    """In the child: import, wait for the order, read the driver like `collector_child`, and end the process."""
    die_with_parent(parent)  # first: stopped, it would not see the end of the pipe
    null = os.open(os.devnull, os.O_RDWR)
    for fd, stream in ((null, 0), (null, 1), (errors, 2)):
        os.dup2(fd, stream)
    if sys.stderr is None:  # it was closed when Python started
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, orders, pipe, memory):
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    from gpudoctor.facts.nvml.collector_child import wait_for_order

    wait_for_order(orders)
