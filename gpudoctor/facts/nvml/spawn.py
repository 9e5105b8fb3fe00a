"""Starts a child process that may call the driver, finds out how it ended, and always ends it.

And how long it could not run because it got no CPU: that time is not the driver's fault.
"""

from __future__ import annotations

import os
import re
import signal
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from threading import Lock
from time import monotonic

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.deadlines import START_CALLS
from gpudoctor.facts.model.node import Unanswered
from gpudoctor.facts.nvml.channel import SIZE_BYTES, InFlight, SharedCallTrace
from gpudoctor.facts.system.sysfs import ROOT, AnyPath
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.die_with_parent import dependent_python
from gpudoctor.process.ending import RunningProcess, signal_name
from gpudoctor.process.pipes import anonymous_file, tail

with lazy_imports():
    # a collector that was forked ahead needs no program
    from gpudoctor.process import spawn as programs

_MOST_LOOKS = 2000
_SHORTEST_S = 0.02  # a look costs reading one file per thread
STALL_S = 0.25  # a watcher that looks this much too late was stalled, and so perhaps was the watched process
GRACE_S = 0.3
MAX_WORDS = 300
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class CpuStarvation:
    """How long one process has waited for a CPU since this object was created; `since` limits it to a period.

    The kernel counts for each thread how long it was runnable but not running (the second number of
    /proc/PID/task/*/schedstat). That does not count a machine that stopped altogether (a virtual machine that is
    migrated or paused, a frozen cgroup), which shows as a watcher that calls `look` later than intended.
    If the kernel has no schedstat, only the latter is known.
    """

    def __init__(self, pid: int, root: AnyPath = ROOT, clock: Callable[[], float] = monotonic) -> None:
        self._tasks = str(root / "proc" / str(pid) / "task")
        self._clock = clock
        self._waited_ns: dict[str, int] = {}
        self._lock = Lock()  # used by the listener thread and the thread that ends the process
        self._times, self._totals = [clock()], [0.0]

    def look(self, meant_s: float | None = None) -> float:
        """The total so far, in seconds; `meant_s`: the intended time between the last look and this one."""
        with self._lock:
            passed_s = self._clock() - self._times[-1]
            if passed_s < _SHORTEST_S:
                return self._totals[-1]
            late_s = 0.0 if meant_s is None else passed_s - meant_s
            # threads wait at the same time: no more than the time that passed
            lost_s = min(passed_s, max(self._waited_s(), late_s if late_s > STALL_S else 0.0))
            self._times = [*self._times[-_MOST_LOOKS:], self._times[-1] + passed_s]
            self._totals = [*self._totals[-_MOST_LOOKS:], self._totals[-1] + lost_s]
            return self._totals[-1]

    def since(self, start_s: float) -> float:
        """An upper bound of the time lost from `start_s` (monotonic) until the last look."""
        with self._lock:
            after = max(1, bisect_right(self._times, start_s))
            if after >= len(self._times):
                return 0.0
            # when the time was lost between two looks is not known: assume after `start_s`
            first_s = min(self._totals[after] - self._totals[after - 1], self._times[after] - start_s)
            return self._totals[-1] - self._totals[after] + first_s

    def _waited_s(self) -> float:
        """The time that all threads together waited for a CPU since the last look."""
        before, self._waited_ns = self._waited_ns, {}
        try:
            threads = os.listdir(self._tasks)
        except OSError:
            return 0.0
        for thread in threads:
            try:
                with open(f"{self._tasks}/{thread}/schedstat", "rb") as file:
                    self._waited_ns[thread] = int(file.read(200).split()[1])
            except (OSError, ValueError, IndexError):
                continue
        return sum(max(0, waited - before.get(thread, 0)) for thread, waited in self._waited_ns.items()) / 1e9


