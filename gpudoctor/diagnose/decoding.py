"""Reads a source in blocks of bounded size: decompressed, and as UTF-8."""

from __future__ import annotations

import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from gpudoctor.diagnose.sources import LogSource
from gpudoctor.text.standard_input import standard_input

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 16
_HEAD_BYTES = 4096
_MAX_DUMP_BYTES = 256 << 20
_MAX_XZ_MEMORY = 192 << 20  # xz -9 needs 65 MiB
_MOST_UNPACKED_BYTES = 1 << 30  # or a hundred times the packed size, if that is more: logs reach twenty
_ZSTD_STEP_BYTES = 1 << 10  # unpacks to 32 MiB at most
_GZIP, _XZ, _ZSTD, _BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"BZh"


class UnreadableError(Exception):
    """This source cannot be read; the message gives the reason in one line."""


class TruncatedError(UnreadableError):
    """A compressed source ends too early, or never; all that came before has been yielded."""

    def __init__(self, reason: str = "the compressed data ends too early: only what comes before was read") -> None:
        super().__init__(reason)


def is_plain(source: LogSource) -> bool:
    """Whether the bytes on disk are the text itself, neither compressed nor UTF-16, so that parts can be read alone."""
    if source.path is None:
        return False
    head = head_of(source)
    return not head.startswith((_GZIP, _XZ, _ZSTD, _BZIP2, b"\xff\xfe", b"\xfe\xff")) and (_utf16(head) is None)


def head_of(source: LogSource) -> bytes:
    """The first bytes as stored; empty for a stream, which would lose them, and for a file that cannot be opened."""
    try:
        if source.path is None or not source.path.is_file():
            return b""
        with source.path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def refuse_to_follow(head: bytes) -> None:
    """Raise UnreadableError if a stream that begins like this is not text that can be read line by line as it grows."""
    if head.startswith((_GZIP, _XZ, _ZSTD)):
        raise UnreadableError(
            "compressed, so it cannot be followed; read it without --follow, or decompress it before: "
            "zcat FILE | gpudoctor diagnose --follow -"
        )
    if _utf16(head[:_HEAD_BYTES]) is None and looks_binary(head[:_HEAD_BYTES]):
        raise UnreadableError("binary, no log")


def read_whole(source: LogSource, limit: int = _MAX_DUMP_BYTES) -> bytes:
    """All bytes of a dump, decompressed. Raises UnreadableError if there are more than `limit`."""
    data = bytearray()
    for block in raw_blocks(source):
        data += block
        if len(data) > limit:
            raise UnreadableError(f"larger than {limit >> 20} MiB: not read as a dump")
    return bytes(data)


def text_blocks(source: LogSource) -> Iterator[bytes]:
    """UTF-8 text in blocks of whole lines; a line of more than 128 KiB loses its middle.

    Raises UnreadableError if the source cannot be opened or is not text, and TruncatedError after the last block.
    """
    rest = b""
    truncated: TruncatedError | None = None
    try:
        for raw in _decoded(raw_blocks(source)):
            data = rest + raw
            if end := data.rfind(b"\n") + 1:
                yield data[:end]
            rest = _clipped(data[end:])
    except TruncatedError as error:
        truncated = error
    if rest:
        yield rest
    if truncated is not None:
        raise truncated


def _clipped(line: bytes) -> bytes:
    return line if len(line) <= 2 * MAX_LINE_BYTES else line[:MAX_LINE_BYTES] + line[-MAX_LINE_BYTES // 2 :]


def raw_blocks(source: LogSource) -> Iterator[bytes]:
    """The bytes, decompressed if they are gzip, zstd or xz. Raises UnreadableError."""
    try:
        if source.path is None:
            if (stream := standard_input("paste the log of the job, as it is")) is not None:
                yield from _blocks_of(stream)
            return
        with source.path.open("rb") as file:
            unpacked = 0
            for block in _blocks_of(file):
                yield block
                unpacked += len(block)
                if unpacked > max(_MOST_UNPACKED_BYTES, 100 * source.bytes) and unpacked > source.bytes:
                    raise TruncatedError(
                        f"it unpacks to more than {unpacked >> 20} MiB: only what comes before was read"
                    )
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadableError(text.partition("\n")[0]) from None


def _blocks_of(stream: IO[bytes]) -> Iterator[bytes]:
    head = stream.read(BLOCK_BYTES)
    if head.startswith(_GZIP):
        yield from _unpacked(_Gzip, _GZIP, head, stream)
    elif head.startswith(_XZ):
        yield from _unpacked(lambda: lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY), _XZ, head, stream)
    elif head.startswith(_ZSTD):
        new, damaged = _zstd()
        try:
            yield from _unpacked(new, b"", head, stream)
        except damaged as error:
            raise UnreadableError(f"no whole zstd file: {error}") from None
    else:
        while head:
            yield head
            head = stream.read(BLOCK_BYTES)


