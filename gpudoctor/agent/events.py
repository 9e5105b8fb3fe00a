"""Wakes the agent when the kernel log or the driver reports something: it judges nothing, it only asks for a check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpudoctor.facts.kernel_log.live import KernelTail
from gpudoctor.facts.nvml.driver_events import DriverEvents
from gpudoctor.facts.nvml.event_child import DriverEvent
from gpudoctor.text.output import printable, say

# an Xid is written in several lines, and the driver needs a moment to count what it reports
SETTLE_S = 0.3
# a storm of events must not become a storm of checks
PAUSE_S = 30.0


class EventWatch:
    """Calls `wake` with a few words for each event, from the running event loop. Costs nothing while nothing occurs.

    Which of the two sources exist is up to the machine: without permission for /dev/kmsg, or if the driver has no
    events, the schedule alone finds what happened.
    """

    def __init__(self, wake: Callable[[str], None], root: Path = Path("/"), nvml: str | None = None) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._kernel = KernelTail(root)
        self._driver: DriverEvents | None = None
        with suppress(OSError):
            self._driver = DriverEvents(nvml)
            self._loop.add_reader(self._driver.descriptor, self._of_driver)
        # OSError: a container engine may put a file or /dev/null there, of which no event loop can wait
        with suppress(OSError):
            if self._kernel.descriptor is not None:
                self._loop.add_reader(self._kernel.descriptor, self._of_kernel)

    @property
    def pids(self) -> frozenset[int]:
        """The processes that belong to this watch."""
        return frozenset() if self._driver is None else frozenset({self._driver.pid})

    def close(self) -> None:
        """Stop waiting, and end the process that waits in the driver."""
        self._stop_kernel()
        self._stop_driver()

    def _of_kernel(self) -> None:
        descriptor = self._kernel.descriptor
        events = self._kernel.read()
        if self._kernel.descriptor is None and descriptor is not None:
            self._loop.remove_reader(descriptor)
        if events:
            text = events[0].text
            self._wake(f"kernel log: {printable(text.partition(';')[2] or text)[:120]}")

    def _of_driver(self) -> None:
        events = self._driver.read() if self._driver is not None else None
        if events is None:
            self._stop_driver()
        elif events:
            self._wake(f"driver: {_words(events[0])}")

    def _stop_kernel(self) -> None:
        if self._kernel.descriptor is not None:
            self._loop.remove_reader(self._kernel.descriptor)
            self._kernel.close()

    def _stop_driver(self) -> None:
        if self._driver is not None:
            self._loop.remove_reader(self._driver.descriptor)
            self._driver.close()
            self._driver = None


def _words(event: DriverEvent) -> str:
    number = "" if event.number is None else f" {event.number}"
    where = "" if event.gpu is None else f" on GPU {event.gpu}"
    return f"{printable(event.kind)}{number}{where}"


class WakeUp:
    """Makes the next run due early: `SETTLE_S` after an event, but at most every `PAUSE_S`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._why = ""
        self._next_s = 0.0

    def wake(self, why: str) -> None:
        if not self._event.is_set():
            self._why = why
            self._event.set()

    async def within(self, limit_s: float) -> bool:
        """Wait until a run is due by an event, at most `limit_s`; whether it is."""
        clock = asyncio.get_running_loop().time
        try:
            await asyncio.wait_for(self._event.wait(), limit_s)
        except asyncio.TimeoutError:
            return False
        await asyncio.sleep(max(SETTLE_S, self._next_s - clock()))
        self._event.clear()
        self._next_s = clock() + PAUSE_S
        say(f"{self._why}: checking now")
        return True
