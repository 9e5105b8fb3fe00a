"""Whether this torch can run the probes, and the classification of its errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.facts.model.measurements import TorchView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.error_texts import Kind, meaning_of
from gpudoctor.probes.runner.messages import RankFailure, TorchSeen
from gpudoctor.probes.runner.rank_starter import visible_gpus

if TYPE_CHECKING:
    from gpudoctor.probes.runner.rank import Rank

OLDEST_TORCH = (2, 4)
_cuda: Any = torch.cuda  # not annotated everywhere


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
    wanted = rank.job.gpu_uuids[rank.number]
    given = len(visible_gpus(rank.number, rank.job.gpu_uuids, rank.job.probes))
    if view.error is not None:
        raise RuntimeError(view.error)
    if not 1 <= view.device_count <= given:  # a device cgroup may hide the other ranks' GPUs from this process
        raise RuntimeError(f"torch sees {view.device_count} GPUs where CUDA_VISIBLE_DEVICES names {given} ({wanted})")
    if isinstance(view.visible_uuids, tuple) and wanted.startswith("GPU-") and view.visible_uuids[0] != wanted:
        raise RuntimeError(f"torch opened {view.visible_uuids[0]} where {wanted} was asked for")
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


_OF_OTHERS_MIB = 2000.0  # the driver itself keeps up to 1.5 GB
_OF_CUDA_MIB = 3000.0  # what the CUDA context and NCCL hold besides torch's allocator, if the error does not state it
_OWN_USE = re.compile(r"this process has ([0-9.]+) (MiB|GiB) memory in use")
_MIB = {"MiB": 1.0, "GiB": 1024.0}


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
