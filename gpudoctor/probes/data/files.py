"""The files that the loaders read: some of those that the user named, or made ones. Nothing is written elsewhere."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.storage.listing import listed
from gpudoctor.units import short_size

WHOLE_FILE_BYTES = 1 << 20  # up to this size a file is one sample, as images are
PIECE_BYTES = 128 << 10  # of a larger one, as of a shard
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
    """Some of the regular files at and below these paths, evenly over the list; Missing if there is nothing to read."""
    try:
        found = listed(paths)
    except OSError as error:
        return Missing(f"what --data names cannot be read: {error.strerror or error}", "failed")
    chosen = tuple((file.path, file.size_bytes) for file in found.files if _is_text(file.path))
    if chosen:
        return DataFiles(chosen, empty=found.empty)
    return Missing(f"what --data names holds nothing to load: {found.why_none(1)}", "failed")


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
        shutil.rmtree(folder, ignore_errors=True)  # room for what ranks write beside it
        return Missing(f"files to load could not be made in TMPDIR: {error.strerror or error}", "failed")
    return DataFiles(tuple(made), made=True)


def _is_text(path: str) -> bool:
    """Whether a name can be told to other ranks: one that is not UTF-8 is left out."""
    return not any("\ud800" <= sign <= "\udfff" for sign in path)
