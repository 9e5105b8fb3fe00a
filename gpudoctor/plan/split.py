"""How a model is divided over GPUs."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.plan.precision import Engine

StrategyName = Literal["ddp", "zero1", "zero2", "fsdp", "fsdp-offload", "tensor", "pipeline", "3d"]
Sharding = Literal["none", "optimizer", "gradients", "parameters"]

TITLES: dict[StrategyName, str] = {
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP (ZeRO-3)",
    "fsdp-offload": "FSDP, states in host RAM",
    "tensor": "Tensor parallel",
    "pipeline": "Pipeline (1F1B)",
    "3d": "3D (tensor x pipeline x data)",
}


def model_split_name(tensor: int, pipeline: int) -> Literal["tensor", "pipeline", "3d"]:
    """The name of a split of the model itself; at least one of the two must be more than 1."""
    if tensor > 1 and pipeline > 1:
        return "3d"
    return "tensor" if pipeline == 1 else "pipeline"


class RankSplit(msgspec.Struct, frozen=True):
    """data x tensor x pipeline ranks; groups of `shards` data-parallel ranks share the states that `sharding` names.

    Fewer shards than data ranks: FSDP inside each node, replicas between them (HSDP).
    """

    name: StrategyName
    data: int
    tensor: int = 1
    pipeline: int = 1
    sharding: Sharding = "none"
    shards: int = 1
    offload: bool = False
    engine: Engine = "autocast"

    @property
    def world(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def communicators(self) -> int:
        """The number of NCCL communicators of one rank: one for each kind of parallelism, two if FSDP replicates."""
        replicated = self.sharding == "parameters" and self.shards < self.data
        return sum((self.data > 1, self.tensor > 1, self.pipeline > 1, replicated))

    @property
    def title(self) -> str:
        if self.name == "ddp" and self.data == 1:
            return "One GPU"
        if self.name == "fsdp" and self.shards < self.data:
            return f"FSDP over {self.shards}, {self.data // self.shards} replicas (HSDP)"
        if self.name in ("tensor", "pipeline", "3d"):
            parts = ((self.tensor, "tensor"), (self.pipeline, "pipeline"), (self.data, "data"))
            words = " x ".join(f"{word} {ways}" for ways, word in parts if ways > 1)
            if not words:
                return TITLES[self.name]
            return f"{'3D' if self.name == '3d' else TITLES[self.name]}: {words}"
        return TITLES[self.name]
