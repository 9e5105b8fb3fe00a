"""The link probe: bandwidth and correctness of copies between host and GPU and between GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
import torch

from gpudoctor.facts.model.measured_hardware import HostLink
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.sysfs import parse_cpu_list
from gpudoctor.probes.link.peer_copies import measure_peers
from gpudoctor.probes.runner.messages import LinkSample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import copies_ms, free_bytes, give_back, numbered, out_of_memory, power_of_two
from gpudoctor.text.units import MIB

# nvbandwidth's method: warm-up copies, then the timed ones, of which the median counts
_WARM_UP, _TIMED = 4, 16
_LARGEST, _SMALLEST = 256 * MIB, 16 * MIB

_DEVICES = Path("/sys/bus/pci/devices")


def run_links(rank: Rank) -> None:
    """Measure this rank's links, and send one LinkSample; an empty one from a CPU rank."""
    rank.phase("prepare links", "link")
    if not rank.on_gpu:
        rank.send(LinkSample())
        return
    with _near_its_gpu(rank) as near:
        host = _host_link(rank, near)
    give_back(rank)
    peers, no_peers = measure_peers(rank)
    give_back(rank)
    rank.send(LinkSample(host, peers, no_peers))


class _Buffers(msgspec.Struct, frozen=True):
    """Host buffer that is copied, its target on the GPU, and the host buffer it returns to."""

    sent: torch.Tensor
    device: torch.Tensor
    returned: torch.Tensor


def _host_link(rank: Rank, near: bool | Missing) -> HostLink:
    buffers = _buffers(rank)
    rank.phase("copies between host and GPU, one GPU at a time")
    for turn in range(rank.world_size):
        if turn == rank.number:
            alone = _rates(buffers)
        rank.barrier()  # on the CPU, so that the other GPUs are idle meanwhile
    one = Missing("one GPU: there are no others to copy at the same time")
    together: tuple[float | Missing, float | Missing] = one, one
    if rank.world_size > 1:
        rank.phase("copies between host and GPU, all at once")
        rank.barrier()
        together = _rates(buffers)
    rank.phase("verify copies")
    # the GPU buffer is cleared first, so that matching bytes must have gone both ways
    buffers.device.zero_()
    buffers.device.copy_(buffers.sent)
    buffers.returned.zero_()
    buffers.returned.copy_(buffers.device)
    rank.synchronize()
    wrong = int((buffers.returned.view(torch.uint8) != buffers.sent.view(torch.uint8)).sum())
    return HostLink(
        rank=rank.number,
        size_bytes=buffers.sent.nbytes,
        h2d_alone_gb_s=alone[0],
        d2h_alone_gb_s=alone[1],
        h2d_together_gb_s=together[0],
        d2h_together_gb_s=together[1],
        wrong_bytes=wrong,
        near_cpus=near,
    )


def _buffers(rank: Rank) -> _Buffers:
    """Buffers as large as GPU and host memory allow, equally large on all ranks."""
    # a tenth of the free memory: each rank has two pinned buffers, and pinned memory cannot be swapped out
    of_host = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10 // rank.world_size
    size = max(_SMALLEST, power_of_two(_LARGEST, rank.smallest(min(of_host, free_bytes(rank) // 4))))
    while True:
        buffers = _allocated(rank, size)
        if rank.smallest(int(buffers is not None)) and buffers is not None:
            return buffers
        if size <= _SMALLEST:
            raise RuntimeError(f"out of memory: not even {2 * size // MIB} MiB of pinned host memory were to be had")
        buffers = None
        size //= 2


def _allocated(rank: Rank, size: int) -> _Buffers | None:
    count = size // 4
    try:
        sent = torch.empty(count, dtype=torch.int32, pin_memory=True)
        returned = torch.empty(count, dtype=torch.int32, pin_memory=True)
        device = torch.empty(count, dtype=torch.int32, device=rank.device)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return None
    sent.copy_(numbered(count, rank.number, torch.device("cpu")))
    return _Buffers(sent, device, returned)


def _rates(buffers: _Buffers) -> tuple[float, float]:
    """GB/s to the GPU, and back."""
    return _copy_gb_s(buffers.device, buffers.sent), _copy_gb_s(buffers.returned, buffers.device)


def _copy_gb_s(target: torch.Tensor, source: torch.Tensor) -> float:
    for _ in range(_WARM_UP):
        target.copy_(source, non_blocking=True)
    return float(source.nbytes / median(copies_ms(target, source, _TIMED)) / 1e6)


@contextmanager
def _near_its_gpu(rank: Rank) -> Iterator[bool | Missing]:
    """Run on the CPUs next to this rank's GPU, so that pinned memory is local to it; yields whether that is possible.

    From another socket the figure would be that of the link between the sockets.
    """
    allowed = os.sched_getaffinity(0)
    near = _near_cpus(rank)
    if isinstance(near, Missing) or not near & allowed:
        yield near if isinstance(near, Missing) else False
        return
    os.sched_setaffinity(0, near & allowed)
    try:
        yield True
    finally:
        os.sched_setaffinity(0, allowed)


def _near_cpus(rank: Rank) -> frozenset[int] | Missing:
    _, _, bus_id = rank.job.gpus[rank.number]
    path = _DEVICES / bus_id / "local_cpulist"
    try:
        cpus = parse_cpu_list(path.read_text())
    except OSError as error:
        return Missing(f"{path}: {error.strerror}")
    return cpus if cpus else Missing(f"{path} names no CPUs")
