"""Runs a program to its end: no shell, an absolute deadline, bounded output, nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from gpudoctor.process.ending import send_signal
from gpudoctor.process.pipes import Bounded, read_to_end
from gpudoctor.process.signals import signals_postponed
from gpudoctor.process.spawn import DEVNULL, PIPE, Child

_GRACE_S = 0.3


class CommandLateError(Exception):
    """The program did not end in time."""


class Completed(NamedTuple):
    """A program that ended by itself, or whose output was cut at the limit (`truncated`; returncode None)."""

    returncode: int | None
    stdout: str
    truncated: bool = False
    stderr: str = ""


def run_command(
    argv: Sequence[str],
    deadline_s: float,
    max_bytes: int = 4 << 20,
    environ: Mapping[str, str] | None = None,
    *,
    with_stderr: bool = False,
) -> Completed:
    """Run a program and return its output. Raise CommandLateError, and OSError if it cannot be started.

    Stdin is empty, stderr is dropped unless requested, and the program has its own process group, which is always
    ended. The deadline counts from the start; the output of a program that is late is not returned, since
    half an answer misleads.
    """
    give_up_s = monotonic() + deadline_s
    late = CommandLateError(f"{argv[0]} did not end in {deadline_s:g} s")
    process = None
    out, err = Bounded(max_bytes + 1), Bounded(max_bytes)

    try:
        with signals_postponed():  # a handler that raises inside Popen would lose the process
            process = Child(argv, stdout=PIPE, stderr=PIPE if with_stderr else DEVNULL, env=environ)
        takers: dict[int, Callable[[bytes], bool | None]] = {process.stdout: out.take_until_full}
        if with_stderr:
            takers[process.stderr] = err.take
        if not read_to_end(takers, give_up_s):
            raise late
        if out.is_full:
            return Completed(None, out[:max_bytes].decode("utf-8", "replace"), truncated=True)
        status = process.ends_within(max(0.0, give_up_s - monotonic()))
        if status is None:
            raise late
        return Completed(status, out.decode("utf-8", "replace"), stderr=err.decode("utf-8", "replace"))
    finally:
        if process is not None:
            _end(process)
            process.close()


def _end(process: Child) -> None:
    # the group too: a program that ended may have left children that keep the pipe open
    for number in (signal.SIGTERM, signal.SIGKILL):
        send_signal(process.pid, number, group=True)
        if process.ends_within(_GRACE_S) is not None and (number == signal.SIGKILL or not _group_lives(process.pid)):
            return
    process.abandon()


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
