"""The ranks that measured: how many, on which GPUs, and their names in texts."""

from __future__ import annotations

from collections.abc import Iterable

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.subject import NODE, Subject, of_rank
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import RankInfo


def on_gpus(case: Case) -> bool:
    """Whether the ranks ran on GPUs."""
    launch = case.measurements.launch
    return launch is not None and (launch.backend == "nccl" or any(r.device == "cuda" for r in launch.ranks))


def rank_count(case: Case) -> int:
    """The number of ranks that took part."""
    return case.measurements.launch.world_size if case.measurements.launch else 0


def ranks_in_words(case: Case, count: int) -> str:
    """Text for the ranks that measured: "2 CPU ranks (gloo)", "8 GPUs"."""
    if on_gpus(case):
        return "1 GPU" if count == 1 else f"{count} GPUs"
    backend = case.measurements.launch.backend if case.measurements.launch else "gloo"
    return f"{count} CPU rank{'s' if count != 1 else ''} ({backend})"


def ranks_of(case: Case) -> list[int]:
    """The numbers of the ranks that told where they ran."""
    launch = case.measurements.launch
    return [info.rank for info in launch.ranks] if launch else []


def rank_info(case: Case, rank: int | None) -> RankInfo | None:
    launch = case.measurements.launch
    return next((info for info in launch.ranks if info.rank == rank), None) if launch else None


def rank_gpu(case: Case, rank: int | None) -> Gpu | None:
    """The rank's GPU, found by UUID, then by bus id: CUDA's index in the rank is not NVML's."""
    info = rank_info(case, rank)
    if info is None or info.device != "cuda":
        return None
    for gpu in case.node.gpus:
        if (info.uuid is not None and gpu.uuid == info.uuid) or (info.bus_id is not None and gpu.bus_id == info.bus_id):
            return gpu
    return next((g for g in case.node.gpus if info.uuid is None and info.bus_id is None and g.index == info.gpu), None)


def gpus_of(case: Case, ranks: Iterable[int]) -> list[Gpu]:
    """The GPUs of these ranks, as far as they are known."""
    return [gpu for rank in ranks if (gpu := rank_gpu(case, rank)) is not None]


def rank_subject(case: Case, rank: int | None) -> Subject:
    """The rank with its GPU; the node if it is no rank of its own."""
    if rank is None:
        return NODE
    info = rank_info(case, rank)
    gpu = rank_gpu(case, rank)
    return of_rank(rank, gpu.index if gpu else None, info.uuid if info else None)
