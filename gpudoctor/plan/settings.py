"""Batch, learning rate, bucket size, and the settings of NCCL and torch that help or harm on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import msgspec

from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.plan.machine import Machine, compute_capability
from gpudoctor.plan.memory import PlanJob, RankSplit
from gpudoctor.plan.rates import active_ports
from gpudoctor.plan.tensor_bytes import state_bytes


class Batch(msgspec.Struct, frozen=True):
    """Sequences of one step: `per_gpu` at a time, `accumulation` times, on each data-parallel rank."""

    per_gpu: int
    accumulation: int
    data_ranks: int
    global_batch: int
    tokens: int


class LearningRate(msgspec.Struct, frozen=True):
    """A factor on the learning rate that suits one GPU with the same batch at a time and no accumulation."""

    rule: str
    factor: float
    source: str


class Setting(msgspec.Struct, frozen=True):
    """An environment variable or argument, its value, and why."""

    name: str
    value: str
    why: str


def batch_of(job: PlanJob, split: RankSplit) -> Batch:
    """The batch of a job: global batch = batch at a time x accumulation x data-parallel ranks."""
    total = job.micro_batch * job.micro_batches * split.data
    return Batch(job.micro_batch, job.micro_batches, split.data, total, total * job.seq)


def learning_rates(batch: Batch) -> tuple[LearningRate, ...]:
    """How much more than on one GPU.

    Formula: k = global batch / batch at a time; linear: x k, square root: x sqrt(k). Both with warm-up.
    Source: Goyal et al. (arXiv:1706.02677) for SGD; Krizhevsky (arXiv:1404.5997) and Malladi et al.
    (arXiv:2205.10287) for Adam.
    """
    k = batch.global_batch / batch.per_gpu
    return (
        LearningRate("linear", k, "SGD: Goyal et al., arXiv:1706.02677"),
        LearningRate("square root", round(sqrt(k), 2), "Adam: Malladi et al., arXiv:2205.10287"),
    )


def bucket_of(job: PlanJob, split: RankSplit, measurements: Measurements | None) -> Setting | None:
    """DDP's bucket_cap_mb.

    Formula: the fastest that `train.bucket` measured here; else 25, and 50 if the gradients exceed 1 GB.
    Source: DistributedDataParallel's default of 25 MiB; Li et al. (arXiv:2006.15704) section 5: larger
    models do better with larger buckets.
    """
    if split.name != "ddp" or split.data == 1:
        return None
    training = measurements.training if measurements else None
    tried = [b for b in training.buckets if b.bucket_cap_mb > 0 and b.step_ms > 0] if training else []
    if tried:
        best = min(tried, key=lambda b: b.step_ms)
        return Setting("bucket_cap_mb", f"{best.bucket_cap_mb:g}", "the fastest that was measured here")
    gb = state_bytes(split.engine, job.precision, job.optimizer).gradients * job.shape.parameters / 1e9
    size = 50 if gb > 1 else 25
    why = f"{gb:.1f} GB of gradients; gpudoctor check train.bucket --level full measures it"
    return Setting("bucket_cap_mb", str(size), why)


def wanted_settings(machine: Machine, split: RankSplit, node: Node) -> Iterator[Setting]:
    """Environment variables that help with this topology and strategy.

    Source: PyTorch CUDA semantics (PYTORCH_CUDA_ALLOC_CONF), torchrun (OMP_NUM_THREADS), Megatron-LM
    (CUDA_DEVICE_MAX_CONNECTIONS), NCCL user guide (NCCL_SOCKET_IFNAME).
    """
    why = "less memory lost to fragments of the allocator"
    yield Setting("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", why)
    if cpus := known(node.host.cpus_usable):
        each = max(int(min(cpus, known(node.host.cpu_quota) or cpus) // machine.gpus_per_node), 1)
        # leave CPUs for the threads of the data loaders
        threads = max(min(each // 2, 16), 1)
        yield Setting("OMP_NUM_THREADS", str(threads), f"torchrun sets 1; there are {each} CPUs a GPU")
    capability = compute_capability(machine.gpus, machine.profile)
    if split.tensor > 1 and capability is not None and capability < 10:
        why = "starts tensor-parallel traffic before the arithmetic beside it"
        yield Setting("CUDA_DEVICE_MAX_CONNECTIONS", "1", why)
    if machine.nodes > 1 and (interface := _bootstrap_interface(node)) is not None:
        yield Setting("NCCL_SOCKET_IFNAME", interface, "the interface by which the nodes find each other")


def _switches_add(machine: Machine) -> bool:
    """Whether the NVSwitches sum up an all_reduce (NVLink SHARP): since the third generation, that of Hopper."""
    capability = compute_capability(machine.gpus, machine.profile) or 0
    node = machine.profile.node
    return node is not None and node.nvswitch and machine.nvlinked > 4 and capability >= 9.0


def harmful_settings(machine: Machine, node: Node) -> Iterator[Setting]:
    """Environment variables that must not be set here.

    Source: NCCL user guide, environment variables; gpudoctor explain env.nccl.
    """
    pairs = known(node.pairs) or ()
    p2p = machine.nvlinked > 1 or any(known(pair.p2p_read) == "OK" for pair in pairs)
    unread = not p2p and not machine.topology_read
    if machine.gpus_per_node > 1 and (p2p or unread):
        links = "NVLink" if machine.nvlinked > 1 else "NVLink or peer-to-peer" if unread else "peer-to-peer"
        where = ", if there is any" if unread else ""
        yield Setting("NCCL_P2P_DISABLE", "1", f"switches {links} off{where}")
    if machine.gpus_per_node > 1 and not p2p and not unread:
        yield Setting("NCCL_SHM_DISABLE", "1", "shared memory is the only way between these GPUs")
    if _switches_add(machine):
        yield Setting("NCCL_ALGO", "Ring", "nor NCCL_NVLS_ENABLE=0: all_reduce loses the sums in the switch")
    # NCCL reaches an EFA through a plugin, which this setting does not touch
    ports = [port for port in active_ports(node) if not port.is_efa]
    if machine.nodes > 1 and ports:
        yield Setting("NCCL_IB_DISABLE", "1", f"the {len(ports)} RDMA ports would not be used")
    yield Setting("NCCL_DEBUG", "INFO", "for a search only: it writes from every rank")
    yield Setting("CUDA_LAUNCH_BLOCKING", "1", "for a search only: nothing overlaps")


def _bootstrap_interface(node: Node) -> str | None:
    """The fastest Ethernet interface that is up; InfiniBand carries NCCL's data without being named."""
    up = [
        (known(i.speed_gbit_s) or 0.0, i.name)
        for i in known(node.network.interfaces) or ()
        if known(i.state) == "up" and i.name != "lo" and not i.name.startswith(("ib", "docker", "veth", "virbr"))
    ]
    return max(up)[1] if up else None
