"""The driver's events as they occur, from a process of their own: waiting for them blocks in the driver."""

from __future__ import annotations

import os

import msgspec

from gpudoctor.facts.nvml.event_child import DriverEvent
from gpudoctor.facts.nvml.spawn import DriverProcess
from gpudoctor.process.pipes import LineReader, pipe_with_child


class DriverEvents:
    """The waiting process. `descriptor` becomes readable when there are events. Call `close`.

    Raise OSError if the process cannot be started.
    """

    def __init__(self, nvml: str | None = None) -> None:
        with pipe_with_child("writes") as (self.descriptor, out):
            self._process = DriverProcess.start("event process", "nvml.event_child", {"out": out, "nvml": nvml}, (out,))
        self._pipe = LineReader(self.descriptor)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> tuple[DriverEvent, ...] | None:
        """The events since the last call; never waits. None if there will be no more."""
        lines = self._pipe.lines(0.0)
        try:
            return None if lines is None else tuple(msgspec.json.decode(line, type=DriverEvent) for line in lines)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def close(self) -> None:
        os.close(self.descriptor)
        self._process.end()
        self._process.close()