class DriverProcess:
    """The process, in its own session and process group, with its call trace and stderr.

    `name` is used in messages, `errors` is the anonymous file behind its stderr, `started_s` monotonic time. `end` and
    then `close` must be called; `end` waits only briefly for a process that cannot be killed.
    """

    def __init__(
        self, name: str, process: RunningProcess, trace: SharedCallTrace, errors: int, started_s: float
    ) -> None:
        self.name = name
        self.started_s = started_s
        self.trace = trace
        self._process, self._errors = process, errors
        self._told_to_end = False
        self._starvation = CpuStarvation(process.pid)

    @classmethod
    def start(cls, name: str, module: str, order: Mapping[str, object], pass_fds: Sequence[int]) -> DriverProcess:
        """Run `main` of a module of gpudoctor.facts with the order as JSON. Raise OSError if it cannot be started.

        The descriptor of the call trace is added to the order as `trace`.
        """
        started_s = monotonic()
        with ExitStack() as opened, ExitStack() as retained:
            memory, errors = anonymous_file(SIZE_BYTES), anonymous_file()
            opened.callback(os.close, memory)
            retained.callback(os.close, errors)
            argument = msgspec.json.encode({**order, "trace": memory}).decode()
            command = dependent_python(f"gpudoctor.facts.{module}", "main", argument)
            trace = SharedCallTrace(memory)
            retained.callback(trace.close)
            process = programs.Child(command, stderr=errors, pass_fds=(*pass_fds, memory))
            retained.pop_all()
        return cls(name, process, trace, errors, started_s)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ends_within(self, wait_s: float) -> int | None:
        """The exit status, or None if it is still running after `wait_s`."""
        return self._process.ends_within(wait_s)

    def post_mortem(self) -> tuple[tuple[Unanswered, ...], str]:
        """Why it ended before it had finished: the calls it died in, and a message.

        Only crashes are blamed on driver calls, and SIGKILL during one: the kernel kills the caller that way
        when the driver's module faults (Linux, page_fault_oops). A process that is
        still exiting after `GRACE_S` (writing a core, or inside the driver) counts as crashed.
        """
        status = self.ends_within(GRACE_S)
        if self._told_to_end:
            return (), f"the {self.name} was ended"
        calls, _ = self.trace.read()
        how = f"the {self.name} died by {signal_name(-status)}" if status is not None and status < 0 else ""
        if status is None or -status in _CRASHES or (calls and -status == signal.SIGKILL):
            unanswered = self._guilty(calls, how or f"the {self.name} died")
            return unanswered, unanswered[0].reason
        return (), how or f"the {self.name} ended with status {status}: {self.last_words()}"

    def _guilty(self, calls: tuple[InFlight, ...], how: str) -> tuple[Unanswered, ...]:
        """The call it died in; if it may be any of several, the last one without a GPU, and all in the message."""
        now = monotonic()
        if not calls:
            return (Unanswered(self.name, None, now - self.started_s, how),)
        # faulthandler: Current thread 0x00007f... (most recent call first):
        current = re.search(r"^Current thread 0x([0-9a-f]+)", tail(self._errors), re.MULTILINE)
        thread = int(current.group(1), 16) if current else None
        guilty = tuple(call for call in calls if call.thread == thread) or calls
        last = max(guilty, key=lambda call: call.started_s)
        waited_s = round(now - last.started_s, 3)
        if len(guilty) == 1:
            return (Unanswered(last.call, last.gpu, waited_s, f"{how} in {last.call}"),)
        where = ", ".join(call.where for call in guilty)
        return (Unanswered(last.call, None, waited_s, f"{how} in one of {where}"[:MAX_WORDS]),)

    def starved_s(self, meant_s: float | None = None) -> float:
        """How long it has waited for a CPU since its start; `meant_s`: the intended time between two calls."""
        return self._starvation.look(meant_s)

    def calls(self) -> tuple[tuple[InFlight, ...], int]:
        """The call trace, with start times moved later by the CPU starvation during the call (as of the last look)."""
        calls, between = self.trace.read()
        since = self._starvation.since
        return tuple(replace(call, started_s=call.started_s + since(call.started_s)) for call in calls), between

    def late_calls(self, call_deadline_s: float, start_deadline_s: float | None = None) -> tuple[Unanswered, ...]:
        """The calls that have not returned within the deadline, not counting CPU starvation.

        `start_deadline_s`: another deadline for calls that wake a GPU.
        """
        starting_s = call_deadline_s if start_deadline_s is None else start_deadline_s
        self.starved_s()
        now = monotonic()
        return tuple(
            Unanswered(call.call, call.gpu, round(now - call.started_s, 3))
            for call in self.calls()[0]
            if now - call.started_s > (starting_s if call.call in START_CALLS else call_deadline_s)
        )

    def last_words(self) -> str:
        """The last line of its stderr."""
        return tail(self._errors).strip().rpartition("\n")[2][:MAX_WORDS] or "it said nothing"

    def close(self) -> None:
        """Release call trace and stderr; they cannot be read any more."""
        os.close(self._errors)
        self.trace.close()

    def end(self) -> bool:
        """End the process and its group; True if it has ended."""
        if self._process.returncode is not None:  # already reaped: its pid may belong to another process
            return True
        self._told_to_end = True
        # one that has finished ends by itself; one that is stuck in the kernel goes when we end, or the driver returns
        return self._process.end(GRACE_S)
