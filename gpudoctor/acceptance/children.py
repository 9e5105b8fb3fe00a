"""Starts the processes of the acceptance run, hears them, and ends them; each carries the run's mark."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.process.ending import ending_words

MARK = "GPUDOCTOR_ACCEPTANCE"
_TURN_S = 0.2
_OBEY_S = 5.0  # a check that is told to end still writes its report and ends its ranks
_MAX_BYTES = 64 << 20
_KEPT_LINES = 40

OnLine = Callable[[str], "signal.Signals | None"]


class Finished(msgspec.Struct, frozen=True):
    """A child that ended, or was ended because it was late. `code` as Popen's; `said` its last lines on stderr."""

    code: int | None
    stdout: bytes
    said: tuple[str, ...]
    seconds: float
    late: bool

    @property
    def words(self) -> str:
        """How it ended, with the last thing it said."""
        how = f"did not end in {self.seconds:.0f} s" if self.late else ending_words(self.code)
        return f"{how}: {self.said[-1][:200]}" if self.said else how


def environment(mark: str, folder: Path) -> dict[str, str]:
    """What children of the run get: its mark, and a TMPDIR of their own."""
    return {**os.environ, MARK: mark, "TMPDIR": str(folder)}


def run_child(
    argv: Sequence[str], *, deadline_s: float, environ: Mapping[str, str], cwd: Path, on_line: OnLine | None = None
) -> Finished:
    """Run a program until its end, or end its process group: at the deadline, and on any exception. Raise OSError.

    `on_line` hears each line of stderr as it comes; a signal that it gives back is sent to the program.
    """
    started = monotonic()
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environ),
        cwd=cwd,
        start_new_session=True,
    )
    heard = _Heard(process, on_line)
    try:
        late = not heard.to_the_end(started + deadline_s)
        if late:
            _end(process)
        code = None if late else process.returncode
        return Finished(code, bytes(heard.stdout), tuple(heard.lines), monotonic() - started, late)
    finally:
        _end(process)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


class _Heard:
    """What a child has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], on_line: OnLine | None) -> None:
        self.stdout = bytearray()
        self.lines: list[str] = []
        self._process = process
        self._on_line = on_line
        self._rest = b""

    def to_the_end(self, give_up_s: float) -> bool:
        """Listen until the program has ended and nothing more comes; False at the deadline."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        out, err = self._process.stdout.fileno(), self._process.stderr.fileno()
        open_still = {out, err}
        while open_still:
            ready = select.select(list(open_still), [], [], _TURN_S)[0]
            for number in ready:
                data = os.read(number, 1 << 16)
                if not data:
                    open_still.discard(number)
                elif number == out:
                    self.stdout += data[: _MAX_BYTES - len(self.stdout)]
                else:
                    self._take_lines(data)
            if not ready and self._process.poll() is not None:
                return True  # whoever still holds the pipe is not the program
            if monotonic() > give_up_s:
                return False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(_TURN_S, give_up_s - monotonic()))
        return self._process.returncode is not None

    def _take_lines(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_MAX_BYTES]
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            self.lines = [*self.lines[1 - _KEPT_LINES :], line]
            number = self._on_line(line) if self._on_line is not None else None
            if number is not None and self._process.poll() is None:
                self._process.send_signal(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group of a process that still runs: SIGTERM, and SIGKILL for what does not obey.

    What one that has ended left behind is for the step `left-behind` to see.
    """
    if process.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_OBEY_S)
            return


@contextmanager
def beside(
    argv: Sequence[str], *, environ: Mapping[str, str], cwd: Path, deadline_s: float, may_end_with: int | None = None
) -> Iterator[str]:
    """Have a program run while the block runs; it gives its first line of stdout, "" where none came in time.

    It is told to end by the end of its stdin. Raise OSError where it cannot be started, and UserError where
    it did not begin, or has ended by itself, so that a part of the block ran without it. With the exit code
    `may_end_with` it may end before its first line.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(environ),
        cwd=cwd,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = _first_line(process.stdout.fileno(), monotonic() + deadline_s)
        yield said
        if not said:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TURN_S)  # its output has ended, and so it does
        code = process.poll()
        if code is None and not said:
            raise UserError(f"what was to run beside it had not begun after {deadline_s:.0f} s")
        if code is not None and (said or code != may_end_with):
            raise UserError(f"what was to run beside it ended too early: {ending_words(process.returncode)}")
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_OBEY_S)
        _end(process)
        process.stdout.close()


def _first_line(pipe: int, give_up_s: float) -> str:
    line = b""
    while not line.endswith(b"\n") and monotonic() < give_up_s:
        if select.select([pipe], [], [], _TURN_S)[0]:
            data = os.read(pipe, 4096)
            if not data:
                break
            line += data
    return line.decode("utf-8", "replace").strip() if line.endswith(b"\n") else ""


def marked_processes(mark: str) -> dict[int, str]:
    """The processes of this machine that carry the run's mark, by pid, with their names."""
    found: dict[int, str] = {}
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return found
