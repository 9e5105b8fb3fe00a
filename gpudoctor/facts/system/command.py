"""The only way to run a command: no shell, an absolute deadline, bounded output, nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import Any

import msgspec

from gpudoctor.facts.model.missing import Missing

_GRACE_S = 0.3
_TURN_S = 0.2
_CHUNK_BYTES = 1 << 16


class Completed(msgspec.Struct, frozen=True):
    """A command that ended by itself, or whose output was cut at the limit (`truncated`; returncode None)."""

    returncode: int | None
    stdout: str
    truncated: bool = False


def run_command(
    argv: Sequence[str], deadline_s: float, max_bytes: int = 4 << 20, environ: Mapping[str, str] | None = None
) -> Completed | Missing:
    """Run a program and take its output; Missing where it is not there, not allowed or not done in time.

    Stdin is closed, the locale is C (words do not depend on the user's), stderr is dropped, and the
    program has its own process group, which is ended in every case. The deadline counts from the
    start; what a program wrote before it was over is not returned, since half an answer misleads.
    """
    environ = dict(os.environ if environ is None else environ)
    environ |= {"LC_ALL": "C", "LANG": "C"}
    give_up_s = monotonic() + deadline_s
    late = Missing(f"{argv[0]} did not end in {deadline_s:g} s", "failed")
    process = None
    try:
        with _uninterrupted():
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environ,
                start_new_session=True,
            )
        assert process.stdout is not None
        output = _read(process.stdout.fileno(), give_up_s, max_bytes)
        if output is None:
            return late
        text = output[:max_bytes].decode("utf-8", "replace")
        if len(output) > max_bytes:
            return Completed(None, text, truncated=True)
        return Completed(process.wait(max(0.0, give_up_s - monotonic())), text)
    except subprocess.TimeoutExpired:
        return late
    except FileNotFoundError:
        return Missing(f"{argv[0]} is not installed", "absent")
    except PermissionError:
        return Missing(f"{argv[0]}: no permission to run it", "denied")
    except OSError as error:
        return Missing(f"{argv[0]}: {error.strerror}", "failed")
    finally:
        if process is not None:
            _end(process)
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have what a signal's handler raises wait for the end of the block: inside Popen it would lose the process."""
    came: list[int] = []
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    if threading.current_thread() is threading.main_thread():
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(ending)
            if callable(handler):
                handlers[ending] = handler
                signal.signal(ending, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)
        if came:
            handlers[came[0]](came[0], None)


def signal_name(number: int) -> str:
    """SIGSEGV for 11; "signal 40" where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending_words(status: int | None) -> str:
    """How a process ended, from Popen's `returncode`: "exit code 2", "killed by SIGSEGV"."""
    if status is None:
        return "it did not end"
    return f"exit code {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def _read(pipe: int, give_up_s: float, max_bytes: int) -> bytes | None:
    """Up to one byte more than the limit, or None where the end did not come in time."""
    output = bytearray()
    while len(output) <= max_bytes:
        left_s = give_up_s - monotonic()
        # in short turns: a signal that came just before a wait does not end it
        if not select.select([pipe], [], [], min(max(0.0, left_s), _TURN_S))[0]:
            if left_s <= 0:
                return None
            continue
        chunk = os.read(pipe, min(_CHUNK_BYTES, max_bytes + 1 - len(output)))
        if not chunk:
            break
        output += chunk
    return bytes(output)


def _end(process: subprocess.Popen[bytes]) -> None:
    # the group too: a program that ended may have left children that hold the pipe
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGKILL or not _group_lives(process.pid):
            return
    if process.returncode is None:
        # in the kernel and not to be killed; nobody waits for it any more
        process.returncode = -signal.SIGKILL


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
