"""One `gpudoctor check` as a child of an event loop: its output is bounded, and it ends with a report or a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpudoctor.process.async_child import AsyncChild
from gpudoctor.process.ending import ending_words
from gpudoctor.report.model import Report
from gpudoctor.text.output import printable


class CheckChild(AsyncChild):
    """Reads the report that a command writes as JSON to stdout; kills one that writes more than `most_bytes`.

    Of an error at most `message_length` characters are shown. Raise OSError if the command cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        most_bytes: int,
        *,
        is_message: Callable[[bytes], bool] = bool,
        message_length: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(command, env=env, is_message=is_message)
        self.output = bytearray()
        self.too_large = False
        self._most_bytes = most_bytes
        self._message_length = message_length

    async def to_its_end(self) -> None:
        """Read all output until the child has ended."""
        await self.hear(self._take_output)

    def drop(self) -> None:
        """Kill the process group and stop reading. The ranks end with it, when their pipes close."""
        self.cancel_timers()
        self.kill_now()
        self.stop_reading()

    @property
    def said(self) -> str:
        """Its last message, to be put behind a sentence."""
        message = printable(self.last_message())[: self._message_length]
        return f": {message}" if message else ""

    def outcome(self, who: str, reader: str | None = None) -> Report | str:
        """The report of a child that has ended, or one line with the reason why there is none.

        `who` is the child in that line, `reader` where its report cannot be read.
        """
        if self.too_large:
            return f"{who} wrote more than any report can be: it was ended"
        if not self.output.strip():
            return f"{who} gave no report ({ending_words(self.returncode)}){self.said}"
        try:
            return decoded(bytes(self.output))
        except ValueError as error:
            why = printable(str(error))[: self._message_length]
            return f"{reader or who} gave a report that cannot be read ({why}){self.said}"

    def _take_output(self, data: bytes) -> None:
        if len(self.output) + len(data) > self._most_bytes:
            self.too_large = True
            self.kill_now()
        else:
            self.output += data


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
