"""A file or a directory of dumps -> Node. Each file is known by its content, never by its name."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

from gpudoctor.facts.captures import SourceError, printable
from gpudoctor.facts.captures.bug_report import add_bug_report
from gpudoctor.facts.captures.join import Dumps
from gpudoctor.facts.captures.opened import MAX_BYTES, decoded, head_text, open_plain, read_file
from gpudoctor.facts.captures.recognise import HEAD_BYTES, Kind, recognise
from gpudoctor.facts.model.node import Node

MAX_FILES = 1000
MAX_TOTAL_BYTES = 512 * 1024 * 1024  # unpacked: twice the largest bug report that is read
_MAX_DEFLATE_RATIO = 1032  # zlib's own figure, technical details of zlib: 1032:1
MAX_NAMED = 10  # of the files that are no dumps
_PSEUDO = ("/proc", "/sys", "/dev")
_GZIP = b"\x1f\x8b"


def node_from_dump(data: bytes, kind: Kind, path: str) -> Node:
    """The node of one dump of a known kind. Raise SourceError that names `path`."""
    name = printable(Path(path).name)
    dumps = Dumps()
    _add(dumps, data, kind, path, name)
    return dumps.node(name)


def node_from_directory(path: str) -> Node:
    """The dumps in a directory, joined. Files that are none are named in `Source.notes`.

    Subdirectories and hidden files are passed over. Raise SourceError, naming the file, for a
    broken dump, for two that contradict each other, and for a directory without any, or with more
    than 1000 files or 512 MiB in them.
    """
    real = os.path.realpath(path)
    if real.startswith(tuple(f"{root}/" for root in _PSEUDO)) or real in _PSEUDO:
        raise SourceError(f"{path}: files that the kernel makes up, no directory of dumps")
    name = printable(Path(real).name or path)
    try:
        with os.scandir(path) as entries:
            shown_ones = (entry for entry in entries if not entry.name.startswith("."))
            found = sorted(itertools.islice(shown_ones, MAX_FILES + 1), key=lambda entry: entry.name)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    if len(found) > MAX_FILES:
        raise SourceError(f"{path}: {len(found)} files or more; a directory of dumps has at most {MAX_FILES}")
    dumps = Dumps()
    total_bytes = 0
    passed_over: list[str] = []
    for entry in found:
        shown = printable(entry.name)
        data, note, read_bytes = _dump_in(entry.path)
        total_bytes += read_bytes
        if total_bytes > MAX_TOTAL_BYTES:
            raise SourceError(
                f"{path}: more than {MAX_TOTAL_BYTES >> 20} MiB unpacked; a directory of dumps has at most that: "
                "keep those of one machine in it"
            )
        if data is None:
            passed_over.append(f"{shown}: {note}")
            continue
        kind = recognise(head_text(data))
        if kind is None:
            passed_over.append(f"{shown}: not recognised as a dump")
            continue
        _add(dumps, data, kind, entry.path, shown)
    dumps.notes.extend(passed_over[:MAX_NAMED])
    if len(passed_over) > MAX_NAMED:
        dumps.notes.append(f"and {len(passed_over) - MAX_NAMED} more files that were not read")
    if not dumps.shows_gpus:
        raise SourceError(
            f"{path}: no dump in this directory that shows GPUs or their driver "
            "(nvidia-smi -q [-x], topo -m, nvlink -s, lspci -vvv ...)"
        )
    try:
        return dumps.node(name)
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None


def _dump_in(path: str) -> tuple[bytes | None, str, int]:
    """The content of a file that may be a dump; else None and why. And how many bytes it took to know, at most.

    A large file is no dump by its head.
    """
    try:
        info = Path(path).stat()
        mode = info.st_mode
        if stat.S_ISDIR(mode):
            return None, "a directory, not looked into", 0
        if not stat.S_ISREG(mode):
            return None, "not a regular file", 0
        if info.st_size == 0:
            return None, "empty", 0
        with open_plain(path) as file:
            head = file.read(HEAD_BYTES) or b""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}", 0
    if not head.strip():
        return None, "empty", len(head)
    packed = head.startswith(_GZIP)
    if not packed and recognise(head_text(head)) is None:
        return None, "not recognised as a dump", len(head)
    try:
        data = read_file(path)
        return data, "", len(data)
    except SourceError as error:
        if packed:  # what a broken archive would have held, nobody can tell
            return None, str(error), min(MAX_BYTES, _MAX_DEFLATE_RATIO * info.st_size)
        raise SourceError(f"{path}: {error}") from None


def _add(dumps: Dumps, data: bytes, kind: Kind, path: str, name: str) -> None:
    try:
        if kind == "bug-report":
            add_bug_report(dumps, data, name)
        else:
            dumps.add(kind, decoded(data), name)
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None
