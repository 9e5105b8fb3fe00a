"""Horovod's stall inspector: ranks that did not submit a tensor that others wait for. Source: Horovod 0.11 to 0.28."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event

_MISSING = re.compile(r"(?<![\w./-])(?P<op>[\w./-]{1,1000}) \[missing ranks: ?(?P<ranks>\d[\d, ]{0,400})\]")
_READY = re.compile(r"(?<![\w./-])(?P<op>[\w./-]{1,1000}) \[ready ranks: ?(?P<ranks>\d[\d, ]{0,400})\]")
_HEADER = re.compile(r"Missing ranks: ?$")
_ROW = re.compile(r"(?P<ranks>\d{1,6}): \[(?P<op>[^\s,\]]{1,200})")
_MOST_OPS = 16


class StallReader:
    """Reads the warnings; newer versions print one row for each rank below a header."""

    def __init__(self) -> None:
        self._rows = False

    def read(self, text: str) -> list[Event]:
        """One event for each tensor, at most 16 of a line. Only warnings: training may go on after them."""
        if self._rows and (row := _ROW.match(text)):
            return [_stalled("missing", row)]
        self._rows = bool(_HEADER.search(text))
        if " ranks:" not in text:
            return []
        found = [_stalled("missing", match) for match in _MISSING.finditer(text)]
        found += [_stalled("ready", match) for match in _READY.finditer(text)]
        return found[:_MOST_OPS]


def _stalled(said: str, found: re.Match[str]) -> Event:
    return Event(role="wait", what="stalled_tensor", detail={"op": found["op"], said: found["ranks"], "warning": 1})
