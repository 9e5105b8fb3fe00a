"""Runs `gpudoctor check --level quick` in a separate process, reads its report, and makes sure the process ends."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence

import msgspec

from gpudoctor.exits import printable
from gpudoctor.process.ending import ending_words
from gpudoctor.process.pipes import anonymous_file, content
from gpudoctor.process.spawn import Child
from gpudoctor.report.model import Report

TOKEN_VARIABLE = "GPUDOCTOR_AGENT_TOKEN"
# a quick report of 16 GPUs is below 1 MiB
OUTPUT_BYTES_MAX = 16 << 20
WORDS_MAX = 300


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without the variables that are for the agent only."""
    return {name: value for name, value in environ.items() if name not in (TOKEN_VARIABLE, "NOTIFY_SOCKET")}


class QuickRun:
    """The process of one check, in its own session. Its output goes to memory files, so that no pipe has to be read.

    The caller polls `over()`; `end_softly()` and `end_hard()` never wait. Raise OSError if the process cannot be
    started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._files: list[int] = []
        try:
            for _ in ("output", "error"):
                self._files.append(anonymous_file())
            self._out, self._err = self._files
            self._process = Child(command, stdout=self._out, stderr=self._err, env=environment(environ))
        except BaseException:
            self._close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def over(self) -> bool:
        """Whether the process has ended. Kills a process that has written too much."""
        if self._process.poll() is not None:
            return True
        if max(os.fstat(self._out).st_size, os.fstat(self._err).st_size) > OUTPUT_BYTES_MAX:
            self.end_hard()
        return False

    def end_softly(self) -> None:
        """Send SIGTERM: the check stops and reports what it has found so far."""
        self._process.send(signal.SIGTERM, group=True)

    def end_hard(self) -> None:
        """Kill the process group."""
        self._process.send(signal.SIGKILL, group=True)

    def outcome(self) -> Report | str:
        """The report of a run that is over, or why there is none. Call it once: it closes the output."""
        status = self._process.returncode
        try:
            output = content(self._out, OUTPUT_BYTES_MAX + 1)
            words = _last_line(content(self._err, OUTPUT_BYTES_MAX + 1))
        finally:
            self._close()
        said = f": {words}" if words else ""
        if len(output) > OUTPUT_BYTES_MAX:
            return "the check wrote more than any report can be: it was ended"
        if not output.strip():
            return f"the check gave no report ({ending_words(status)}){said}"
        try:
            report = decoded(output)
        except ValueError as error:
            return f"the check gave a report that cannot be read ({printable(str(error))[:WORDS_MAX]}){said}"
        if report.exit_code != status:
            how = ending_words(status)
            return f"the check ended otherwise than its report says ({how}, not {report.exit_code}){said}"
        return report

    def abandon(self) -> None:
        """Stop waiting for a process that is stuck in the kernel; `end_leftovers` reaps it once it can die."""
        self._process.abandon()
        self._close()

    def _close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def decoded(data: bytes) -> Report:
    """A report from JSON; each lone surrogate (from a name that is not UTF-8) becomes `?`. Raise ValueError."""
    try:
        return msgspec.json.decode(data, type=Report)
    except msgspec.DecodeError:
        if not re.search(rb"\\u[dD][89a-fA-F]", data):
            raise
    try:
        clean = json.dumps(json.loads(data), ensure_ascii=False).encode("utf-8", "replace")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return msgspec.json.decode(clean, type=Report)


def _last_line(words: bytes) -> str:
    line = words.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return printable(line)[:WORDS_MAX]
