"""Which GPU each of the processes has that an engine has started on this node."""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.checks.env.cuda_device_list import resolve
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Node


def seated_gpus(node: Node, visible: Sequence[str | None]) -> tuple[Gpu, ...] | str:
    """The GPU of each rank, from CUDA_VISIBLE_DEVICES of each process; else why they have not one each, in words.

    srun may give every task a GPU of its own, while torchrun shows all of them to all: there the
    n-th process has the n-th.
    """
    order = node.environment.get("CUDA_DEVICE_ORDER")
    indices: list[int] = []
    for rank, setting in enumerate(visible):
        seen = resolve(setting, node.gpus, order).visible
        at = 0 if len(seen) == 1 else rank
        indices += seen[at : at + 1]
    if len(set(indices)) < len(visible):
        return (
            f"as far as the first of them can see, they have {len(set(indices))} GPUs: one a rank is needed, and "
            "where each is shut in with its own, srun --gpu-bind=none opens them"
        )
    return tuple(gpu for index in indices for gpu in node.gpus if gpu.index == index)
