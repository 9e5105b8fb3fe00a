"""Finds the files, folders and streams to read."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpudoctor.diagnose.diagnosis import Unread
from gpudoctor.errors import UserError

MAX_FILES = 20_000
# the names that Slurm gives by default: of a job, or of a task of an array
_OF_A_JOB = re.compile(r"slurm-(\d+(?:_\d+)?)\.(?:out|err)(?:\.gz)?")
_PARTS = re.compile(r"([^0-9]*)([0-9]*)")

# files that lie beside logs and are none: programs, pages, weights
_NO_LOGS = frozenset((
    ".py", ".pyc", ".md", ".rst", ".html", ".css", ".js", ".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".go", ".rs",
    ".sh", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".ipynb", ".so", ".whl", ".pt", ".pth", ".bin",
    ".safetensors", ".ckpt", ".npy", ".npz", ".parquet", ".arrow", ".png", ".jpg", ".jpeg", ".pdf", ".svg", ".tar",
    ".zip", ".deb", ".rpm", ".csv", ".tsv", ".jsonl",
))  # fmt: skip


class LogSource(msgspec.Struct, frozen=True):
    """One file to read, called `name` in the answer; a `path` of None is standard input."""

    name: str
    path: Path | None
    bytes: int = 0


def find_sources(names: list[str]) -> tuple[list[LogSource], list[Unread]]:
    """Every file below the given paths, in order; `-` is standard input.

    Raises UserError for a path that does not exist: a typo must not end as "nothing found"; and for folders with the
    logs of several jobs: what one of them says explains nothing of another.
    """
    sources: list[LogSource] = []
    unread: list[Unread] = []
    for name in names:
        if name == "-":
            if sys.stdin is None:  # descriptor 0 may be another file by now
                raise UserError("-: stdin is closed")
            sources.append(LogSource("<stdin>", None))
            continue
        path = Path(name)
        try:
            found = path.stat()
        except OSError as error:
            example = "; a job to look at: gpudoctor diagnose --example hang" if error.errno == errno.ENOENT else ""
            raise UserError(f"{name}: {error.strerror or error}{example}") from None
        if stat.S_ISDIR(found.st_mode):
            _add_logs(path, sources, unread)
        else:
            sources.append(LogSource(name, path, found.st_size))
    in_folders = [source.name for source in sources if source.name not in names]
    jobs = {match[1]: name for name in in_folders if (match := _OF_A_JOB.fullmatch(Path(name).name))}
    if len(jobs) > 1:
        first, second = list(jobs.values())[:2]
        raise UserError(f"logs of {len(jobs)} jobs, as {first} and {second}: name the files of one job")
    return sources, unread


def walk(folder: Path, unread: list[Unread]) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk; folders that cannot be listed are added to `unread`."""

    def denied(error: OSError) -> None:
        unread.append(Unread(str(error.filename), error.strerror or str(error)))

    return os.walk(folder, onerror=denied)


def _add_logs(folder: Path, sources: list[LogSource], unread: list[Unread]) -> None:
    for place, folders, files in walk(folder, unread):
        folders.sort(key=_natural)
        for name in sorted(files, key=_natural):
            path = Path(place, name)
            if path.suffix.lower() in _NO_LOGS:
                continue
            if len(sources) >= MAX_FILES:
                unread.append(Unread(str(folder), f"more than {MAX_FILES} files: the others were not read"))
                return
            try:
                found = path.stat()
            except OSError as error:
                unread.append(Unread(str(path), error.strerror or str(error)))
                continue
            if stat.S_ISREG(found.st_mode):
                sources.append(LogSource(str(path), path, found.st_size))
            else:
                unread.append(Unread(str(path), "no plain file"))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key with numbers by value: `rank10` after `rank9`."""
    return [(int(digits[:18] or -1), text) for text, digits in _PARTS.findall(name)]
