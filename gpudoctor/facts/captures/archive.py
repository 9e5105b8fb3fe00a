"""Archives of texts, .tar and .zip: their plain files, read in memory and never unpacked to the disk."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.bundle import FACTS, MANIFEST
from gpudoctor.facts.captures.opened import unpacked
from gpudoctor.lazy_import import lazy_imports

with lazy_imports():
    import tarfile
    import zipfile

MAX_MEMBERS = 1000
MAX_BYTES = 512 * 1024 * 1024  # of all members, unpacked
_GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"


def is_tar(data: bytes) -> bool:
    return data[257:262] == b"ustar"


def is_bundle(data: bytes) -> bool:
    """Whether a .tar is one that gpudoctor made: by the first names in it."""
    return any(name in data[: 1 << 20] for name in (FACTS.encode() + b"\0", MANIFEST.encode() + b"\0"))


def texts_in(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each plain file. Raise SourceError where the archive is broken or too large."""
    members = _zip(data) if data.startswith(ZIP) else _tar(data)
    total = 0
    for number, (name, content) in enumerate(members):
        total += len(content)
        if number >= MAX_MEMBERS or total > MAX_BYTES:
            raise SourceError(f"more than {MAX_MEMBERS} files or {MAX_BYTES >> 20} MiB in the archive")
        yield name, unpacked(content) if content.startswith(_GZIP) else content


def _tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                # a sparse file may claim any size
                if member.isreg() and not member.issparse() and not _hidden(member.name):
                    file = archive.extractfile(member)
                    yield member.name, file.read(min(member.size, MAX_BYTES)) if file else b""
    except (tarfile.TarError, EOFError, ValueError, OSError, OverflowError) as error:
        raise SourceError(f"not a readable archive: {error}") from None


def _zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                if not member.is_dir() and not _hidden(member.filename):
                    with archive.open(member) as file:
                        yield member.filename, file.read(min(member.file_size, MAX_BYTES))
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise SourceError(f"not a readable archive: {error}") from None


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".") or name.startswith("__MACOSX/")
