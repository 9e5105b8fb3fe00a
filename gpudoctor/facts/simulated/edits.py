"""Edit an immutable node: change one GPU, every GPU, every pair, or the hops of a PCIe path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, GpuPair, PcieHop
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.wiring import S, put


class Target(msgspec.Struct, frozen=True):
    """The target of a fault, by NVML indices; the whole node if all are None. `seconds`: the duration, if specified."""

    gpu: int | None = None
    other: int | None = None
    link: int | None = None
    seconds: float | None = None


Pattern = Callable[[Node, Target], Node]


def each(node: Node, change: Callable[[Gpu], Gpu]) -> Node:
    return replace(node, gpus=tuple(change(gpu) for gpu in node.gpus))


def each_pair(node: Node, change: Callable[[GpuPair], GpuPair]) -> Node:
    if isinstance(node.pairs, Missing):
        return node
    return replace(node, pairs=tuple(change(pair) for pair in node.pairs))


def struck_gpu(node: Node, target: Target) -> Gpu:
    return next(gpu for gpu in node.gpus if gpu.index == target.gpu)


def without_struck(node: Node, target: Target) -> Node:
    """The node without this GPU and its pairs."""
    node = replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.index != target.gpu))
    if isinstance(node.pairs, Missing):
        return node
    return replace(node, pairs=tuple(pair for pair in node.pairs if target.gpu not in (pair.a, pair.b)))


def put_all(struct: S, leaves: Mapping[str, Any]) -> S:
    """A copy with several leaves set, by dotted path; see `put`."""
    for leaf, value in leaves.items():
        struct = put(struct, leaf, value)
    return struct


def change(node: Node, target: Target, leaves: Mapping[str, Any]) -> Node:
    return each(node, lambda gpu: put_all(gpu, leaves) if gpu.index == target.gpu else gpu)


def each_hop(gpu: Gpu, change: Callable[[int, PcieHop], PcieHop]) -> Gpu:
    """The GPU with every hop of its PCIe path changed; `change` gets the hop's position, 0 for the GPU itself."""
    if isinstance(gpu.pcie.path, Missing):
        return gpu
    return put(gpu, "pcie.path", tuple(change(place, hop) for place, hop in enumerate(gpu.pcie.path)))


def on_slot(gpu: Gpu, leaves: Mapping[str, Any]) -> Gpu:
    return each_hop(gpu, lambda place, hop: replace(hop, **leaves) if place < 2 else hop)
