"""The dimensions of a decoder-only transformer, shared by strategies, plan and plan verification. No torch."""

from __future__ import annotations

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
