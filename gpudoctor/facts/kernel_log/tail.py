"""New lines of the kernel log, as they come."""

from __future__ import annotations

import os
from pathlib import Path

from gpudoctor.facts.kernel_log.lines import kmsg_events
from gpudoctor.facts.model.node import KernelEvent

_MOST_RECORDS = 2000  # a tick; what is left comes with the next one
_MOST_EVENTS = 200
_GAP = KernelEvent("gap", "kernel lines were overwritten before they could be read")


class KernelTail:
    """Events since it was made; none where /dev/kmsg may not be read (the facts have said so). `close` it.

    Lines that the kernel overwrote before they could be read are told as one event of kind "gap".
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._device: int | None = None
        try:
            self._device = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._device, 0, os.SEEK_END)
        except OSError:
            self.close()

    def read(self) -> tuple[KernelEvent, ...]:
        """What came since the last time; never waits."""
        if self._device is None:
            return ()
        parts: list[bytes] = []
        gap: tuple[KernelEvent, ...] = ()
        for _ in range(_MOST_RECORDS):
            try:
                part = os.read(self._device, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:
                gap = (_GAP,)
                continue  # with what is left
            except OSError:
                self.close()
                break
            if not part:
                break
            parts.append(part)
        return (*gap, *kmsg_events(b"".join(parts).decode("utf-8", "replace"))[-_MOST_EVENTS:])

    def close(self) -> None:
        """Let go of the device."""
        if self._device is not None:
            os.close(self._device)
            self._device = None
