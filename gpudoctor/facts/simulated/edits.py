"""How faults edit an immutable node: leaves of it, of a GPU, of pairs and PCIe hops; named patterns of such edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, GpuPair, PcieHop
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import S, put

Pattern = Callable[[Node, "Target"], Node]
# by name: what a list of leaves in faults.yaml cannot express
PATTERNS: dict[str, Pattern] = {}


class Target(msgspec.Struct, frozen=True):
    """The target of a fault, by NVML indices; the whole node if all are None. `seconds`: the duration, if specified."""

    gpu: int | None = None
    other: int | None = None
    link: int | None = None
    seconds: float | None = None


def pattern(name: str) -> Callable[[Pattern], Pattern]:
    """Make a function the pattern that `apply` in faults.yaml names."""

    def register(function: Pattern) -> Pattern:
        PATTERNS[name] = function
        return function

    return register


def each(node: Node, change: Callable[[Gpu], Gpu]) -> Node:
    return replace(node, gpus=tuple(change(gpu) for gpu in node.gpus))


def each_pair(node: Node, change: Callable[[GpuPair], GpuPair]) -> Node:
    if isinstance(node.pairs, Missing):
        return node
    return replace(node, pairs=tuple(change(pair) for pair in node.pairs))


def target_gpu(node: Node, target: Target) -> Gpu:
    return next(gpu for gpu in node.gpus if gpu.index == target.gpu)


def without_target(node: Node, target: Target) -> Node:
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
    return each(node, lambda gpu: put_on_gpu(gpu, leaves) if gpu.index == target.gpu else gpu)


def put_on_gpu(gpu: Gpu, leaves: Mapping[str, Any]) -> Gpu:
    """A copy with these leaves, but without counters and utilization that its model lacks: no fault brings them."""
    return put_all(gpu, {leaf: value for leaf, value in leaves.items() if not _not_counted(gpu, leaf)})


def _not_counted(gpu: Gpu, leaf: str) -> bool:
    value = attrgetter(leaf)(gpu) if leaf.startswith(("throttle_times.", "utilization.")) else None
    return isinstance(value, Missing) and value.kind == "unsupported"


def each_hop(gpu: Gpu, change: Callable[[int, PcieHop], PcieHop]) -> Gpu:
    """The GPU with every hop of its PCIe path changed; `change` gets the hop's position, 0 for the GPU itself."""
    if isinstance(gpu.pcie.path, Missing):
        return gpu
    return put(gpu, "pcie.path", tuple(change(place, hop) for place, hop in enumerate(gpu.pcie.path)))


def on_slot(gpu: Gpu, leaves: Mapping[str, Any]) -> Gpu:
    return each_hop(gpu, lambda place, hop: replace(hop, **leaves) if place < 2 else hop)
