"""What is piped to stdin, or what a person pastes there."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import BinaryIO

from gpudoctor.text.output import is_terminal, say

_PART_BYTES = 1 << 16


def standard_input(ask: str) -> BinaryIO | None:
    """The stream; on a terminal `ask` is said, and all is read until Ctrl-D. None if stdin is closed.

    A terminal reports its end once: a reader that asks again, as Python's own does, would need a second Ctrl-D.
    """
    if sys.stdin is None:
        return None
    stream = sys.stdin.buffer
    if not is_terminal(sys.stdin):
        return stream
    say(f"{ask}; then end it: Enter, Ctrl-D")
    pasted = bytearray()
    with suppress(OSError):  # the terminal is gone: what was pasted until then is all
        while part := os.read(stream.fileno(), _PART_BYTES):
            pasted += part
    return io.BytesIO(pasted)
