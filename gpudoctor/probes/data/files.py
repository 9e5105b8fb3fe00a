"""The files that the loaders read: a selection of the user's, or generated ones. Nothing is written elsewhere."""

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

WHOLE_FILE_BYTES = 1 << 20  # a file up to this size is one sample, like an image
PIECE_BYTES = 128 << 10  # sample size in a larger file, like a shard
_MADE_FILES, _MADE_BYTES = 256, 110_000  # the mean size of ImageNet's JPEGs
_SEED = 19


class DataFiles(msgspec.Struct, frozen=True):
    """Files with their sizes in bytes; `made`: gpudoctor wrote them; `empty`: number of files of 0 bytes left out."""

    files: tuple[tuple[str, int], ...]
    made: bool = False
    empty: int = 0

    @property
    def mean_sample_bytes(self) -> float:
        """The mean size of a sample if all files are equally likely."""
        return sum(sample_bytes(size) for _, size in self.files) / len(self.files)


def sample_bytes(file_bytes: int) -> int:
    """The size of one sample of a file."""
    return file_bytes if file_bytes <= WHOLE_FILE_BYTES else PIECE_BYTES


def chosen_files(paths: Iterable[str]) -> DataFiles | Missing:
    """An even selection of the regular files at and below these paths; Missing if there is nothing to read."""
    try:
        found = listed(paths)
    except OSError as error:
        return Missing(f"what --data names cannot be read: {error.strerror or error}", "failed")
    chosen = tuple((file.path, file.size_bytes) for file in found.files if _is_text(file.path))
    if chosen:
        return DataFiles(chosen, empty=found.empty)
    why = "names of files there are not UTF-8" if found.files else found.why_none(1)
    return Missing(f"what --data names holds nothing to load: {why}", "failed")


def made_files(folder: Path) -> DataFiles | Missing:
    """Write files of random bytes to `folder`, in the run's directory, which is removed however the run ends."""
    needed = 2 * _MADE_FILES * _MADE_BYTES
    draw = random.Random(_SEED)
    made = []
    try:
        space = os.statvfs(folder.parent)
        if space.f_blocks and space.f_bavail * space.f_frsize < needed:  # 0 blocks: tmpfs without a limit
            return Missing(f"files to load want {short_size(needed)} in TMPDIR, and there is less", "denied")
        folder.mkdir()
        for number in range(_MADE_FILES):
            path = folder / f"{number}.bin"
            path.write_bytes(draw.randbytes(_MADE_BYTES))
            made.append((str(path), _MADE_BYTES))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # leave room for other files of the ranks
        return Missing(f"files to load could not be made in TMPDIR: {error.strerror or error}", "failed")
    return DataFiles(tuple(made), made=True)


def _is_text(path: str) -> bool:
    """Whether a name is UTF-8, so that it can be sent to other ranks as JSON."""
    return not any("\ud800" <= sign <= "\udfff" for sign in path)
