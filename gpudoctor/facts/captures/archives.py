"""Archives, read in memory only: from `gpudoctor bundle`, from acceptance runs, and any .tar or .zip of text dumps."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator, Mapping

from gpudoctor.facts.captures import Loaded, SourceError
from gpudoctor.facts.captures.facts_file import load_json, load_measurements
from gpudoctor.facts.captures.opened import GZIP, unpacked
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    import tarfile
    import zipfile

FOLDER = "gpudoctor-bundle"
FACTS, REPORT, KERNEL, VERSIONS, MANIFEST = "facts.json", "report.json", "kernel.log", "versions.json", "MANIFEST"
# from an acceptance run: its comparisons, its probes' measurements, and raw data that is only kept for people to read
ACCEPTANCE, MEASURED = "acceptance.json", "measurements.json"
_MEMBERS = (FACTS, REPORT, KERNEL, VERSIONS, MANIFEST, ACCEPTANCE, MEASURED)
_RAW = re.compile(r"(?:report|measured|nvml|nvidia-smi|nccl|plain|quick)-[a-z-]{1,30}\.(?:json|txt)|nvidia-smi\.xml")
_MAX_ENTRIES = 64
_BLOCK = 512
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z.-]{1,48})")
MAX_MEMBERS = 1000
MAX_BYTES = 512 * 1024 * 1024  # of all members, unpacked
ZIP = b"PK\x03\x04"


def pack(files: Mapping[str, bytes], made_s: int) -> bytes:
    """A .tar.gz of these files plus a MANIFEST with their SHA-256 sums; its headers contain no user name or id.

    `made_s`: modification time of every member, in Unix seconds.
    """
    manifest = "".join(f"{_sha256(data)}  {name}\n" for name, data in files.items())
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=made_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in {**files, MANIFEST: manifest.encode()}.items():
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), made_s, 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def members(data: bytes) -> dict[str, bytes]:
    """The files in a bundle by name. Raise SourceError if it is not a bundle, is truncated, or was modified.

    Nothing is written to disk. The headers are parsed one by one, and only plain files with the names above are
    accepted: no links, no sparse files, no names from extended headers.
    """
    found: dict[str, bytes] = {}
    at = 0
    for _ in range(_MAX_ENTRIES):
        block = data[at : at + _BLOCK]
        if block.count(0) == _BLOCK:
            return _verified(found)
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError) as error:
            reported = "cut off" if len(block) < _BLOCK else f"not a readable archive ({error})"
            raise SourceError(f"bundle: {reported} at byte {at}") from None
        end = at + _BLOCK + entry.size
        if entry.size < 0 or end > len(data):
            raise SourceError(f"bundle: cut off in the entry at byte {at}")
        name = entry.name.removeprefix("./").removeprefix(f"{FOLDER}/")
        if entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            if name in found:
                raise SourceError(f"not a bundle of gpudoctor: there are two of {name} in it")
            if name not in _MEMBERS and not _RAW.fullmatch(name):
                raise SourceError(f"not a bundle of gpudoctor: {entry.name[:60]!r} does not belong in one")
            found[name] = data[at + _BLOCK : end]
        elif entry.type not in (tarfile.DIRTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE):
            raise SourceError(f"not a bundle of gpudoctor: {entry.name[:60]!r} is no plain file")
        at = end + -end % _BLOCK
    raise SourceError(f"not a bundle of gpudoctor: more than {_MAX_ENTRIES} entries")


def load_bundle(data: bytes) -> Loaded:
    """The facts in a bundle, and an acceptance run's measurements if there are any. Raise SourceError."""
    found = members(data)
    loaded = load_json(found[FACTS])
    return Loaded(loaded.node, load_measurements(found[MEASURED])) if MEASURED in found else loaded


def _verified(found: dict[str, bytes]) -> dict[str, bytes]:
    """Raise SourceError unless the MANIFEST confirms every file: incomplete facts must not be judged."""
    for name in (FACTS, MANIFEST):
        if name not in found:
            raise SourceError(f"not a bundle of gpudoctor: there is no {name} in it")
    listed = {
        match[2]: match[1]
        for line in found[MANIFEST].decode("utf-8", "replace").splitlines()
        if (match := _LINE.fullmatch(line))
    }
    for name, data in found.items():
        if name != MANIFEST and listed.get(name) != _sha256(data):
            raise SourceError(f"bundle: {name} is not what its MANIFEST says: damaged, or changed after it was made")
    return found


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Archives of text dumps, .tar and .zip: only their plain files are read.


def is_tar(data: bytes) -> bool:
    return data[257:262] == b"ustar"


def is_bundle(data: bytes) -> bool:
    """Whether gpudoctor made this .tar, judged by the file names near its start."""
    return any(name in data[: 1 << 20] for name in (FACTS.encode() + b"\0", MANIFEST.encode() + b"\0"))


def texts_in(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each plain file. Raise SourceError if the archive is broken or too large."""
    members = _zip(data) if data.startswith(ZIP) else _tar(data)
    total = 0
    for number, (name, content) in enumerate(members):
        if content.startswith(GZIP):
            content = unpacked(content)
        total += len(content)
        if number >= MAX_MEMBERS or total > MAX_BYTES:
            raise SourceError(f"more than {MAX_MEMBERS} files or {MAX_BYTES >> 20} MiB in the archive")
        yield name, content


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
