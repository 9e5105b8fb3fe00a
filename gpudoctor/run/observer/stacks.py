"""Where this process stands: by faulthandler on request, and sampled a few times a second."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from time import sleep
from types import CodeType, FrameType
from typing import Any

from . import layout
from .phases import Phases

_EVERY_S = 0.1
_LATER_EVERY_S = 0.5
_MANY = 50
_WRITE_EVERY_S = 2.0
_LATER_WRITE_EVERY_S = 10.0
_MOST_PLACES = 256
_FIRST_STEP = 2  # imports and the first step are no part of the training's rhythm
# not among the first ones, which the C library and the profilers of vendors use
STACK_SIGNAL = signal.SIGRTMAX - 5


def write_stacks_on_signal(path: str) -> int:
    """Write all stacks to this file whenever STACK_SIGNAL comes; the C handler needs no interpreter to be free.

    Also those of a fatal signal, unless the user has enabled faulthandler. Returns the signal; 0 if it is in use.
    """
    if signal.getsignal(STACK_SIGNAL) not in (signal.SIG_DFL, None):
        return 0
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115, PTH123 - stays open as long as the process
    faulthandler.register(STACK_SIGNAL, file, all_threads=True, chain=False)
    if not faulthandler.is_enabled():
        faulthandler.enable(file, all_threads=True)
    return int(STACK_SIGNAL)


class StackSampler(threading.Thread):
    """Counts in which line of the user's code the training thread is, by phase, and has them written now and then."""

    def __init__(self, phases: Phases, write: Any) -> None:
        super().__init__(name="gpudoctor-observer", daemon=True)
        self.places: dict[tuple[int, str, int, str], int] = {}
        self.stopped = False
        self._phases = phases
        self._write = write
        self._own: dict[CodeType, bool] = {}
        own_folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
        self._foreign = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix, "<frozen", own_folder})

    def run(self) -> None:
        count, pause_s, unwritten_s, write_every_s = 0, _EVERY_S, 0.0, _WRITE_EVERY_S
        while not self.stopped:
            sleep(pause_s)
            self._phases.write_now()
            unwritten_s += pause_s
            if self._phases.steps >= _FIRST_STEP:
                self._sample()
                count += 1
                pause_s = _EVERY_S if count < _MANY else _LATER_EVERY_S
            if unwritten_s >= write_every_s:
                self._write()
                unwritten_s, write_every_s = 0.0, min(2 * write_every_s, _LATER_WRITE_EVERY_S)

    def _sample(self) -> None:
        phases = self._phases
        frame = sys._current_frames().get(phases.thread)
        phase = phases.stack[-1] if phases.stack else layout.HOST
        while frame is not None and not self._is_own(frame):
            frame = frame.f_back
        if frame is None:
            return
        place = (phase, frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
        if place in self.places or len(self.places) < _MOST_PLACES:
            self.places[place] = self.places.get(place, 0) + 1

    def _is_own(self, frame: FrameType) -> bool:
        """Whether it is code of the user: neither the standard library nor an installed package."""
        code = frame.f_code
        if code not in self._own:
            name = code.co_filename
            self._own[code] = not (
                name.startswith(self._foreign) or "site-packages" in name or "dist-packages" in name or name[:1] == "<"
            )
        return self._own[code]
