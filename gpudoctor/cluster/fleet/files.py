"""Reads the documents in files, folders (recursively) and stdin, one after the other."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.captures.opened import GZIP

# a report of 8 GPUs with its facts is 0.3 MiB
LARGEST_DOCUMENT = 64 << 20
_READ_AT_ONCE = 4 << 20
_NAMES = (".json", ".jsonl", ".ndjson")
_CLOSED_BY = {b"{": b"}", b"[": b"]"}
_but = msgspec.structs.replace


class Document(msgspec.Struct, frozen=True):
    """The bytes of one document, or why there are none.

    `place` is where it was found, in words ("run1/gpu-07.json", "all.jsonl line 12"). `stem` is the file's name without
    its ending, used for reports without a host name (None on stdin). `modified` is the file's modification time, in
    seconds since 1970.
    """

    place: str
    stem: str | None
    data: bytes = b""
    trouble: str | None = None
    modified: float | None = None

    @property
    def should_be_one(self) -> bool:
        """Whether the whole file should be one report, by its name: files of lines may contain other lines too."""
        return self.stem is not None and not self.place.removesuffix(".gz").endswith((".jsonl", ".ndjson"))


class FoundFiles(msgspec.Struct):
    """The number of files read; `others` are files in folders that are not named like reports, and not opened.

    `absent` are sources that do not exist, or that may not be looked at.
    """

    files: int = 0
    others: int = 0
    absent: int = 0


class Listed(msgspec.Struct, frozen=True):
    """A file to be read, and its name relative to the given folder."""

    path: str
    name: str


def listed(source: str, found: FoundFiles) -> Iterator[Listed | Document]:
    """The file, or all files below the folder; a Document with its `trouble` for what is absent or cannot be read."""
    try:
        os.lstat(source)
    except OSError as error:
        found.absent += 1
        trouble = f"cannot be read: {error.strerror or error}"
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            trouble = "no such file or folder; reports are written by gpudoctor check --json -o FILE"
        yield Document(as_text(source), None, trouble=trouble)
        return
    is_folder = os.path.isdir(source)  # noqa: PTH112 - Path.is_dir raises if a link's target is not a valid path
    for path in _walk(source, found) if is_folder else [source]:
        if isinstance(path, Document):
            yield path
        else:
            found.files += 1
            yield Listed(path, path[len(source) :].lstrip("/") or Path(source).name)


def stdin_documents(stdin: BinaryIO | None) -> Iterator[Document]:
    """The documents on stdin, each as soon as its line is complete. Raise UserError if there is no stdin."""
    if stdin is None:
        raise UserError("-: there is no stdin to read reports from")
    yield from _documents(stdin, Document("stdin", None))


def _walk(folder: str, found: FoundFiles) -> Iterator[str | Document]:
    """Files named like reports, ordered by name. Links to folders are not followed, so that there are no cycles."""
    waiting = [folder]  # a stack instead of recursion: folders may be nested deeper than Python recurses
    while waiting:
        folder = waiting.pop()
        within: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.is_dir(follow_symlinks=False):
                        within.append(entry.path)
                    # a hidden file is one that is still being written
                    elif not entry.name.startswith(".") and entry.name.removesuffix(".gz").endswith(_NAMES):
                        yield entry.path
                    else:
                        found.others += 1
        except OSError as error:
            yield Document(as_text(folder), None, trouble=f"the folder cannot be read: {error.strerror or error}")
        waiting += reversed(within)


def as_text(path: str) -> str:
    """The path with undecodable bytes escaped: file names need not be UTF-8, JSON must be."""
    return path.encode("utf-8", "backslashreplace").decode()


def documents_of(file: Listed) -> Iterator[Document]:
    """The documents in one file, or one with its `trouble` if the file cannot be read."""
    name = file.name.removesuffix(".gz")
    stem = next((name.removesuffix(ending) for ending in _NAMES if name.endswith(ending)), name)
    whole = Document(as_text(file.path), as_text(stem))
    try:
        # unbuffered: most files are read in one call
        with open(file.path, "rb", buffering=0, opener=_without_waiting) as opened:
            info = os.fstat(opened.fileno())
            if not stat.S_ISREG(info.st_mode):
                yield _but(whole, trouble="not a regular file; - reads stdin")
                return
            whole = _but(whole, modified=info.st_mtime)
            if info.st_size > _READ_AT_ONCE:
                yield from _documents(io.BufferedReader(opened), whole)
                return
            data = opened.read(_READ_AT_ONCE + 1) or b""
    except OSError as error:
        yield _but(whole, trouble=f"cannot be read: {error.strerror or error}")
        return
    if data.startswith(GZIP):
        yield from _unpacked(io.BytesIO(data), whole)
    elif not data.strip():
        yield _but(whole, trouble="the file is empty: the check that was to write it did not end")
    elif data.find(b"\n", 0, -1) < 0:
        yield _but(whole, data=data)  # one line, as gpudoctor writes reports
    else:
        yield from _split(io.BytesIO(data), whole)


def _without_waiting(path: str, flags: int) -> int:
    """Open the path; if it is a pipe, do not wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _documents(stream: BinaryIO, whole: Document) -> Iterator[Document]:
    """The documents of a stream that may be compressed, without reading all of it at once."""
    peek = getattr(stream, "peek", None)  # only buffered streams have it, and stdin is one
    packed = peek is not None and peek(len(GZIP)).startswith(GZIP)
    yield from (_unpacked if packed else _split)(stream, whole)


def _unpacked(file: BinaryIO, whole: Document) -> Iterator[Document]:
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from _split(cast(BinaryIO, unpacked), whole)
    except EOFError:
        yield _but(whole, trouble="cut off: the .gz ends before its end mark")
    except (gzip.BadGzipFile, zlib.error) as error:
        yield _but(whole, trouble=f"broken .gz: {error}")


def _split(stream: BinaryIO, whole: Document) -> Iterator[Document]:
    """One document per line, as in JSON Lines; or several lines, from one with only `{` to one with `}`, as jq prints.

    An array over several lines is one document too: it is refused once instead of once per line.
    """
    open_since, held, closer = 0, bytearray(), b""
    number = 0
    while line := stream.readline(LARGEST_DOCUMENT + 1):
        number += 1
        if len(held) + len(line) > LARGEST_DOCUMENT:
            why = f"larger than {LARGEST_DOCUMENT >> 20} MiB: no report"
            yield _but(_of_line(whole, open_since or number), trouble=why)
            return
        word = line.strip()
        if held or word in _CLOSED_BY:
            open_since, closer = open_since or number, closer or _CLOSED_BY[word]
            held += line
            if line.rstrip() == closer:
                yield _of_line(whole, open_since, bytes(held))
                open_since, held, closer = 0, bytearray(), b""
        elif word:
            yield _of_line(whole, number, line)
    if held:
        yield _of_line(whole, open_since, bytes(held))


def _of_line(whole: Document, line: int, data: bytes = b"") -> Document:
    """The document that begins on this line; the first one of a file goes by the file's name."""
    if line == 1 and whole.stem is not None:
        return _but(whole, data=data)
    return _but(whole, place=f"{whole.place} line {line}", stem=None, data=data)
