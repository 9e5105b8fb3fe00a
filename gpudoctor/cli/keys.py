"""Single keys from the terminal, without Enter, for commands that repeat until a person leaves."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpudoctor.text.output import is_terminal


@contextmanager
def key_reader() -> Iterator[Callable[[float], str | None]]:
    """A function that waits so many seconds for a key, and returns it or None; the terminal is restored afterwards.

    Without a terminal, and in the background, where reading one stops a program, it only waits.
    """
    if not _is_in_foreground():
        yield time.sleep
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str | None:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode("ascii", "replace") if ready else None

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _is_in_foreground() -> bool:
    try:
        return is_terminal(sys.stdin) and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # not the terminal of this session
        return False
