"""The driver's events as they occur, from a process of their own: waiting for them blocks in the driver."""

from __future__ import annotations

import os

import msgspec

from gpudoctor.facts.nvml.event_child import DriverEvent
from gpudoctor.facts.nvml.spawn import DriverProcess
from gpudoctor.process.pipes import pipe_with_child

_READ_BYTES = 1 << 16


class DriverEvents:
    """The waiting process. `descriptor` becomes readable when there are events. Call `close`.

    Raise OSError if the process cannot be started.
    """

    def __init__(self, nvml: str | None = None) -> None:
        self._rest = b""
        with pipe_with_child("writes") as (self.descriptor, out):
            os.set_blocking(self.descriptor, False)
            self._process = DriverProcess.start("event process", "nvml.event_child", {"out": out, "nvml": nvml}, (out,))

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> tuple[DriverEvent, ...] | None:
        """The events since the last call; never waits. None if there will be no more."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return ()
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            return tuple(msgspec.json.decode(line, type=DriverEvent) for line in lines)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def close(self) -> None:
        os.close(self.descriptor)
        self._process.end()
        self._process.close()
