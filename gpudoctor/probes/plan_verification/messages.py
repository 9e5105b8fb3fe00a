"""The order of `gpudoctor plan --try` to the ranks, and the figures each of them reports."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.probes.strategies.transformer_shape import TransformerShape


class VerificationOrder(msgspec.Struct, frozen=True):
    """A few steps of one strategy on data x tensor x pipeline ranks; tensor ranks are nearest to each other.

    `layers_of_stages`: number of layers of each pipeline stage. A step is `micro_batches` of `micro_batch`
    sequences of `seq` tokens on each data-parallel rank. `sharded`: by FSDP over the data-parallel ranks.
    """

    model: TransformerShape
    data: int
    tensor: int
    pipeline: int
    layers_of_stages: tuple[int, ...]
    sharded: bool
    offload: bool
    precision: Literal["bf16", "fp16", "fp32", "bf16-true"]
    optimizer: Literal["adamw", "momentum", "sgd"]
    recompute: Literal["none", "selective", "full"]
    seq: int
    micro_batch: int
    micro_batches: int
    steps: int = 3


class VerificationFigures(msgspec.Struct, frozen=True):
    """One rank's figures. Bytes are those of tensors, not of the process.

    `weights_bytes`, `gradients_bytes` (at the end of the backward pass), `optimizer_bytes`: stored on this rank.
    `peak_bytes`: maximum held by tensors in a step, including all of these and activations.
    `step_s`: times of the steps measured. `gflops`: speed of matrix products of this model's sizes, 1e9 FLOP/s.
    `allreduce_gb_s`: bus bandwidth of an all_reduce of the gradients' size, 1e9 bytes/s; None on one rank.
    `losses`: of each step, on the ranks of the last stage; None if not finite.
    """

    parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    step_s: tuple[float, ...]
    losses: tuple[float | None, ...]
    gflops: float = 0.0
    allreduce_gb_s: float | None = None
