"""How long a process could not go on because the machine gave it no CPU: no driver is to blame for that time."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from time import monotonic

_MOST_LOOKS = 2000
_SHORTEST_S = 0.02  # looking costs a file a thread
STALL_S = 0.25  # a watcher that comes to look so much too late was held up, and what it watches perhaps too


class CpuStarvation:
    """What one process waited for a CPU since this was made; `since` tells it for a stretch of time.

    The kernel counts for each thread how long it could have run and did not (the second number of
    /proc/PID/task/*/schedstat). A machine that stands still altogether (a virtual machine that is moved or
    paused, a frozen cgroup) is in no such count: it shows in a watcher that comes to `look` later than it meant to.
    Where the kernel does not count, only that is known.
    """

    def __init__(self, pid: int, root: Path = Path("/"), clock: Callable[[], float] = monotonic) -> None:
        self._tasks = str(root / "proc" / str(pid) / "task")
        self._clock = clock
        self._waited_ns: dict[str, int] = {}
        self._lock = Lock()  # the listener looks, and whoever ends the process
        self._times, self._totals = [clock()], [0.0]

    def look(self, meant_s: float | None = None) -> float:
        """The total until now, in seconds; `meant_s`: how long after the last look this one was to come."""
        with self._lock:
            passed_s = self._clock() - self._times[-1]
            if passed_s < _SHORTEST_S:
                return self._totals[-1]
            late_s = 0.0 if meant_s is None else passed_s - meant_s
            # threads wait side by side: no more than the time that passed
            lost_s = min(passed_s, max(self._waited_s(), late_s if late_s > STALL_S else 0.0))
            self._times = [*self._times[-_MOST_LOOKS:], self._times[-1] + passed_s]
            self._totals = [*self._totals[-_MOST_LOOKS:], self._totals[-1] + lost_s]
            return self._totals[-1]

    def since(self, start_s: float) -> float:
        """How much of the time from `start_s` (monotonic) until the last look was lost, as far as it may have been."""
        with self._lock:
            after = max(1, bisect_right(self._times, start_s))
            if after >= len(self._times):
                return 0.0
            # when between two looks it was lost is not known: in favour of whoever waits
            first_s = min(self._totals[after] - self._totals[after - 1], self._times[after] - start_s)
            return self._totals[-1] - self._totals[after] + first_s

    def _waited_s(self) -> float:
        """What all threads together waited for a CPU since the last look."""
        before, self._waited_ns = self._waited_ns, {}
        try:
            threads = os.listdir(self._tasks)  # noqa: PTH208 - names, not Paths: this is done twenty times a second
        except OSError:
            return 0.0
        for thread in threads:
            try:
                with open(f"{self._tasks}/{thread}/schedstat", "rb") as file:  # noqa: PTH123
                    self._waited_ns[thread] = int(file.read(200).split()[1])
            except (OSError, ValueError, IndexError):
                continue
        return sum(max(0, waited - before.get(thread, 0)) for thread, waited in self._waited_ns.items()) / 1e9
