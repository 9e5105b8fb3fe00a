"""Text dumps, alone, in a directory or in an archive -> Node. Each is recognised by its content, never by its name."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gpudoctor.facts.captures import SourceError, naming, printable
from gpudoctor.facts.captures.join import Dumps
from gpudoctor.facts.captures.kernel_logs import is_kernel_line
from gpudoctor.facts.captures.lines import NO_LIMIT, TimeLimit, chunks_of, is_binary, lines_of
from gpudoctor.facts.captures.opened import GZIP, HEAD_BYTES, MAX_BYTES, is_bug_report, open_plain, read_file
from gpudoctor.facts.captures.reader import TextReader
from gpudoctor.facts.captures.readers import READERS, REPORT_READERS
from gpudoctor.facts.captures.transcript import Transcript
from gpudoctor.facts.model.node import Node

MAX_FILES = 1000
MAX_TOTAL_BYTES = 512 * 1024 * 1024  # unpacked: twice the largest bug report that is read
_MAX_DEFLATE_RATIO = 1032  # 1032:1 according to zlib's technical details
MAX_NAMED = 10  # files listed by name that are not dumps
_PSEUDO = ("/proc", "/sys", "/dev")
_SMI_XML = re.compile(rb"<(?:!DOCTYPE )?nvidia_smi_log[\s>]")  # in a longer line, or behind a prompt

# nvidia-bug-report.log: before each command's output, a line of underscores
_RULER = "_" * 20
_HEAD_LINES = 200  # of a section show what it is
# the journal of an earlier boot is no evidence about the current one; units are boards of long ago
_NOT_READ = re.compile(r"journalctl\b.{0,80}(?:-b|--boot)[ =]?-[1-9]|Attached Units")


def _sections_read(lines: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """The lines of a bug report, empty where nothing of their section is read.

    The output of most of its commands is about something else, and logs of other programs quote old kernel messages.
    """
    head: list[tuple[str, bool]] = []
    shown: bool | None = None  # of this section; None while its head is collected
    for line in itertools.chain(lines, [(_RULER, True)]):
        if line[0].startswith(_RULER) or (shown is None and len(head) >= _HEAD_LINES):
            shown = _is_read([text for text, _ in head]) if shown is None else shown
            yield from head if shown else (("", True) for _ in head)
            head = []
        if line[0].startswith(_RULER):
            shown = None
        if shown is None:
            head.append(line)
        else:
            yield line if shown else ("", True)


def _is_read(section: list[str]) -> bool:
    """Whether a section that begins so is of this boot, and mostly of the kernel, or of a reader of bug reports."""
    if any(map(_NOT_READ.search, section[:10])):
        return False
    filled = [line for line in section if line.strip()][1:]
    mostly_kernel = sum(map(is_kernel_line, filled)) * 2 > len(filled)
    return mostly_kernel or any(reader.begins(line) for line in filled for reader in REPORT_READERS)


def _read_into(dumps: Dumps, chunks: Iterable[bytes], name: str, head: bytes) -> bool:
    """Read one text, of which `head` is the beginning; whether anything was recognised in it."""
    if not is_bug_report(head):
        return dumps.add(lines_of(chunks), name) > 0
    if not dumps.add(_sections_read(lines_of(chunks)), name, quiet=True):
        raise SourceError("a bug report without any section that gpudoctor reads (cut off, or the driver not loaded)")
    return True


def node_from_text(head: bytes, stream: BinaryIO, path: str, limit: TimeLimit = NO_LIMIT) -> Node | None:
    """The node from a text of any size whose first bytes, `head`, were already read; None if nothing is recognised."""
    name = printable(Path(path).name)
    dumps = Dumps(limit)
    return dumps.node(name) if _read_into(dumps, chunks_of(head, stream), name, head) else None


def node_of_words(quoted: str, path: str) -> Node:
    """A node of which nothing is known but what a text says of it, which nothing understands."""
    dumps = Dumps()
    dumps.not_understood(quoted)
    return dumps.node(printable(Path(path).name))


def is_dump(head: bytes) -> bool:
    """Whether a text that starts with `head` contains anything that a reader recognises."""
    if is_bug_report(head) or _SMI_XML.search(head):
        return True
    if is_binary(head):
        return False
    found: list[TextReader] = []
    transcript = Transcript(READERS, lambda reader, _: found.append(reader))
    transcript.read(lines_of([head]))
    return bool(found) or transcript.in_string is not None


class _File(NamedTuple):
    """A file of a directory or archive: its content if it is a dump, else a note that says why it was not read.

    `path` names it in errors. `most_bytes`: how many were read at most. `may_be_dump`: it could not be read, so that
    nobody knows.
    """

    path: str
    data: bytes | None = None
    note: str = ""
    most_bytes: int = 0
    may_be_dump: bool = False


def node_from_archive(files: Iterable[tuple[str, bytes]], path: str, limit: TimeLimit = NO_LIMIT) -> Node:
    """The node from the dumps in an archive, joined as in a directory."""
    named = ((printable(Path(name).name), data) for name, data in files)
    return _node_of_many((_checked(name, data) for name, data in named), path, "archive", limit)


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

    def files() -> Iterator[_File]:
        for place, entry in enumerate(found):
            if limit.is_over:
                raise SourceError(
                    f"{place} of {len(found)} files of this directory were read within --deadline {deadline_s:g}: "
                    "keep only dumps of one machine in it, or give more time"
                )
            if progress is not None:
                progress(f"reading the directory: file {place + 1} of {len(found)}, {printable(entry.name)}")
            with naming(entry.path):
                file = _file_in(entry.path)
            yield file

    return _node_of_many(files(), real, "directory", limit)


def _node_of_many(files: Iterable[_File], path: str, container: str, limit: TimeLimit) -> Node:
    dumps = Dumps(limit)
    passed_over: list[str] = []
    total_bytes = 0
    for file in files:
        shown = printable(Path(file.path).name)
        total_bytes += file.most_bytes
        if total_bytes > MAX_TOTAL_BYTES:
            raise SourceError(
                f"more than {MAX_TOTAL_BYTES >> 20} MiB unpacked; a {container} of dumps has at most that: "
                "keep those of one machine in it"
            )
        if file.may_be_dump:
            dumps.could_not_read(f"{shown}: {file.note}")
        elif file.data is None:
            passed_over.append(f"{shown}: {file.note}")
        else:
            with naming(file.path):
                if not _read_into(dumps, [file.data], shown, file.data):
                    dumps.could_not_read(f"{shown}: it begins like a dump, but nothing in it was recognised")
    dumps.notes.extend(passed_over[:MAX_NAMED])
    if len(passed_over) > MAX_NAMED:
        dumps.notes.append(f"and {len(passed_over) - MAX_NAMED} more files that were not read")
    if not dumps.shows_gpus:
        raise SourceError(
            f"no dump in this {container} that shows GPUs or their driver "
            "(nvidia-smi [-q [-x]], topo -m, nvlink -s, lspci -vvv, dmesg ...)"
        )
    return dumps.node(printable(Path(path).name or path))


def _checked(path: str, data: bytes) -> _File:
    """A file that was read, if it is a dump."""
    if not is_dump(data[:HEAD_BYTES]):
        return _File(path, note="not recognised as a dump", most_bytes=len(data))
    return _File(path, data, most_bytes=len(data))


def _file_in(path: str) -> _File:
    """Read a file; only its first 64 KiB if they do not look like a dump."""
    try:
        info = Path(path).stat()
        if stat.S_ISDIR(info.st_mode):
            return _File(path, note="a directory, not looked into")
        if not stat.S_ISREG(info.st_mode):
            return _File(path, note="not a regular file")
        if info.st_size == 0:
            return _File(path, note="empty")
        with open_plain(path) as file:
            head = file.read(HEAD_BYTES) or b""
    except OSError as error:
        return _File(path, note=f"cannot be read: {error.strerror}", may_be_dump=True)
    if not head.strip():
        return _File(path, note="empty", most_bytes=len(head))
    packed = head.startswith(GZIP)
    if not packed and not is_dump(head):
        return _File(path, note="not recognised as a dump", most_bytes=len(head))
    try:
        data = read_file(path)
    except SourceError as error:
        if not packed:
            raise
        most_bytes = min(MAX_BYTES, _MAX_DEFLATE_RATIO * info.st_size)
        return _File(path, note=str(error), most_bytes=most_bytes, may_be_dump=True)
    return _checked(path, data) if packed else _File(path, data, most_bytes=len(data))
