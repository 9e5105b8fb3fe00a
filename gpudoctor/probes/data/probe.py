"""The data probe: a real DataLoader on every rank at the same time, with increasing numbers of workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic

import msgspec
import torch

from gpudoctor.facts.model.measured_hardware import DataLoading, LoaderCopies, LoaderStep
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.virtualization import read_cpuset
from gpudoctor.probes.data.loader import (
    BATCH,
    PREFETCH,
    DataFiles,
    Seen,
    batches,
    chosen_files,
    counted,
    loader_rate,
    made_files,
    shm_space,
    short_sockets,
    socket_name_bytes,
    why_no_batch,
)
from gpudoctor.probes.runner.messages import LeftOut, LoaderSample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.storage.page_cache import may_stay_in_ram
from gpudoctor.process.die_with_parent import die_with_parent
from gpudoctor.process.ending import kill_all
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.pipes import Bounded, pipe_with_child, read_to_end, write_all
from gpudoctor.text.units import short_size

_FOR_S_GPU, _FOR_S_CPU = 1.5, 0.5
_MOST_WORKERS = 32
_KILL_GRACE_S = 1.0
_MOST_ANSWER_BYTES = 64 << 20  # 4096 names
_SHM_SHARE = 0.5  # of what is free: others on the node use it too
_CPU_RANKS = Missing("CPU ranks have no GPU to copy to")


class _SharedFiles(msgspec.Struct, frozen=True):
    """Rank 0's result for all ranks: the files, or why there are none; and why they might be served from RAM."""

    files: DataFiles | None = None
    why: Missing | None = None
    perhaps_in_ram: Missing | None = None


def run_data(rank: Rank) -> None:
    """Measure the loaders of all ranks together and send one LoaderSample each; otherwise rank 0 sends the reason."""
    rank.phase("look for files to load", "data")
    shared = _shared_files(rank)
    with short_sockets(Path(rank.job.folder)):
        found = shared.why if shared.files is None else _loading(rank, shared.files, shared.perhaps_in_ram)
    found = found or Missing("rank 0 found no files", "failed")
    if not isinstance(found, Missing):
        rank.send(LoaderSample(found))
    elif rank.number == 0:
        rank.send(LeftOut("data", found))


def _loading(rank: Rank, files: DataFiles, perhaps_in_ram: Missing | None) -> DataLoading | Missing:
    shm = shm_space()
    shm_bytes = shm if isinstance(shm, Missing) else shm.f_blocks * shm.f_frsize
    shm_free_bytes = shm if isinstance(shm, Missing) else shm.f_bavail * shm.f_frsize
    seen = Seen()
    for_s = _FOR_S_GPU if rank.on_gpu else _FOR_S_CPU
    if (why := _first_batch(rank, files)) is not None:
        return why
    steps = []
    for workers in _worker_counts(rank):
        needed = round(workers * PREFETCH * BATCH * files.mean_sample_bytes) * rank.world_size
        rank.phase(f"data loader with {workers} workers a rank")
        rank.barrier()
        if isinstance(shm_free_bytes, int) and needed > _SHM_SHARE * shm_free_bytes:
            held = f"its batches hold {short_size(needed)} of /dev/shm, of which {short_size(shm_free_bytes)} are free"
            steps.append(LoaderStep(workers, None, Missing(held, "denied"), needed))
        else:
            use = partial(_use_on_cpu, rank, workers)
            found = loader_rate(files, rank.number, workers, for_s, seen, use=use)
            rates, why_not = (None, found) if isinstance(found, Missing) else (found, None)
            steps.append(LoaderStep(workers, rates, why_not, needed))
        rank.barrier()
    copies = _copies(rank, files, steps, for_s, seen) if rank.on_gpu else _CPU_RANKS
    return DataLoading(
        device="cuda" if rank.on_gpu else "cpu",
        world_size=rank.world_size,
        # JSON cannot represent a name that is not UTF-8
        paths=() if files.made else tuple(path.encode("utf-8", "replace").decode() for path in rank.job.data),
        files=len(files.files),
        batch=BATCH,
        sample_bytes=files.mean_sample_bytes,
        steps=tuple(steps),
        copies=None if isinstance(copies, Missing) else copies,
        no_copies=copies if isinstance(copies, Missing) else None,
        cpus=(seen.cpus,),
        cpus_total=os.cpu_count() or Missing("os.cpu_count() does not say", "failed"),
        cpuset_cpus=read_cpuset(Path("/")),
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        samples=seen.samples,
        unreadable=seen.unreadable,
        unreadable_why=seen.why,
        empty_files=files.empty,
        perhaps_in_ram=perhaps_in_ram,
        socket_name_bytes=socket_name_bytes(Path(rank.job.folder).parent),
    )


