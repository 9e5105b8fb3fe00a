"""Open untrusted files, gzipped or not, within limits on their size, and recognise them by their first 64 KiB."""

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
from gpudoctor.facts.captures.kernel_logs import is_kernel_line
from gpudoctor.facts.captures.lines import plain_spaces
from gpudoctor.facts.captures.nvidia_smi.messages import FAILURE

HEAD_BYTES = 64 * 1024
MAX_BYTES = 64 * 1024 * 1024
MAX_BUG_REPORT_BYTES = 256 * 1024 * 1024
GZIP = b"\x1f\x8b"
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MATRIX = r"^[^\S\n]*GPU\d+\t"
# the first kind of which all patterns are there
_FORMS: tuple[tuple[str, tuple[re.Pattern[str], ...]], ...] = tuple(
    (kind, tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns))
    for kind, *patterns in (
        ("bug-report", r"NVIDIA bug report log file|nvidia-bug-report\.sh Version"),
        ("smi-xml", r"<(?:!DOCTYPE )?nvidia_smi_log[\s>]"),
        ("smi-text", r"NVSMI LOG(?![\s\S]{0,400}Attached Units)"),
        ("p2p", _MATRIX, r"Status Ok|\t(?:OK|CNS|GNS|TNS|NS|DR|U)[\t\n]"),
        ("topology", _MATRIX),
        ("nvlink", r"^GPU \d+: .{0,200}\(UUID: ", r"^[ \t]+Link \d+: |all links are inActive"),
        (
            "lspci",
            r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "
            r"[A-Z0-9][^:\n]{2,60}(?:bridge|Bridge|controller|device)[^:\n]{0,20}: ",
        ),
        ("free", r"^[ \t]+total[ \t]+used[ \t]+free\b[^\n]*\n(?:[^\n]*\n)?Mem:"),
        ("meminfo", r"^MemTotal:\s+\d+ kB"),
        ("df", r"^Filesystem\s[^\n]*Mounted on$", r" /dev/shm$"),
        ("kernel-module", "NVRM version:"),
    )
)
_ASSIGNMENT = re.compile(r"(?:export |declare -x )?[A-Za-z_]\w*=")
_USUAL_NAME = re.compile(
    r"(?:^|\0)(?:export |declare -x )?(?:PATH|HOME|PWD|USER|LD_|CUDA|NCCL_|SLURM_|NVIDIA_)", re.MULTILINE
)


def head_text(data: bytes) -> str:
    """The first 64 KiB as text, only for recognising the kind; invalid bytes are replaced."""
    return decoded(data[:HEAD_BYTES])


def open_plain(path: str) -> BinaryIO:
    """Open without blocking: what looks like a plain file may be the kernel log, which waits for a writer."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def check_file(path: str) -> None:
    """Raise SourceError, without the file's name, if it is not a regular file, is empty, or cannot be examined."""
    try:
        info = Path(path).stat()
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(info.st_mode):
        raise SourceError("not a regular file (a pipe or device): use - to read from stdin")
    if info.st_size == 0:
        raise SourceError("the file is empty (is it one of /proc? then pipe it in, with - as the source)")


def read_file(path: str) -> bytes:
    """The file's content, unpacked.

    Raise SourceError, without the file's name, if it is not a regular file, empty, larger than 64 MiB (256 MiB for a
    bug report), unreadable, or a broken .gz.
    """
    check_file(path)
    try:
        with open_plain(path) as file:
            return read_stream(file, Path(path).stat().st_size)
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


def decoded(data: bytes) -> str:
    """A dump as text with plain spaces and without colours. Invalid bytes are replaced: names come from firmware."""
    text = plain_spaces(data.decode("utf-8-sig", errors="replace"))
    return _COLOURS.sub("", text) if "\x1b" in text else text


def _limit(head: bytes) -> int:
    return MAX_BUG_REPORT_BYTES if recognise(head_text(head)) == "bug-report" else MAX_BYTES


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


def _too_large(limit: int, what: str = "") -> SourceError:
    return SourceError(f"{what}larger than {limit // 1024**2} MiB: not a dump that gpudoctor reads")


# What a text is, by its content; its file name is ignored.


def recognise(head: str) -> str | None:
    """The kind of dump that starts with `head`; None for anything else."""
    for kind, patterns in _FORMS:
        if all(pattern.search(head) for pattern in patterns):
            return kind
    # by the form of most of its lines
    lines = [line for line in re.split(r"[\n\0]", head)[:200] if line.strip()]
    if lines and sum(map(is_kernel_line, lines)) * 2 > len(lines):
        return "kernel-log"
    if sum(map(bool, map(_ASSIGNMENT.match, lines))) * 2 > len(lines) and _USUAL_NAME.search(head):
        return "environment"
    return "smi-failure" if FAILURE.search(head) else None
