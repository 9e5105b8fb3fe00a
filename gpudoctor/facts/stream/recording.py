"""Random access to recordings that `gpudoctor watch > FILE` wrote.

A day of 8 GPUs is about 150 MB, so only the offset and the time of each line are kept in memory.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import BinaryIO, TypeVar

import msgspec

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.facts_file import checked
from gpudoctor.facts.captures.opened import GZIP, HEAD_BYTES, open_plain
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.stream.messages import LineHead, Opening, Tick
from gpudoctor.process.temporary_folder import temporary_file

T = TypeVar("T")

MAX_LINE_BYTES = 16 << 20
MAX_FILE_BYTES = 4 << 30
# its quotes would be escaped inside a string, so no fact can match it
_LINE_OF_STREAM = re.compile(rb'"kind"\s*:\s*"(?:opening|tick)"')
_opening = msgspec.json.Decoder(Opening).decode
_tick = msgspec.json.Decoder(Tick).decode
_line_head = msgspec.json.Decoder(LineHead).decode


class Recording:
    """A recorded stream, open until `close`. Its ticks are numbered from 0 to `count` - 1.

    `openings` contains the number of the tick after each opening. `begin_s` and `end_s` are the Unix times of the first
    and the last tick, or of the opening if there are no ticks. Times never decrease: if the clock was set back, the
    last time is repeated.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        """Index the open file. Raise SourceError, one line with the file and the line number."""
        self._file = file
        self._name = name
        self._offsets = array("Q")
        self._lines = array("L")
        self._times = array("d")
        self._openings: list[tuple[int, int, int]] = []  # the number of the next tick; offset and number of the line
        offset = 0
        for number, line in enumerate(_lines(file, name), 1):
            seen = self._seen(line, number)
            if seen is not None and seen.kind == "opening":
                self._openings.append((len(self._times), offset, number))
            elif seen is not None:
                if not self._openings:
                    raise _no_opening(name, number)
                last_s = self._times[-1] if self._times else 0.0
                self._offsets.append(offset)
                self._lines.append(number)
                self._times.append(max(seen.at_s, last_s))
            offset += len(line)
        if not self._openings:
            raise SourceError(f"{name}: line 1: cut off before the end of the opening")
        self.openings = tuple(number for number, _, _ in self._openings)
        self.count = len(self._times)
        opened_s = self.opening_at(0).at_s
        self.begin_s: float = self._times[0] if self.count else opened_s
        self.end_s: float = self._times[-1] if self.count else opened_s

    def _seen(self, line: bytes, number: int) -> LineHead | None:
        """Index one line; None for a blank line, and for an incomplete last line."""
        if not line.strip():
            return None
        try:
            # without the line end, msgspec reports a truncated line as such
            return _decoded(_line_head, line.rstrip(), self._name, number)
        except SourceError:
            if line.endswith(b"\n"):
                raise
            return None

    def tick(self, number: int) -> Tick:
        """The tick of this number. Raise IndexError if there is none, SourceError if it is invalid."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        return _decoded(_tick, self._line(self._offsets[number]), self._name, self._lines[number])

    def time_of(self, number: int) -> float:
        """Unix time of a tick, without reading it. Raise IndexError if there is none."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        return self._times[number]

    def number_at(self, at_s: float) -> int:
        """The number of the last tick at or before this Unix time; 0 before the first one and if there are none."""
        return max(0, bisect_right(self._times, at_s) - 1)

    def opening_at(self, number: int) -> Opening:
        """The last opening before this tick, whose facts apply to it. Raise SourceError if it is invalid."""
        _, offset, line = self._openings[max(0, bisect_right(self.openings, number) - 1)]
        return _checked_opening(self._line(offset), self._name, line)

    def _line(self, offset: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.readline(MAX_LINE_BYTES + 1).rstrip()
        except OSError as error:
            raise _unreadable(self._name, error) from None

    def close(self) -> None:
        self._file.close()


def is_stream(head: bytes) -> bool:
    """Whether a file that starts with these unpacked bytes is a recorded stream."""
    return head.lstrip()[:1] == b"{" and _LINE_OF_STREAM.search(head) is not None


def is_stream_file(path: str) -> bool:
    """Whether this regular file, gzipped or not, is a recorded stream; False if it cannot be read."""
    try:
        return _is_regular(path) and is_stream(_head(path))
    except OSError:
        return False


def read_stream(path: str) -> Recording:
    """Open the recorded stream in a file, gzipped or not. Raise SourceError with the file and the line number."""
    try:
        with ExitStack() as retained:
            file = _opened(path)
            retained.callback(file.close)
            recording = Recording(file, path)
            retained.pop_all()
            return recording
    except OSError as error:
        raise _unreadable(path, error) from None


def node_of_stream(data: bytes, name: str) -> Node:
    """The facts in the first line of a stream. Raise SourceError."""
    return _checked_opening(data.lstrip().partition(b"\n")[0], name, 1).node


def node_of_file(path: str) -> Node:
    """The facts in the first line of a recorded stream; the rest is not read. Raise SourceError."""
    try:
        return node_of_stream(_head(path, MAX_LINE_BYTES + 1), path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _checked_opening(line: bytes, name: str, number: int) -> Opening:
    if len(line) > MAX_LINE_BYTES:
        raise SourceError(f"{name}: line {number}: longer than {MAX_LINE_BYTES >> 20} MiB")
    if _decoded(_line_head, line, name, number).kind != "opening":
        raise _no_opening(name, number)
    opening = _decoded(_opening, line, name, number)
    try:
        return msgspec.structs.replace(opening, node=checked(opening.node))
    except SourceError as error:
        raise SourceError(f"{name}: line {number}: {error}") from None


def _unreadable(name: str, error: OSError) -> SourceError:
    return SourceError(f"{name}: cannot be read: {error.strerror or error}")


def _no_opening(name: str, number: int) -> SourceError:
    return SourceError(
        f"{name}: line {number}: a stream of gpudoctor watch starts with its opening: keep its first line"
    )


def _decoded(decode: Callable[[bytes], T], line: bytes, name: str, number: int) -> T:
    try:
        return decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reported = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
        if isinstance(error, UnicodeDecodeError):
            reported = f"not UTF-8 at byte {error.start}"
        elif isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            reported = f"cut off: {reported}" if "truncated" in reported else f"broken JSON: {reported}"
        raise SourceError(f"{name}: line {number}: {reported}") from None


def _is_regular(path: str) -> bool:
    return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - a path as the user typed it


def _head(path: str, size: int = HEAD_BYTES) -> bytes:
    """The first line, unpacked, or its first `size` bytes. Raise OSError."""
    with open_plain(path) as file:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        if not packed:
            return file.readline(size)
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                return unpacked.readline(size)
        except (EOFError, zlib.error) as error:
            raise OSError(f"broken .gz: {error}") from None


def _opened(path: str) -> BinaryIO:
    """The open file; a gzipped one is unpacked into an unnamed temporary file. Raise OSError, SourceError."""
    if not _is_regular(path):
        raise SourceError(f"{path}: not a regular file")
    file = open_plain(path)
    if file.read(len(GZIP)) != GZIP:
        file.seek(0)
        return file
    with file:
        file.seek(0)
        return _unpacked(file, path)


def _unpacked(file: BinaryIO, path: str) -> BinaryIO:
    """Unpack a .gz; one that is incomplete (still being written, or cut off) as far as it goes."""
    whole = temporary_file()
    size = 0
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            while part := packed.read1(1 << 20):
                size += len(part)
                if size > MAX_FILE_BYTES:
                    raise SourceError(f"{path}: unpacked larger than {MAX_FILE_BYTES >> 30} GiB")
                whole.write(part)
    except EOFError:
        pass  # handled like an incomplete last line
    except (gzip.BadGzipFile, zlib.error) as error:
        whole.close()
        raise SourceError(f"{path}: broken .gz: {error}") from None
    except BaseException:
        whole.close()
        raise
    whole.seek(0)
    return whole


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    size = number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        size += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise SourceError(f"{name}: line {number}: longer than {MAX_LINE_BYTES >> 20} MiB")
        if size > MAX_FILE_BYTES:
            raise SourceError(f"{name}: larger than {MAX_FILE_BYTES >> 30} GiB")
        yield line
