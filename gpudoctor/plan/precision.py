"""Bytes per parameter of weights, gradients and optimizer states, by precision, optimizer and engine."""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["bf16", "fp16", "fp32", "bf16-true"]
Optimizer = Literal["adamw", "adamw-8bit", "momentum", "lion", "sgd"]

# autocast: DDP with fp32 weights; sharded: FSDP2 with fp32 shards; zero: DeepSpeed; megatron: bf16 weights and fp32
# gradients
Engine = Literal["autocast", "sharded", "zero", "megatron"]

_STATES = {"adamw": 2, "adamw-8bit": 2, "momentum": 1, "lion": 1, "sgd": 0}


class StateBytes(msgspec.Struct, frozen=True):
    """Bytes per parameter; `optimizer` includes a master copy if the weights are 16 bits wide."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def compute_bytes(precision: Precision) -> int:
    """Bytes of one activation value, and of one weight as the matrix products read it."""
    return 4 if precision == "fp32" else 2


def optimizer_bytes(optimizer: Optimizer, precision: Precision) -> float:
    """Optimizer states: bytes a parameter, without master weights.

    Formula: adamw 2 states, momentum and lion 1, sgd none; 4 bytes each, 2 with bf16-true (PyTorch makes
    states in the parameter's own type), 1 for adamw-8bit.
    Source: ZeRO (arXiv:1910.02054) section 3.1; torch.optim.AdamW; bitsandbytes (arXiv:2110.02861); Lion
    (arXiv:2302.06675).
    """
    each = 1 if optimizer == "adamw-8bit" else 2 if precision == "bf16-true" else 4
    return _STATES[optimizer] * each


def state_bytes(engine: Engine, precision: Precision, optimizer: Optimizer) -> StateBytes:
    """Weights, gradients and optimizer states: bytes a parameter, before any sharding.

    Formula, mixed precision with AdamW:
    autocast (DDP): fp32 weight 4 + its cached 16-bit copy 2, gradient 4, states 8: 18.
    sharded (FSDP2): fp32 shard 4, gradient 4, states 8: 16; the 16-bit copies are gathered layer by layer.
    zero (DeepSpeed): 16-bit weight 2, gradient 2, fp32 master 4 + states 8: 16.
    megatron: 16-bit weight 2, fp32 gradient 4, fp32 master 4 + states 8: 18.
    fp32: 4 + 4 + states. bf16-true: 2 + 2 + states.
    Source: ZeRO (arXiv:1910.02054) section 3.1 (16 bytes); Hugging Face transformers, "Model training
    anatomy" (6 + 4 + 8 with autocast); PyTorch, FSDP2 `MixedPrecisionPolicy`; Megatron-LM, "Distributed
    Optimizer" (18, and 6 + 12/d sharded).
    """
    states = optimizer_bytes(optimizer, precision)
    if precision == "fp32":
        return StateBytes(4, 4, states)
    if precision == "bf16-true":
        return StateBytes(2, 2, states)
    if engine == "autocast":
        return StateBytes(6, 4, states)
    if engine == "sharded":
        return StateBytes(4, 4, states)
    return StateBytes(2, 2 if engine == "zero" else 4, 4 + states)