def _unpacked(new: Callable[[], Any], magic: bytes, head: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    """All parts that stand one behind the other, as log rotation appends them, in blocks of bounded size.

    `new` makes a decompressor as the standard library has them. What begins with another `magic` behind a part is left
    out, and so is the padding of xz. Raises TruncatedError.
    """
    inflater, data = new(), head
    while True:
        if out := inflater.decompress(data, BLOCK_BYTES):
            yield out
        data = b""
        if inflater.eof:
            data = inflater.unused_data.lstrip(b"\0")
            while len(data) < len(_XZ) and (more := stream.read(BLOCK_BYTES)):
                data = (data + more).lstrip(b"\0")
            if not data or not data.startswith(magic):
                return
            inflater = new()
        elif inflater.needs_input and not (data := stream.read(BLOCK_BYTES)):
            raise TruncatedError


class _Gzip:
    """zlib's decompressor in the form of the others."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(31)

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inflater.decompress(self._inflater.unconsumed_tail + data, most)

    @property
    def needs_input(self) -> bool:
        return not self._inflater.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflater.unused_data


def _zstd() -> tuple[Callable[[], Any], type[Exception]]:
    """What makes a decompressor of zstd, and its error: Python's own, or that of the package zstandard."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return zstd.ZstdDecompressor, zstd.ZstdError
    except ImportError:
        pass
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UnreadableError(
            "zstd needs Python 3.14 or the package zstandard (pip install zstandard); "
            "or: zstd -dc FILE | gpudoctor diagnose -"
        ) from None
    return lambda: _ZstdOfPackage(zstandard.ZstdDecompressor().decompressobj()), zstandard.ZstdError


class _ZstdOfPackage:
    """The package's decompressor in the form of the others; it has no limit, so it gets little at a time."""

    def __init__(self, inflater: Any) -> None:
        self._inflater, self._rest = inflater, memoryview(b"")

    def decompress(self, data: bytes, _: int) -> bytes:
        self._rest = memoryview(data) if data else self._rest
        given, self._rest = self._rest[:_ZSTD_STEP_BYTES], self._rest[_ZSTD_STEP_BYTES:]
        out: bytes = self._inflater.decompress(given)
        return out

    @property
    def needs_input(self) -> bool:
        return not self._rest

    @property
    def eof(self) -> bool:
        return bool(self._inflater.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inflater.unused_data) + bytes(self._rest)


def _decoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 converted to UTF-8, no-break spaces of web pages to spaces; other bytes unchanged."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    for block in blocks:
        if first:
            first = False
            if encoding := _utf16(block[:_HEAD_BYTES]):
                decoder = codecs.getincrementaldecoder(encoding)("replace")
            elif looks_binary(block[:_HEAD_BYTES]):
                raise UnreadableError("binary, no log")
            elif block.startswith(b"\xef\xbb\xbf"):
                block = block[3:]
        block = decoder.decode(block).encode("utf-8", "replace") if decoder else block
        yield block.replace(b"\xc2\xa0", b" ")


def _utf16(head: bytes) -> str | None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    pairs = len(head) // 2
    if pairs < 8:
        return None
    if head[1 : 2 * pairs : 2].count(0) > 0.8 * pairs and head[: 2 * pairs : 2].count(0) < 0.1 * pairs:
        return "utf-16-le"
    if head[: 2 * pairs : 2].count(0) > 0.8 * pairs and head[1 : 2 * pairs : 2].count(0) < 0.1 * pairs:
        return "utf-16-be"
    return None


def looks_binary(head: bytes) -> bool:
    """Whether the bytes are not text in any encoding that logs use; single NULs and colours do occur in logs."""
    if not head:
        return False
    strange = sum(byte < 32 and byte not in (0, 7, 8, 9, 10, 12, 13, 27) for byte in head)
    return head.count(0) > 0.05 * len(head) + 16 or strange > 0.02 * len(head) + 2
