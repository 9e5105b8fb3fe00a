"""Reads every source into events, flight recorder dumps and stacks, and lists what could not be read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from gpudoctor.diagnose.decoding import (
    TruncatedError,
    UnreadableError,
    head_of,
    is_plain,
    looks_binary,
    read_whole,
    text_blocks,
)
from gpudoctor.diagnose.diagnosis import Unread
from gpudoctor.diagnose.events import Event, EventLog
from gpudoctor.diagnose.flight_recorder import Dump, DumpError, looks_like_dump, rank_in_name, read_dump
from gpudoctor.diagnose.patterns.job_facts import OF_A_KERNEL, is_of_a_job
from gpudoctor.diagnose.places import LogFile
from gpudoctor.diagnose.reader import LogReader
from gpudoctor.diagnose.scan import Hit, all_lines, interesting_lines
from gpudoctor.diagnose.sources import LogSource
from gpudoctor.diagnose.stacks import Stack, looks_like_stacks, read_ras, read_stacks
from gpudoctor.diagnose.tracebacks import looks_like_error_file, read_error_file
from gpudoctor.process.bounded import ChildLimits, ChildRefusedError, bounded, bounded_results
from gpudoctor.statements.prefixes import LABEL_LINES, labels_of

T = TypeVar("T")
_CHUNK_BYTES = 8 << 20
# at either end of a file every line is read, up to so many: ranks and hosts come first, exits last
_WHOLE_BYTES, _WHOLE_LINES = 256 << 10, 10_000
_SAMPLE_BYTES = 2048
_SAMPLE_LINES = 4
_SPLIT_FROM_BYTES = 96 << 20
_MOST_STACK_BYTES = 64 << 20
_OF_A_PART = ChildLimits(seconds=300.0)
_HEADING = re.compile(r"#{1,6} [A-Za-z`]|#{2,6} \d|(?:=|-){4,}$|<h[1-6][ >]")
_OF_A_DOCUMENT = re.compile(
    r"^#{1,6} |^(?:=|-){4,}$|^\|.*\|$|^[*-] |^\d+\. |\]\([^)]{1,300}\)|`[^`]{1,80}`|\*\*[^*]{1,80}\*\*|</?\w{1,12}[ >/]"
)
_QUOTES = re.compile(r"[*-] .*`[^`]{1,200}`")  # an item of a list with a job's words in back-ticks
_SHARE_OF_MARKS = 0.3
_ESCAPE = re.compile(rb"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]")
_SIGNS_OF_A_JOB = 3  # steps, ranks, processes: ordinary prose may mention one by chance


class GatheredLogs(msgspec.Struct):
    """What was read from all sources."""

    log: EventLog = msgspec.field(default_factory=EventLog)
    files: list[LogFile] = []
    dumps: list[Dump] = []
    stacks: list[Stack] = []
    unread: list[Unread] = []

    def knows_a_line(self) -> bool:
        """Whether anything in it is known to come from a job; if not, finding nothing proves nothing."""
        return bool(self.dumps or self.stacks) or any(file.like_a_job for file in self.files)


def gather(sources: Iterable[LogSource]) -> GatheredLogs:
    """Read every source; one that cannot be read becomes an entry of `unread`, and the rest is used."""
    found = GatheredLogs()
    for source in sources:
        number = len(found.files)
        found.files.append(LogFile(source.name))
        try:
            _read(source, number, found)
        except (UnreadableError, ChildRefusedError) as error:
            found.files[number].text = False
            found.unread.append(Unread(source.name, str(error)))
    return found


def _read(source: LogSource, number: int, found: GatheredLogs) -> None:
    head = head_of(source)
    file = found.files[number]
    binary = looks_binary(head) or head[:1] == b"\x80"
    if looks_like_dump(head) and (binary or rank_in_name(source.name) is not None):
        file.text = False
        found.dumps.append(_in_child(lambda: read_dump(read_whole(source), source.name, number), Dump))
        return
    if looks_like_error_file(head, source.name):
        file.text = False
        event = _in_child(lambda: read_error_file(read_whole(source, 16 << 20), number), Event | None)
        if event is not None:
            found.log.add(event)
            file.like_a_job = True
        return
    if looks_like_stacks(head):
        stacks, file.lines = _in_child(lambda: _stacks_of(source, number), tuple[list[Stack], int])
        found.stacks += stacks
        file.like_a_job, file.text = True, False
        return
    _read_text(source, number, found)


def _stacks_of(source: LogSource, number: int) -> tuple[list[Stack], int]:
    lines = read_whole(source, _MOST_STACK_BYTES).decode("utf-8", "replace").split("\n")
    return read_stacks(lines, number), len(lines)


def _in_child(read: Callable[[], T], shape: object) -> T:
    """What `read` returns, of this shape, from a child with limits. Raises UnreadableError, ChildRefusedError."""

    def work() -> bytes:
        try:
            return b"+" + msgspec.msgpack.encode(read())
        except (UnreadableError, DumpError) as error:
            return b"-" + str(error).encode("utf-8", "replace")

    answer = bounded(work)
    if answer.startswith(b"-"):
        raise UnreadableError(answer[1:].decode("utf-8", "replace"))
    return msgspec.msgpack.decode(answer[1:], type=shape)  # type: ignore[no-any-return]


def _read_text(source: LogSource, number: int, found: GatheredLogs) -> None:
    file = found.files[number]
    hits = _hits(source, file, found.unread)
    first = list(islice(hits, LABEL_LINES))
    shown = [_text(line) for _, line in first]
    file.kernel_log = _mostly(shown, OF_A_KERNEL)
    if is_document(shown):
        file.lines, file.text = len(shown), False
        return
    reader = LogReader(number, labels_of(shown))
    ras: list[str] = []
    last = signs = 0
    for place, line in chain(first, hits):
        last = place + 1
        text = _text(line)
        if len(ras) < 400:
            ras.append(text)
        if signs < _SIGNS_OF_A_JOB and is_of_a_job(text):
            signs = _SIGNS_OF_A_JOB
        for event in reader.read(place + 1, text):
            found.log.add(event)
            signs += 1 if event.what not in ("member", "comm", "process", "exit") else _SIGNS_OF_A_JOB
            signs -= event.what in ("world", "several_nodes", "done") or event.role == "said"
    found.log.extend(reader.end())
    found.log.extend(read_ras(ras, number))
    file.lines = last
    file.like_a_job = signs >= _SIGNS_OF_A_JOB


def _mostly(lines: list[str], pattern: re.Pattern[str]) -> bool:
    filled = [line for line in lines if line.strip()]
    return bool(filled) and 2 * sum(pattern.search(line) is not None for line in filled) > len(filled)


def is_document(lines: list[str]) -> bool:
    """Whether the lines are a text with headings that people wrote, which may write about errors; no job prints one."""
    plain = [line for line in lines if line.strip() and not line.startswith(("    ", "```"))]
    headings = sum(_HEADING.match(line) is not None for line in plain)
    marks = sum(_OF_A_DOCUMENT.search(line) is not None for line in plain)
    own = [line for line in plain[:20] if _QUOTES.match(line) is None]
    return headings >= 2 and marks >= _SHARE_OF_MARKS * len(plain) and not any(map(is_of_a_job, own))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")


def _hits(source: LogSource, file: LogFile, unread: list[Unread]) -> Iterator[Hit]:
    """The lines to parse as (number from 0, line); several processes read a large plain file.

    Compressed data that ends too early becomes an entry of `unread`, and what comes before is used. At the end
    `file` knows whether its last line is whole.
    """
    if source.path is not None and source.bytes >= _SPLIT_FROM_BYTES and is_plain(source) and (os.cpu_count() or 1) > 1:
        try:
            yield from _hits_of_parts(source.path, source.bytes)
            file.cut = _is_cut(_end_of(source.path))
        except OSError as error:  # gone since it was found
            raise UnreadableError(error.strerror or str(error)) from None
        return
    lines = 0
    done = 0
    held: bytes | None = None
    try:
        for block in text_blocks(source):
            if held is not None:
                yield from _behind(lines, _of_block(held, whole=done < _WHOLE_BYTES))
                lines += held.count(b"\n")
                done += len(held)
            held = block
    except TruncatedError as error:
        unread.append(Unread(source.name, str(error)))
    if held is not None:
        file.cut = _is_cut(held)
        yield from _behind(lines, _of_block(held, whole=done < _WHOLE_BYTES, tail=True))


def _is_cut(text: bytes) -> bool:
    """Whether the last line has no end. A bar, drawn again and again, has none, and begins at a carriage return.

    Escapes, and the zeros of space that was taken and never written, are no line.
    """
    last = _ESCAPE.sub(b"", text.rpartition(b"\n")[2].translate(None, b"\0"))
    return bool(last.strip()) and b"\r" not in last


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-min(path.stat().st_size, _SAMPLE_BYTES), os.SEEK_END)
        return file.read(_SAMPLE_BYTES)


def _of_block(block: bytes, *, whole: bool, tail: bool = False) -> Iterator[Hit]:
    """The first lines of a `whole` file and the last ones at its `tail`, and between them those of interest."""
    if len(block) <= 2 * _WHOLE_BYTES and (whole or tail) and block.count(b"\n") <= 2 * _WHOLE_LINES:
        yield from all_lines(block)
        return
    begin = _first_lines(block) if whole else 0
    end = max(_last_lines(block) if tail else len(block), begin)
    middle = block[begin:end]
    hits = interesting_lines(middle)
    if not tail and middle:  # a sample that shows how far the job had come
        sample = middle[-_SAMPLE_BYTES:].split(b"\n")[1:-1][-_SAMPLE_LINES:]
        numbered = enumerate(sample, middle.count(b"\n") - len(sample))
        hits += [hit for hit in numbered if not hits or hit[0] > hits[-1][0]]
    yield from all_lines(block[:begin])
    yield from _behind(block.count(b"\n", 0, begin), hits)
    yield from _behind(block.count(b"\n", 0, end), all_lines(block[end:]))


def _behind(lines: int, hits: Iterable[Hit]) -> Iterator[Hit]:
    """The hits of a part that begins behind so many lines."""
    return ((lines + number, line) for number, line in hits)


def _first_lines(block: bytes) -> int:
    """Where the lines end that are read one by one at the beginning of a file."""
    head = block[:_WHOLE_BYTES]
    if head.count(b"\n") < _WHOLE_LINES:
        return block.find(b"\n", _WHOLE_BYTES) + 1
    return len(head) - len(head.split(b"\n", _WHOLE_LINES)[-1])


def _last_lines(block: bytes) -> int:
    """Where the lines begin that are read one by one at the end of a file."""
    tail = block[-_WHOLE_BYTES:]
    if tail.count(b"\n") <= _WHOLE_LINES:
        return block.rfind(b"\n", 0, -_WHOLE_BYTES) + 1
    return len(block) - len(tail) + len(tail.rsplit(b"\n", _WHOLE_LINES + 1)[0]) + 1


def _hits_of_parts(path: Path, size: int) -> Iterator[Hit]:
    edges = [*range(0, size, _CHUNK_BYTES), size]
    parts = [(str(path), begin, end, size) for begin, end in pairwise(edges)]
    lines = 0
    works = (partial(_packed_hits, *part) for part in parts)
    for packed in bounded_results(works, workers=min(os.cpu_count() or 1, 4), limits=_OF_A_PART):
        hits, count = msgspec.msgpack.decode(packed, type=tuple[list[Hit], int])
        yield from _behind(lines, hits)
        lines += count


def _packed_hits(path: str, begin: int, end: int, size: int) -> bytes:
    return msgspec.msgpack.encode(hits_of_part(path, begin, end, size))


def hits_of_part(path: str, begin: int, end: int, size: int) -> tuple[list[Hit], int]:
    """The lines of interest that begin in this part of a file, and the number of lines that begin there."""
    with Path(path).open("rb") as file:
        file.seek(max(begin - 1, 0))
        if begin and file.read(1) != b"\n":
            file.readline(_CHUNK_BYTES)
        start = file.tell()
        if start >= end:
            return [], 0
        block = file.read(end - start)
        if not block.endswith(b"\n"):
            block += file.readline(1 << 20)
    hits = _of_block(block, whole=begin == 0, tail=end == size)
    return [(number, line[: 1 << 16]) for number, line in hits], block.count(b"\n")
