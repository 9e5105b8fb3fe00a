"""The memory of this rank: allocated on its GPU, else resident in RAM. Read at most twenty times a second."""

from __future__ import annotations

import os
import sys

_EVERY_NS = 50_000_000  # a reading costs some 10 us
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class MemoryReading:
    """The last reading in MiB."""

    def __init__(self) -> None:
        self._read_ns = 0
        self._mib = 0.0

    def mib(self, now_ns: int) -> float:
        """The reading, renewed if it is old."""
        if now_ns - self._read_ns >= _EVERY_NS:
            self._read_ns = now_ns
            torch = sys.modules["torch"]
            if torch.cuda.is_initialized():
                self._mib = torch.cuda.memory_allocated() / (1 << 20)
            else:
                with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
                    self._mib = int(file.read().split()[1]) * _PAGE_MIB
        return self._mib
