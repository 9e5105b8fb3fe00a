"""This rank's torch and device: whether it can run the probes, its errors, memory a probe may use, and time on it."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.facts.model.measurements import TorchView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.lazy import lazy_pattern
from gpudoctor.probes.runner.errors import Kind, meaning_of
from gpudoctor.probes.runner.messages import RankFailure, TorchSeen
from gpudoctor.probes.runner.rank_starter import visible_gpus

if TYPE_CHECKING:
    from gpudoctor.probes.runner.rank import Rank

OLDEST_TORCH = (2, 4)
_cuda: Any = torch.cuda  # not annotated everywhere
_OF_OTHERS_MIB = 2000.0  # the driver itself keeps up to 1.5 GB
_OF_CUDA_MIB = 3000.0  # what the CUDA context and NCCL hold besides torch's allocator, if the error does not state it
_OWN_USE = lazy_pattern(r"this process has ([0-9.]+) (MiB|GiB) memory in use")
_MIB = {"MiB": 1.0, "GiB": 1024.0}


class UnusableTorchError(Exception):
    """This torch cannot run the probes; the text says why and what to install."""


def torch_version(version: str = str(torch.__version__)) -> tuple[int, ...]:
    """Major and minor version of torch, by default of this one."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def too_old(version: str) -> str | None:
    """Why a torch of this version cannot run the probes; None if it is new enough."""
    if torch_version(version) >= OLDEST_TORCH:
        return None
    return f"torch {version} is too old for the probes: 2.4 or newer is needed"


def torch_view(rank: Rank) -> TorchView:
    """What torch reports about itself and, on a GPU rank, about the GPUs that CUDA opens for it."""
    cuda = torch.version.cuda
    uuids: tuple[str, ...] | Missing = () if cuda is None else Missing("CPU ranks do not open the GPUs")
    error: str | None = None
    if rank.on_gpu and cuda is not None:
        try:
            _cuda.init()  # if CUDA does not start, device_count() returns 0 without a reason
            uuids = _opened_uuids()
        except (RuntimeError, torch.cuda.DeferredCudaCallError) as failure:
            error = in_one_line(failure)
            uuids = Missing(error, "failed")
    nccl = None
    if cuda is not None and dist.is_available() and dist.is_nccl_available():
        nccl = ".".join(str(part) for part in _cuda.nccl.version())
    return TorchView(
        torch=str(torch.__version__),
        cuda=cuda,
        nccl=nccl,
        cuda_available=torch.cuda.is_available(),
        device_count=torch.cuda.device_count(),
        visible_uuids=uuids,
        error=error,
    )


