"""Text dumps, alone, in a directory or in an archive -> Node. Each is recognised by its content, never by its name."""

from __future__ import annotations

import codecs
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gpudoctor.facts.captures import SourceError, naming, printable
from gpudoctor.facts.captures.join import Dumps
from gpudoctor.facts.captures.lines import NO_LIMIT, TimeLimit, TooSlowError, chunks_of, lines_of
from gpudoctor.facts.captures.opened import GZIP, HEAD_BYTES, MAX_BYTES, head_text, open_plain, read_file, recognise
from gpudoctor.facts.captures.reader import TextReader
from gpudoctor.facts.captures.readers import READERS
from gpudoctor.facts.captures.transcript import Transcript
from gpudoctor.facts.model.node import Node

# `nvidia-bug-report.log`: one large text with the output of many commands.

# a line of underscores precedes each command's output
_RULER = b"\n" + b"_" * 20
# the journal of an earlier boot is no evidence about the current one
_EARLIER_BOOT = re.compile(r"journalctl\b.{0,80}(?:-b|--boot)[ =]?-[1-9]")
_SMI_KINDS = ("smi-xml", "smi-text")
MAX_FILES = 1000
MAX_TOTAL_BYTES = 512 * 1024 * 1024  # unpacked: twice the largest bug report that is read
_MAX_DEFLATE_RATIO = 1032  # 1032:1 according to zlib's technical details
MAX_NAMED = 10  # files listed by name that are not dumps
_PSEUDO = ("/proc", "/sys", "/dev")


def add_bug_report(dumps: Dumps, data: bytes, file: str) -> None:
    """Add every section that gpudoctor can read to `dumps`.

    Raise SourceError if there is none, or if the nvidia-smi section is broken; any other broken section is listed in
    the notes.
    """
    found = 0
    for section in _sections(data):
        head = head_text(section)
        if _EARLIER_BOOT.search(head[:500]):
            continue
        kind = recognise(head)
        if kind is None or kind == "bug-report":
            continue
        try:
            read = dumps.add(lines_of([section]), file, quiet=True)
        except TooSlowError:
            raise
        except SourceError as error:
            if kind in _SMI_KINDS:
                raise SourceError(f"nvidia-smi section: {error}") from None
            dumps.could_not_read(f"{file}: the {kind} section was not read: {error}")
            continue
        found += read
    if not found:
        raise SourceError("a bug report without any section that gpudoctor reads (cut off, or the driver not loaded)")


def _sections(data: bytes) -> Iterator[bytes]:
    """Yield the text between rulers, beginning with the head of the report."""
    start = 0
    while start < len(data):
        ruler = data.find(_RULER, start)
        if ruler < 0:
            ruler = len(data)
        if ruler > start:
            yield data[start : ruler + 1]  # including the line end at which the ruler match starts
        line_end = data.find(b"\n", ruler + 1)
        start = len(data) if line_end < 0 else line_end


def node_from_text(head: bytes, stream: BinaryIO, path: str, limit: TimeLimit = NO_LIMIT) -> Node | None:
    """The node from a text of any size whose first bytes, `head`, were already read; None if nothing is recognised."""
    name = printable(Path(path).name)
    dumps = Dumps(limit)
    found = dumps.add(lines_of(chunks_of(_by_lines(head), stream)), name)
    return dumps.node(name) if found else None


def node_from_bug_report(data: bytes, path: str, limit: TimeLimit = NO_LIMIT) -> Node:
    """The node from an unpacked nvidia-bug-report.log."""
    name = printable(Path(path).name)
    dumps = Dumps(limit)
    add_bug_report(dumps, data, name)
    return dumps.node(name)


def node_from_archive(files: Iterable[tuple[str, bytes]], path: str, limit: TimeLimit = NO_LIMIT) -> Node:
    """The node from the dumps in an archive, joined as in a directory."""
    dumps = Dumps(limit)
    passed_over: list[str] = []
    for name, data in files:
        shown = printable(Path(name).name)
        if not is_dump(data[:HEAD_BYTES]):
            passed_over.append(f"{shown}: not recognised as a dump")
        else:
            with naming(shown):
                _add(dumps, data, shown)
    return _node_of_many(dumps, passed_over, path, "archive")


def is_dump(head: bytes) -> bool:
    """Whether a text that starts with `head` contains anything that a reader recognises."""
    if recognise(head_text(head)) is not None:
        return True
    if b"\0" in head and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    found: list[TextReader] = []
    Transcript(READERS, lambda reader, _: found.append(reader)).read(lines_of([head]))
    return bool(found)


def _by_lines(head: bytes) -> bytes:
    """Replace the zero bytes in a /proc/PID/environ dump with line ends."""
    return head.replace(b"\0", b"\n") if b"\0" in head and recognise(head_text(head)) == "environment" else head


