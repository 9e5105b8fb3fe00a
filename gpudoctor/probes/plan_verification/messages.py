"""What `gpudoctor plan --try` asks of the ranks, and what each of them reports."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.probes.strategies.transformer_shape import TransformerShape


class VerificationOrder(msgspec.Struct, frozen=True):
    """A few steps of one strategy on data x tensor x pipeline ranks; tensor ranks are nearest to each other.

    `layers_of_stages` says how many layers each pipeline stage has. A step is `micro_batches` of `micro_batch`
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
    """What one rank measured. Bytes of tensors, never what the process holds.

    `weights`, `gradients` (at the end of the backward pass), `optimizer`: what their tensors store here.
    `peak_bytes`: the most that tensors held at one time in a step, all of these and activations included.
    `step_s`: each step after the first. `gflops`: of matrix products of this model's sizes, alone on this rank;
    `allreduce_gb_s`: bus bandwidth of an all_reduce of the gradients' size (1e9 bytes); None on one rank.
    `losses`: of each step, on the ranks of the last stage; None where it was not finite.
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
