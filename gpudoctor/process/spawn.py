"""Starts a program as a child of this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from gpudoctor.process.ending import RunningProcess

PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL
Stream = int | IO[bytes] | None


class Child(RunningProcess):
    """A program that was started without a shell. Raise OSError if it cannot be started.

    It leads a new session and process group, so that Ctrl-C in the terminal reaches only this process, and
    its group can be ended as one; with `new_session=False` it stays in ours. A stream that is None is inherited.
    It begins in `cwd`, by default in our working directory, or in / if that was removed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: Stream = DEVNULL,
        stdout: Stream = DEVNULL,
        stderr: Stream = DEVNULL,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        pass_fds: Sequence[int] = (),
        new_session: bool = True,
    ) -> None:
        self._process = subprocess.Popen(
            list(argv),
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=None if env is None else dict(env),
            cwd=cwd or _working_directory(),
            pass_fds=tuple(pass_fds),
            start_new_session=new_session,
        )
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def stdin(self) -> int:
        """The descriptor of the pipe to its standard input."""
        return _descriptor(self._process.stdin)

    @property
    def stdout(self) -> int:
        """The descriptor of the pipe from its standard output."""
        return _descriptor(self._process.stdout)

    @property
    def stderr(self) -> int:
        """The descriptor of the pipe from its standard error."""
        return _descriptor(self._process.stderr)

    def poll(self) -> int | None:
        return self._process.poll()

    def ends_within(self, limit_s: float) -> int | None:
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def wait(self) -> int:
        """Wait for the exit status without a limit; an exception meanwhile kills the process."""
        try:
            return self._process.wait()
        except BaseException:
            self._process.kill()
            raise

    def abandon(self) -> None:
        if self._process.returncode is None:
            self._process.returncode = -signal.SIGKILL

    def close_stdin(self) -> None:
        """Close its standard input."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        """Close its pipes."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _working_directory() -> str | None:
    """The directory to start in; None to inherit ours."""
    try:
        os.getcwd()  # noqa: PTH109 - a system call that does not touch the file system
    except FileNotFoundError:
        return "/"  # in a removed directory torch with MKL ends the process when it is imported
    return None


def _descriptor(stream: IO[bytes] | None) -> int:
    assert stream is not None
    return stream.fileno()
