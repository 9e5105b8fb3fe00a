"""The order of `gpudoctor plan --try` to the ranks, its model, and the figures each of them reports. No torch."""

from __future__ import annotations

from typing import Literal

import msgspec


class TransformerShape(msgspec.Struct, frozen=True):
    """`heads` and `kv_heads` of `head_dim` each; `ffn`: inner width of the MLP.

    `gated`: the MLP has three matrices (SwiGLU, GeGLU) instead of two. `tied`: the head is the embedding.
    `positions`: number of learned positions; 0: rotary embedding. `norms`: per layer; four if attention and MLP are
    also followed by one. They are RMSNorm unless they have a bias or `layer_norm` is set.
    `embedding_std`: initial standard deviation of the token embedding.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    positions: int = 0
    gated: bool = True
    tied: bool = False
    norms: int = 2
    norm_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    layer_norm: bool = False
    embedding_std: float = 0.02


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
