"""The dimensions of the transformer that strategies and plan verification train. No torch."""

from __future__ import annotations

import msgspec


class TransformerShape(msgspec.Struct, frozen=True):
    """The dimensions of a decoder-only transformer, named as in the plan's ModelShape; always one expert.

    `positions`: learned positions; rotary ones if 0. Norms are RMSNorm unless they have a bias or `layer_norm`.
    `more_norms`: norms after attention and MLP too. `embedding_std`: of the token embedding at the start.
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
    norm_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    more_norms: bool = False
    qk_norm: bool = False
    layer_norm: bool = False
    embedding_std: float = 0.02
