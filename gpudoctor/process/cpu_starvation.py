"""How long a process could not run because it got no CPU: that time is not the driver's fault."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from time import monotonic

_MOST_LOOKS = 2000
_SHORTEST_S = 0.02  # a look costs reading one file per thread
STALL_S = 0.25  # a watcher that looks this much too late was stalled, and so perhaps was the watched process


class CpuStarvation:
    """How long one process has waited for a CPU since this object was created; `since` limits it to a period.

    The kernel counts for each thread how long it was runnable but not running (the second number of
    /proc/PID/task/*/schedstat). That does not count a machine that stopped altogether (a virtual machine that is
    migrated or paused, a frozen cgroup), which shows as a watcher that calls `look` later than intended.
    If the kernel has no schedstat, only the latter is known.
    """

    def __init__(self, pid: int, root: Path = Path("/"), clock: Callable[[], float] = monotonic) -> None:
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
            threads = os.listdir(self._tasks)  # noqa: PTH208 - names, not Paths: runs twenty times a second
        except OSError:
            return 0.0
        for thread in threads:
            try:
                with open(f"{self._tasks}/{thread}/schedstat", "rb") as file:  # noqa: PTH123
                    self._waited_ns[thread] = int(file.read(200).split()[1])
            except (OSError, ValueError, IndexError):
                continue
        return sum(max(0, waited - before.get(thread, 0)) for thread, waited in self._waited_ns.items()) / 1e9
