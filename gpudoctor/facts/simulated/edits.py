"""Small edits on an immutable node: the same change to one GPU, to every GPU, to every pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.wiring import put


class Target(msgspec.Struct, frozen=True):
    """What a fault strikes: nothing said is the whole node; NVML indices. `seconds`: for how long, if that was said."""

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


def change(node: Node, target: Target, leaves: Mapping[str, Any]) -> Node:
    for leaf, value in leaves.items():
        node = each(node, lambda g, leaf=leaf, value=value: put(g, leaf, value) if g.index == target.gpu else g)  # type: ignore[misc]
    return node


def on_slot(gpu: Gpu, leaves: Mapping[str, Any]) -> Gpu:
    if isinstance(gpu.pcie.path, Missing):
        return gpu
    path = tuple(replace(hop, **leaves) if place < 2 else hop for place, hop in enumerate(gpu.pcie.path))
    return put(gpu, "pcie.path", path)