def node_from_directory(
    path: str, deadline_s: float | None = None, progress: Callable[[str], None] | None = None
) -> Node:
    """The dumps in a directory, joined. Files that are not dumps are listed in `Source.notes`.

    Subdirectories and hidden files are skipped. `progress` gets a line before each file. Raise SourceError, which names
    the file, for a broken dump or two that contradict each other, for a directory with no dump, more than 1000 files or
    more than 512 MiB, and for one that is not read within the deadline: half of a node is not judged.
    """
    limit = TimeLimit(deadline_s)
    real = os.path.realpath(path)
    if real.startswith(tuple(f"{root}/" for root in _PSEUDO)) or real in _PSEUDO:
        raise SourceError("files that the kernel makes up, no directory of dumps")
    with os.scandir(path) as entries:
        shown_ones = (entry for entry in entries if not entry.name.startswith("."))
        found = sorted(itertools.islice(shown_ones, MAX_FILES + 1), key=lambda entry: entry.name)
    if len(found) > MAX_FILES:
        raise SourceError(f"{len(found)} files or more; a directory of dumps has at most {MAX_FILES}")
    dumps = Dumps(limit)
    total_bytes = 0
    passed_over: list[str] = []
    for place, entry in enumerate(found):
        shown = printable(entry.name)
        if limit.is_over:
            raise SourceError(
                f"{place} of {len(found)} files of this directory were read within --deadline {deadline_s:g}: keep "
                "only dumps of one machine in it, or give more time"
            )
        if progress is not None:
            progress(f"reading the directory: file {place + 1} of {len(found)}, {shown}")
        with naming(entry.path):
            file = _file_in(entry.path)
        total_bytes += file.most_bytes
        if total_bytes > MAX_TOTAL_BYTES:
            raise SourceError(
                f"more than {MAX_TOTAL_BYTES >> 20} MiB unpacked; a directory of dumps has at most that: "
                "keep those of one machine in it"
            )
        if file.may_be_dump:
            dumps.could_not_read(f"{shown}: {file.note}")
        elif file.data is None:
            passed_over.append(f"{shown}: {file.note}")
        else:
            with naming(entry.path):
                _add(dumps, file.data, shown)
    return _node_of_many(dumps, passed_over, real, "directory")


def _node_of_many(dumps: Dumps, passed_over: list[str], path: str, container: str) -> Node:
    dumps.notes.extend(passed_over[:MAX_NAMED])
    if len(passed_over) > MAX_NAMED:
        dumps.notes.append(f"and {len(passed_over) - MAX_NAMED} more files that were not read")
    if not dumps.shows_gpus:
        raise SourceError(
            f"no dump in this {container} that shows GPUs or their driver "
            "(nvidia-smi [-q [-x]], topo -m, nvlink -s, lspci -vvv, dmesg ...)"
        )
    return dumps.node(printable(Path(path).name or path))


class _File(NamedTuple):
    """A file of a directory: its content if it is a dump, else a note that says why it was not read.

    `most_bytes`: how many were read at most. `may_be_dump`: it could not be read, so that nobody knows.
    """

    data: bytes | None = None
    note: str = ""
    most_bytes: int = 0
    may_be_dump: bool = False


def _file_in(path: str) -> _File:
    """Read a file; only its first 64 KiB if they do not look like a dump."""
    try:
        info = Path(path).stat()
        mode = info.st_mode
        if stat.S_ISDIR(mode):
            return _File(note="a directory, not looked into")
        if not stat.S_ISREG(mode):
            return _File(note="not a regular file")
        if info.st_size == 0:
            return _File(note="empty")
        with open_plain(path) as file:
            head = file.read(HEAD_BYTES) or b""
    except OSError as error:
        return _File(note=f"cannot be read: {error.strerror}", may_be_dump=True)
    if not head.strip():
        return _File(note="empty", most_bytes=len(head))
    packed = head.startswith(GZIP)
    if not packed and not is_dump(head):
        return _File(note="not recognised as a dump", most_bytes=len(head))
    try:
        data = read_file(path)
    except SourceError as error:
        if packed:  # the content of a broken .gz is unknown
            most_bytes = min(MAX_BYTES, _MAX_DEFLATE_RATIO * info.st_size)
            return _File(note=str(error), most_bytes=most_bytes, may_be_dump=True)
        raise
    if packed and not is_dump(data[:HEAD_BYTES]):
        return _File(note="not recognised as a dump", most_bytes=len(data))
    return _File(data, most_bytes=len(data))


def _add(dumps: Dumps, data: bytes, name: str) -> None:
    if recognise(head_text(data)) == "bug-report":
        add_bug_report(dumps, data, name)
    elif not dumps.add(lines_of([_by_lines(data)]), name):
        dumps.could_not_read(f"{name}: it begins like a dump, but nothing in it was recognised")
