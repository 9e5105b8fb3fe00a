"""The files that the loaders read: some of those that the user named, or made ones. Nothing is written elsewhere."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.storage.files import mostly_holes
from gpudoctor.units import short_size

WHOLE_FILE_BYTES = 1 << 20  # up to this size a file is one sample, as images are
PIECE_BYTES = 128 << 10  # of a larger one, as of a shard
_MOST_FILES = 4096
_MOST_LISTED = 50_000
_LIST_S = 5.0
_MADE_FILES, _MADE_BYTES = 256, 110_000  # the mean size of ImageNet's JPEGs
_SEED = 19


class DataFiles(msgspec.Struct, frozen=True):
    """Chosen files with their sizes in bytes; `made`: gpudoctor wrote them; `empty`: files of 0 bytes that were met."""

    files: tuple[tuple[str, int], ...]
    made: bool = False
    empty: int = 0

    @property
    def mean_sample_bytes(self) -> float:
        """The mean size of a sample, if each file is as likely as any other."""
        return sum(sample_bytes(size) for _, size in self.files) / len(self.files)


def sample_bytes(file_bytes: int) -> int:
    """How many bytes one sample of a file has."""
    return file_bytes if file_bytes <= WHOLE_FILE_BYTES else PIECE_BYTES


def chosen_files(paths: Iterable[str]) -> DataFiles | Missing:
    """Some of the regular files at and below these paths, evenly over the list; Missing if there is nothing to read.

    Looks at so many names only, for so many seconds; links to folders are not followed.
    """
    found: list[str] = []
    give_up_s = monotonic() + _LIST_S
    for path in _below(paths):
        found.append(path)
        if len(found) >= _MOST_LISTED or monotonic() > give_up_s:
            break
    step = max(1, -(-len(found) // _MOST_FILES))
    chosen, empty, refused = [], 0, ""
    for path in sorted(found)[::step]:
        try:
            seen = Path(path).stat()
            holes = mostly_holes(path, seen)
        except OSError as error:
            refused = error.strerror or str(error)
            continue
        size = seen.st_size
        if holes and size:
            refused = "most of it is holes, which come from no disk"
        elif size:
            chosen.append((path, size))
        else:
            empty += 1
    if chosen:
        return DataFiles(tuple(chosen), empty=empty)
    where = "what --data names"
    if empty:
        return Missing(f"all files of {where} have 0 bytes", "failed")
    return Missing(
        f"no file of {where} can be read: {refused}" if refused else f"there is no file in {where}", "failed"
    )


def made_files(folder: Path) -> DataFiles | Missing:
    """Files of random bytes in this folder of the run, which is removed however the run ends."""
    needed = 2 * _MADE_FILES * _MADE_BYTES
    draw = random.Random(_SEED)
    made = []
    try:
        space = os.statvfs(folder.parent)
        if space.f_bavail * space.f_frsize < needed:
            return Missing(f"files to load want {short_size(needed)} in TMPDIR, and there is less", "denied")
        folder.mkdir()
        for number in range(_MADE_FILES):
            path = folder / f"{number}.bin"
            path.write_bytes(draw.randbytes(_MADE_BYTES))
            made.append((str(path), _MADE_BYTES))
    except OSError as error:
        return Missing(f"files to load could not be made in TMPDIR: {error.strerror or error}", "failed")
    return DataFiles(tuple(made), made=True)


def _is_text(name: str) -> bool:
    """Whether a name can be told to other ranks: one that is not UTF-8 is left out."""
    return not any("\ud800" <= sign <= "\udfff" for sign in name)


def _below(paths: Iterable[str]) -> Iterator[str]:
    """Regular files at and below paths, breadth first, so that a limit leaves out what lies deepest."""
    folders = []
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112 - the names come as text and go as text
            folders.append(path)
        else:
            yield path
    while folders:
        below: list[str] = []
        for folder in folders:
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            below.append(entry.path)
                        elif entry.is_file() and _is_text(entry.name):
                            yield entry.path
            except OSError:  # a folder that is gone or closed to this user; its files are nobody's samples
                continue
        folders = below