def _shared_files(rank: Rank) -> _SharedFiles:
    """The files that rank 0 has found or generated, the same on every rank."""
    shared = Path(rank.job.folder) / "data.json"
    if rank.number == 0:
        found = look_in_time(rank.job.data) if rank.job.data else _as_shared(made_files(Path(rank.job.folder) / "data"))
        shared.write_bytes(msgspec.json.encode(found))
    rank.barrier()
    return msgspec.json.decode(shared.read_bytes(), type=_SharedFiles)


def look_in_time(paths: Sequence[str], limit_s: float = 20.0) -> _SharedFiles:
    """Look for files in a forked process, which can be abandoned if a dead mount blocks it."""
    answer = Bounded(_MOST_ANSWER_BYTES)
    with pipe_with_child("writes") as (own, other):
        process = ForkedProcess(partial(_look, other, paths))
    try:
        in_time = read_to_end({own: answer.take}, monotonic() + limit_s)
    finally:
        kill_all([process], _KILL_GRACE_S, group=False)
        os.close(own)
    if not in_time:
        return _SharedFiles(why=Missing(f"what --data names did not answer within {limit_s:g} s", "failed"))
    try:
        return msgspec.json.decode(bytes(answer), type=_SharedFiles)
    except msgspec.DecodeError:
        return _SharedFiles(why=Missing("the process that looked for files ended without an answer", "failed"))


def _look(pipe: int, paths: Sequence[str]) -> None:
    die_with_parent()
    found = _as_shared(chosen_files(paths))
    if found.files is not None:
        found = msgspec.structs.replace(found, perhaps_in_ram=_perhaps_in_ram(found.files))
    write_all(pipe, msgspec.json.encode(found))


def _perhaps_in_ram(files: DataFiles) -> Missing | None:
    """Check the largest file of each file system; an uncertain case takes precedence over data known to be in RAM."""
    largest: dict[int, str] = {}
    for path, _ in sorted(files.files, key=lambda file: file[1]):
        with suppress(OSError):  # the file has vanished
            largest[os.stat(path).st_dev] = path  # noqa: PTH116 - many of them
    reasons = [why for file in largest.values() if (why := may_stay_in_ram(file)) is not None]
    return min(reasons, key=lambda why: why.kind != "failed", default=None)


def _as_shared(found: DataFiles | Missing) -> _SharedFiles:
    return _SharedFiles(why=found) if isinstance(found, Missing) else _SharedFiles(found)


def _first_batch(rank: Rank, files: DataFiles) -> Missing | None:
    """Why a rank gets no batch, or None. Read by a worker, which can be abandoned if storage does not answer."""
    rank.phase("first batch of a data loader")
    why: Missing | None = None
    seen = Seen()
    try:
        with batches(files, rank.number, 1, collate=counted) as given:
            seen.take(next(given))
    except (RuntimeError, OSError) as error:
        why = Missing(f"the loader gave no batch: {why_no_batch(error)}", "failed")
    if why is None and seen.unreadable == seen.samples:
        why = Missing(f"not one of {seen.samples} files could be read: {seen.why}", "failed")
    return None if rank.smallest(int(why is None)) else why or Missing("the loader of a rank gave no batch", "failed")


def _worker_counts(rank: Rank) -> Iterator[int]:
    """0, 2, 4, 8 ... up to a rank's share of the usable CPUs, but at least 2; the same on every rank."""
    most = min(_MOST_WORKERS, max(2, rank.smallest(len(os.sched_getaffinity(0))) // rank.world_size))
    workers = 2
    yield 0
    while workers <= most:
        yield workers
        workers *= 2


def _copies(rank: Rank, files: DataFiles, steps: list[LoaderStep], for_s: float, seen: Seen) -> LoaderCopies | Missing:
    """Rates of loading and copying to the GPU, pageable and pinned, with the fastest number of workers on rank 0."""
    rates = {step.workers: step.rates.gb_s for step in steps if step.rates is not None}
    workers = rank.from_rank_zero(max(rates, key=lambda count: rates[count], default=0))
    rank.phase(f"data loader with {workers} workers a rank, to the GPU")
    found: list[float] = []
    why: Missing | None = None
    for pin in (False, True):
        rank.barrier()
        rate = loader_rate(files, rank.number, workers, for_s, seen, pin=pin, use=lambda data: _to_device(rank, data))
        if isinstance(rate, Missing):
            why = rate
        else:
            found.append(rate.gb_s)
    return LoaderCopies(workers, *found) if why is None else why


def _use_on_cpu(rank: Rank, workers: int, data: torch.Tensor) -> None:
    """A step without copies does nothing with a batch."""
    if workers:
        rank.fail_if_injected("data")


def _to_device(rank: Rank, data: torch.Tensor) -> None:
    data.to(rank.device, non_blocking=True)  # from pageable memory it blocks anyway
