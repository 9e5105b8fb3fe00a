"""Open untrusted files, gzipped or not, within limits on their size."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import zlib
from pathlib import Path
from typing import BinaryIO

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.lines import plain_spaces

HEAD_BYTES = 64 * 1024
MAX_BYTES = 64 * 1024 * 1024
MAX_BUG_REPORT_BYTES = 256 * 1024 * 1024
GZIP = b"\x1f\x8b"
# a mail that quotes one is a text like any other: its writer may have said something, too
_BUG_REPORT = re.compile(
    rb"^(?:(?:Start|End) of )?NVIDIA bug report log file|^nvidia-bug-report\.sh Version", re.MULTILINE
)


def head_text(data: bytes) -> str:
    """The first 64 KiB as text, only for recognising the kind; invalid bytes are replaced."""
    return plain_spaces(data[:HEAD_BYTES].decode("utf-8-sig", errors="replace"))


def open_plain(path: str) -> BinaryIO:
    """Open without blocking: what looks like a plain file may be the kernel log, which waits for a writer."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def size_of_file(path: str) -> int:
    """In bytes. Raise SourceError, without the file's name, if it is no regular file, empty, or cannot be examined."""
    try:
        info = Path(path).stat()
    except (OSError, ValueError) as error:  # a NUL byte in the name
        raise SourceError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(info.st_mode):
        raise SourceError("not a regular file")
    if info.st_size == 0:
        raise SourceError("the file is empty; if it is one of /proc or /sys, pipe it in, with - as the source")
    return info.st_size


def read_file(path: str) -> bytes:
    """The file's content, unpacked.

    Raise SourceError, without the file's name, if it is not a regular file, empty, larger than 64 MiB (256 MiB for a
    bug report), unreadable, or a broken .gz.
    """
    size = size_of_file(path)
    try:
        with open_plain(path) as file:
            return read_stream(file, size)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}") from None


def read_head(stream: BinaryIO) -> bytes:
    """The first 64 KiB, or the whole stream if it is shorter. A pipe may need several reads."""
    head = b""
    while len(head) < HEAD_BYTES and (more := stream.read(HEAD_BYTES - len(head))):
        head += more
    return head


def read_stream(stream: BinaryIO, size: int = 0, head: bytes | None = None) -> bytes:
    """The whole stream, unpacked, within the limits of `read_file`. Raise SourceError like `read_file`.

    `size`: the size in bytes, to refuse a large file before reading it; 0 if unknown. `head`: the result of
    `read_head` if it was already called.
    """
    if head is None:
        head = read_head(stream)
    packed = head.startswith(GZIP)
    limit = MAX_BUG_REPORT_BYTES if packed else _limit(head)
    if size > limit:
        raise _too_large(limit)
    data = head + (stream.read(limit + 1 - len(head)) or b"")
    if len(data) > limit:
        raise _too_large(limit)
    if packed:
        data = unpacked(data)
    if not data.strip():
        raise SourceError("there is nothing in it")
    return data


def unpacked(data: bytes) -> bytes:
    """The content of a .gz. Raise SourceError if it is broken, or as soon as it exceeds its limit."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            head = file.read(HEAD_BYTES)
            limit = _limit(head)
            unpacked = head + file.read(limit + 1 - len(head))
    except EOFError:
        raise SourceError("cut off: the .gz ends before its end mark") from None
    except (gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise SourceError(f"broken .gz: {error}") from None
    if len(unpacked) > limit:
        raise _too_large(limit, "unpacked ")
    return unpacked


def is_bug_report(head: bytes) -> bool:
    """Whether this is the beginning of nvidia-bug-report.log."""
    return _BUG_REPORT.search(head[:HEAD_BYTES]) is not None


def _limit(head: bytes) -> int:
    return MAX_BUG_REPORT_BYTES if is_bug_report(head) else MAX_BYTES


def _too_large(limit: int, what: str = "") -> SourceError:
    return SourceError(f"{what}larger than {limit // 1024**2} MiB: not a dump that gpudoctor reads")