def _opened_uuids() -> tuple[str, ...] | Missing:
    found = []
    for index in range(torch.cuda.device_count()):
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if uuid is None:
            return Missing("this torch does not tell UUIDs", "unsupported")
        found.append(str(uuid) if str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    return tuple(found)


def require_usable(rank: Rank, view: TorchView) -> None:
    """Raise UnusableTorchError or RuntimeError if this torch cannot do the job, or not on this rank's GPU."""
    why_old = too_old(view.torch)
    if why_old is not None:
        raise UnusableTorchError(why_old)
    if not dist.is_available():
        raise UnusableTorchError(f"this torch ({view.torch}) was built without torch.distributed")
    if not rank.on_gpu:
        return
    if view.cuda is None:
        raise UnusableTorchError(f"this torch ({view.torch}) has no CUDA: install a CUDA build of torch")
    if not dist.is_nccl_available():
        raise UnusableTorchError(f"this torch ({view.torch}) was built without NCCL")
    if view.error is not None:
        raise RuntimeError(view.error)
    expected, *others = visible_gpus(rank.number, rank.job.gpu_uuids, rank.job.probes)
    given = 1 + len(others)
    if not 1 <= view.device_count <= given:  # a device cgroup may hide the other ranks' GPUs from this process
        raise RuntimeError(f"torch sees {view.device_count} GPUs where CUDA_VISIBLE_DEVICES names {given} ({expected})")
    if isinstance(view.visible_uuids, tuple) and expected.startswith("GPU-") and view.visible_uuids[0] != expected:
        raise RuntimeError(f"torch opened {view.visible_uuids[0]} where {expected} was asked for")
    try:
        # Creates the context, which a GPU in exclusive mode refuses, and runs a kernel.
        float(torch.ones(1, device=rank.device).add(1))
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        major, minor = torch.cuda.get_device_capability()
        text = f"this torch ({view.torch}) has no code for a GPU of compute capability {major}.{minor}"
        rank.send(TorchSeen(msgspec.structs.replace(view, error=text)))
        raise UnusableTorchError(text) from error


def rank_failure(error: Exception, blocked: bool) -> RankFailure:
    """Classify an error by its text; `blocked`: it was raised while the rank waited for others.

    An error of the rank's own GPU often surfaces in a call that also waits for the other ranks. Only an
    unclassified error may have been caused by them.
    """
    text, whole = in_one_line(error), str(error)
    if isinstance(error, MemoryError):
        return RankFailure("out-of-memory", f"the host has no memory left ({text})", blocked=False)
    meaning = meaning_of(whole)
    if meaning is None:
        return RankFailure("error", text, blocked)
    kind: Kind = meaning.kind
    plain = meaning.plain
    if kind == "out-of-memory" and "the host" not in plain:
        others_mib = _held_by_others_mib(whole)
        if others_mib > _OF_OTHERS_MIB:
            kind, plain = "error", f"{others_mib / 1024:.1f} GiB of the GPU's memory are held by others"
    return RankFailure(
        kind, f"{plain} ({text})" if plain else text, blocked and kind == "error" and meaning.kind == kind
    )


def in_one_line(error: BaseException) -> str:
    """The most informative line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Last error:" in lines[:-1]:
        return f"NCCL: {lines[lines.index('Last error:') + 1]}"
    # gloo and c10 put the location in their source first
    line = re.sub(r"^\[(enforce fail at )?\S+:\d+\] ", "", lines[0])
    # torch's GPU number is not the one users know; what follows is about its allocator, or guesses
    line = re.sub(r"GPU \d+ has a total", "It has a total", line)
    return re.split(r" Including non-PyTorch| Of the allocated|\.? This is typically caused by ", line)[0]


def _held_by_others_mib(text: str) -> float:
    """Memory of this rank's GPU that other processes hold, in MiB; 0 if unknown."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0.0
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:
        return 0.0
    own_use = _OWN_USE.search(text)
    own_mib = float(own_use[1]) * _MIB[own_use[2]] if own_use else torch.cuda.memory_reserved() / 2**20 + _OF_CUDA_MIB
    return (total - free) / 2**20 - own_mib


def free_bytes(rank: Rank) -> int:
    """Free memory of this rank's GPU, after torch has released its cached blocks."""
    give_back(rank)
    return int(torch.cuda.mem_get_info()[0])


def give_back(rank: Rank) -> None:
    """Return torch's cached memory to the GPU, for the next probe or another rank."""
    gc.collect()
    if rank.on_gpu:
        torch.cuda.empty_cache()


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: torch has an exception class for a GPU, but only a text for pinned memory."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def power_of_two(limit: int, share_of: int) -> int:
    """The largest power of two within `share_of` and `limit`; at least 1.

    >>> power_of_two(256, 100), power_of_two(64, 1000)
    (64, 64)
    """
    return 1 << (max(1, min(limit, share_of)).bit_length() - 1)


def numbered(count: int, seed: int, device: torch.device) -> torch.Tensor:
    """An int32 pattern, equal on every device: each element identifies its position and, by `seed`, its sender."""
    # an odd factor, so that no two positions within 2^32 are equal; the product wraps as two's complement does
    return torch.arange(count, dtype=torch.int32, device=device) * 0x61C88647 + seed


class Lap(msgspec.Struct, frozen=True):
    """Milliseconds the device worked, until the host had enqueued everything, and until all was done.

    A GPU works from beginning to end. A CPU rank works only while it has a core: time that other
    processes had the core is not slowness of the rank.
    """

    worked_ms: float
    host_ms: float
    passed_ms: float


class Stopwatch:
    """Time of work on the device: CUDA events on a GPU, the thread's CPU time on a CPU."""

    def __init__(self, rank: Rank) -> None:
        self._start = mark() if rank.on_gpu else None
        self._start_cpu_ns = time.thread_time_ns()
        self._start_ns = time.monotonic_ns()

    def stop(self) -> Lap:
        host_ms = ms_since(self._start_ns)
        if self._start is None:
            return Lap((time.thread_time_ns() - self._start_cpu_ns) / 1e6, host_ms, host_ms)
        end = mark()
        end.synchronize()
        device_ms = float(self._start.elapsed_time(end))
        return Lap(device_ms, host_ms, device_ms)


def ms_since(start_ns: int) -> float:
    """Milliseconds since a reading of CLOCK_MONOTONIC."""
    return (time.monotonic_ns() - start_ns) / 1e6


def add_bytes(digest: hashlib._Hash, tensor: torch.Tensor) -> None:
    """Add a tensor's bytes, read from memory: torch exposes them only through numpy, which may be missing."""
    values = tensor.cpu().contiguous()
    digest.update((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))


def mark() -> Any:
    """A CUDA event that has the time at which the GPU comes by it, after all work enqueued so far."""
    event = _cuda.Event(enable_timing=True)
    event.record()
    return event


def copies_ms(target: torch.Tensor, source: torch.Tensor, copies: int) -> list[float]:
    """Time of each of `copies` copies in ms, all enqueued at once with an event between any two."""
    marks = [mark()]
    for _ in range(copies):
        target.copy_(source, non_blocking=True)
        marks.append(mark())
    marks[-1].synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(marks)]
