"""Measurements made by hand, for ranks that sit one on each GPU of a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpudoctor.facts.model.measured_hardware import ComputeRank, Gemm, HostLink, PeerLink
from gpudoctor.facts.model.measurements import Launch, Measurements, RankInfo
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread, Telemetry
from tests.checks.one_check import uuid_of


def launched(node: Node, ranks: int | None = None) -> Launch:
    """Rank r on the r-th GPU; on a node without GPUs, CPU ranks."""
    if not node.gpus:
        count = ranks or 2
        return Launch("gloo", count, tuple(RankInfo(rank, "cpu") for rank in range(count)))
    infos = tuple(
        RankInfo(rank, "cuda", gpu.index, known(gpu.uuid), gpu.bus_id)
        for rank, gpu in enumerate(node.gpus[: ranks or len(node.gpus)])
    )
    return Launch("nccl", len(infos), infos)


def measured(node: Node, **facts: Any) -> Measurements:
    """Figures of ranks on this node; `ranks` if they are fewer than the GPUs."""
    return Measurements(launch=launched(node, facts.pop("ranks", None)), **facts)


def copied(*gb_s: float, **facts: Any) -> tuple[HostLink, ...]:
    """Host copies of each rank, as fast in both directions."""
    return tuple(HostLink(rank, 256 << 20, rate, rate, **facts) for rank, rate in enumerate(gb_s))


def matrix(count: int, gb_s: float, slow: dict[tuple[int, int], float] | None = None, **facts: Any) -> Any:
    """Copies between all ranks at one rate, but for the directions in `slow`."""
    facts.setdefault("p2p", True)
    return tuple(
        PeerLink(a, b, 256 << 20, (slow or {}).get((a, b), gb_s), **facts)
        for a in range(count)
        for b in range(count)
        if a != b
    )


def computed(rank: int, **facts: Any) -> ComputeRank:
    """A healthy H100's figures, but for `facts`; `tflops` of bf16 for short."""
    tflops = facts.pop("tflops", 720.0)
    healthy: dict[str, Any] = {
        "gemms": (Gemm("bf16", 8192, tflops, 2.0), Gemm("fp16", 8192, 700.0, 2.0)),
        "copy_gb_s": 2850.0,
        "triad_gb_s": 2950.0,
        "fingerprints": ("a" * 64,) * 5,
        "pattern_bytes": 68 << 30,
        "pattern_wrong_bytes": 0,
        "pattern_passes": 3,
        "multiprocessors": 132,
    }
    return ComputeRank(rank, **{**healthy, **facts})


def sampled(during: str, gpus: Sequence[dict[str, float]], **facts: Any) -> Telemetry:
    """What telemetry read of each GPU, by reading; UUIDs as in one_check."""
    spreads = [{name: Spread(value, value, value) for name, value in readings.items()} for readings in gpus]
    loads = (GpuUnderLoad(index, uuid_of(index), 20, read, **facts) for index, read in enumerate(spreads))
    return Telemetry(during, 5.0, tuple(loads))
