"""A torch DataLoader over files: the files, its data set, its workers, and the rate at which it delivers batches.

The files are a selection of the user's, or generated ones. Nothing is written elsewhere.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import torch
from torch.utils import data as torchs

from gpudoctor.facts.model.measured_hardware import LoaderRates
from gpudoctor.facts.model.missing import Missing
from gpudoctor.lazy import lazy_pattern
from gpudoctor.probes.runner.torch_device import in_one_line
from gpudoctor.probes.storage import page_cache
from gpudoctor.probes.storage.listing import listed
from gpudoctor.process.die_with_parent import die_with_parent
from gpudoctor.text.units import short_size

WHOLE_FILE_BYTES = 1 << 20  # a file up to this size is one sample, like an image
PIECE_BYTES = 128 << 10  # sample size in a larger file, like a shard
_MADE_FILES, _MADE_BYTES = 256, 110_000  # the mean size of ImageNet's JPEGs
_SEED = 19
BATCH = 32
PREFETCH = 2  # batches a worker prepares ahead: torch's own default
SHM = "/dev/shm"
_BATCH_LIMIT_S = 30.0
_WARM_UP_S = 1.0
_LEAST_BATCHES = 2
_MANY = 1 << 40  # length of the sampler: more samples than any run takes
_PIDS = lazy_pattern(r" \(pid(?:\(s\))? [\d, ]+\)")

_torchs: Any = torchs  # not annotated everywhere


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


class LoadedBatch(NamedTuple):
    """A worker's batch: the bytes of all its samples concatenated, and counts of what was read.

    `why`: why a sample is unreadable. `cpus`: number of CPUs the reading process may run on.
    """

    data: torch.Tensor
    samples: int
    unreadable: int
    why: str | None
    cpus: int


class Seen:
    """Totals over all samples that this rank requested; `cpus`: the fewest CPUs of any process that read them."""

    def __init__(self) -> None:
        self.samples = self.unreadable = 0
        self.why: str | None = None
        self.cpus = len(os.sched_getaffinity(0))

    def take(self, batch: LoadedBatch) -> None:
        self.samples += batch.samples + batch.unreadable
        self.unreadable += batch.unreadable
        self.why = self.why or batch.why
        self.cpus = min(self.cpus, batch.cpus)


class _Samples(_torchs.Dataset):  # type: ignore[misc]
    """A sample is the bytes of a file, or of a random piece of a large file; a str: why it could not be read."""

    def __init__(self, files: DataFiles) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files.files)

    def __getitem__(self, index: int) -> torch.Tensor | str:
        path, size = self._files.files[index]
        length = sample_bytes(size)
        begin = 0 if length == size else random.randrange(0, size - length + 1)
        found = bytearray(length)
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - the name is text
                if not self._files.made:  # what another step has read must come from storage again
                    page_cache.drop_range(file.fileno(), begin, length)
                file.seek(begin)
                if file.readinto(found) != length:
                    return "it became shorter"
        except OSError as error:
            return error.strerror or type(error).__name__
        return torch.frombuffer(found, dtype=torch.uint8)


def _collated(samples: list[torch.Tensor | str]) -> LoadedBatch:
    read = [sample for sample in samples if isinstance(sample, torch.Tensor)]
    why = next((sample for sample in samples if isinstance(sample, str)), None)
    joined = torch.cat(read) if read else torch.empty(0, dtype=torch.uint8)
    return LoadedBatch(joined, len(read), len(samples) - len(read), why, len(os.sched_getaffinity(0)))


def counted(samples: list[torch.Tensor | str]) -> LoadedBatch:
    """Collate a batch without its bytes, which needs no /dev/shm."""
    return _collated(samples)._replace(data=torch.empty(0, dtype=torch.uint8))


def _begin_worker(rank_pid: int, _worker: int) -> None:
    die_with_parent(rank_pid)  # torch itself checks the parent only every 5 s


def socket_name_bytes(tmpdir: Path) -> int | Missing:
    """The length of the path of a socket that multiprocessing creates in TMPDIR."""
    # looked up, not imported, since this package must not import multiprocessing; torch already has
    if hasattr(sys.modules.get("multiprocessing.util"), "_get_base_temp_dir"):
        return Missing("this Python turns to another folder if the name of TMPDIR is too long")
    return len(os.fsencode(tmpdir / "pymp-12345678" / "listener-12345678"))


@contextmanager
def short_sockets(folder: Path) -> Iterator[None]:
    """Put the sockets through which workers hand over batches into this folder, under a short path.

    If TMPDIR has a long path, batches are lost and the loader waits forever: see `socket_name_bytes`.
    """
    before = tempfile.tempdir
    with page_cache.opened(str(folder), os.O_DIRECTORY) as descriptor:
        tempfile.tempdir = f"/proc/{os.getpid()}/fd/{descriptor}"
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextmanager
def batches(
    files: DataFiles,
    rank: int,
    workers: int,
    *,
    pin: bool = False,
    collate: Callable[[list[torch.Tensor | str]], LoadedBatch] = _collated,
) -> Iterator[Iterator[LoadedBatch]]:
    """Endless batches of a loader in random order; the workers have ended when the block is left."""
    draw = torch.Generator().manual_seed(rank)
    options: dict[str, Any] = {}
    if workers:
        options = {
            "timeout": _BATCH_LIMIT_S,
            "prefetch_factor": PREFETCH,
            "worker_init_fn": functools.partial(_begin_worker, os.getpid()),
            "multiprocessing_context": "fork",  # the default on Linux up to Python 3.13, and what trainings use
        }
    data = _Samples(files)
    sampler = _torchs.RandomSampler(data, replacement=True, num_samples=_MANY, generator=draw)
    loader = _torchs.DataLoader(
        data, BATCH, sampler=sampler, num_workers=workers, collate_fn=collate, pin_memory=pin, **options
    )
    given = iter(loader)
    try:
        yield given
    finally:
        if workers:
            given._shutdown_workers()  # as its __del__ does, but at a known time


def loader_rate(
    files: DataFiles,
    rank: int,
    workers: int,
    for_s: float,
    seen: Seen,
    *,
    pin: bool = False,
    use: Callable[[torch.Tensor], object],
) -> LoaderRates | Missing:
    """Measure one rank's loader for `for_s` seconds, after its prefetched batches are used up; Missing: why it failed.

    `use` is called with the bytes of each batch (a copy to the GPU); every batch is counted in `seen`.
    """
    shm_before, shm_most = _shm_used_bytes(), 0
    began_s = monotonic()
    samples = size = taken = 0
    try:
        with batches(files, rank, workers, pin=pin) as given:
            seen.take(next(given))
            first_batch_s = monotonic() - began_s
            for _ in range(PREFETCH * workers):
                if monotonic() - began_s > first_batch_s + _WARM_UP_S:
                    break
                seen.take(next(given))
            counted_from_s = monotonic()
            while taken < _LEAST_BATCHES or monotonic() - counted_from_s < for_s:
                batch = next(given)
                use(batch.data)
                seen.take(batch)
                taken, samples, size = taken + 1, samples + batch.samples, size + batch.data.numel()
                shm_now = _shm_used_bytes()
                if isinstance(shm_before, int) and isinstance(shm_now, int):
                    shm_most = max(shm_most, shm_now - shm_before)
            passed_s = monotonic() - counted_from_s
    except (RuntimeError, OSError) as error:
        return Missing(why_no_batch(error), "failed")
    gb_s = size / passed_s / 1e9
    shm = shm_before if isinstance(shm_before, Missing) else shm_most
    return LoaderRates(samples / passed_s, gb_s, gb_s, first_batch_s, shm)


def why_no_batch(error: RuntimeError | OSError) -> str:
    """The error in one line, without process ids; with /dev/shm, where semaphores are, if a full disk is not named."""
    text = _PIDS.sub("", in_one_line(error))
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC or error.filename is not None:
        return text
    space = shm_space()
    if isinstance(space, Missing):
        return text
    return f"{text} (free in {SHM}: {short_size(space.f_bavail * space.f_frsize)})"


def shm_space() -> os.statvfs_result | Missing:
    """The file system at /dev/shm; Missing if it cannot be read, or has no size of its own."""
    try:
        space = os.statvfs(SHM)
    except OSError as error:
        return Missing(f"{SHM}: {error.strerror}", "failed")
    # tmpfs with size=0 reports 0 blocks, and 0 used ones
    return space if space.f_blocks else Missing(f"{SHM} has no size: RAM is its limit", "unsupported")


def _shm_used_bytes() -> int | Missing:
    space = shm_space()
    return space if isinstance(space, Missing) else (space.f_blocks - space.f_bfree) * space.f_frsize
