"""The transformer that strategies and plan verification train: any shape, whole or one pipeline stage.

Tensor parallelism is either built in (`TensorParallelRanks`) or applied afterwards by DTensor (strategies/tensor.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from gpudoctor.probes.plan_verification.messages import TransformerShape
from gpudoctor.probes.strategies.tensor_matmuls import TensorParallelRanks, vocabulary_loss

_EPSILON = 1e-5
_ROTARY_BASE = 10000.0
_WHOLE = TensorParallelRanks()
_Rotary = tuple[torch.Tensor, torch.Tensor]


class _RmsNorm(torch.autograd.Function):
    """Root-mean-square normalisation that keeps its input and one number per token, as fused kernels do.

    Composed of torch's operations it would keep three times as much.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + _EPSILON)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).to(x.dtype) * weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        grad_weight = (grad.float() * normed).flatten(0, -2).sum(0).to(weight.dtype)
        scaled = grad.float() * weight.float()
        normed.mul_((scaled * normed).mean(-1, keepdim=True))
        return (scaled.sub_(normed).mul_(scale)).to(x.dtype), grad_weight


class Norm(nn.Module):
    """RMSNorm, or LayerNorm if it has a bias or `layer_norm` is set."""

    def __init__(self, width: int, *, bias: bool = False, layer_norm: bool = False) -> None:
        super().__init__()
        self._rms = not (bias or layer_norm)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._rms:
            normed: torch.Tensor = _RmsNorm.apply(x, self.weight)  # type: ignore[no-untyped-call]
            return normed
        with torch.autocast(x.device.type, enabled=False):  # autocast would keep an fp32 copy
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return functional.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), bias, _EPSILON)


class Attention(nn.Module):
    """Causal attention without stored scores, on the heads that its (possibly sharded) projections produce."""

    def __init__(self, shape: TransformerShape, tp: TensorParallelRanks) -> None:
        super().__init__()
        self._tp, self._head_dim = tp, shape.head_dim
        q, kv = shape.heads // tp.count * shape.head_dim, shape.kv_heads // tp.count * shape.head_dim
        self.query = nn.Linear(shape.hidden, q, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.out = nn.Linear(q, shape.hidden, bias=shape.out_bias)
        self.query_norm = Norm(shape.head_dim) if shape.qk_norm else None
        self.key_norm = Norm(shape.head_dim) if shape.qk_norm else None

    def forward(self, x: torch.Tensor, rotary: _Rotary | None) -> torch.Tensor:
        q, k, v = self._tp.columns(x, self.query, self.key, self.value)
        q, k, v = (x.view(*x.shape[:2], -1, self._head_dim) for x in (q, k, v))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rotary is not None:
            q, k = _rotated(q, rotary), _rotated(k, rotary)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        options: dict[str, Any] = {} if q.shape[1] == k.shape[1] else {"enable_gqa": True}  # torch 2.4 lacks the option
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        return self._tp.rows(mixed.transpose(1, 2).flatten(2), self.out)


class Mlp(nn.Module):
    """Up, activation, down; with a gate if the shape has one."""

    def __init__(self, shape: TransformerShape, tp: TensorParallelRanks) -> None:
        super().__init__()
        self._tp = tp
        width = shape.ffn // tp.count
        self.up = nn.Linear(shape.hidden, width, bias=shape.mlp_bias)
        self.gate = nn.Linear(shape.hidden, width, bias=shape.mlp_bias) if shape.gated else None
        self.down = nn.Linear(width, shape.hidden, bias=shape.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            [up] = self._tp.columns(x, self.up)
            return self._tp.rows(functional.gelu(up), self.down)
        up, gate = self._tp.columns(x, self.up, self.gate)
        return self._tp.rows(functional.silu(gate) * up, self.down)


class TransformerBlock(nn.Module):
    """One layer: attention and MLP, each after a norm and with a residual; gemma2 also has norms behind them."""

    def __init__(self, shape: TransformerShape, tp: TensorParallelRanks = _WHOLE) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = _hidden_norm(shape), _hidden_norm(shape)
        self.attention, self.mlp = Attention(shape, tp), Mlp(shape, tp)
        self.after_attention = _hidden_norm(shape) if shape.norms > 2 else nn.Identity()
        self.after_mlp = _hidden_norm(shape) if shape.norms > 2 else nn.Identity()

    def forward(self, x: torch.Tensor, rotary: _Rotary | None) -> torch.Tensor:
        x = x + self.after_attention(self.attention(self.attention_norm(x), rotary))
        return x + self.after_mlp(self.mlp(self.mlp_norm(x)))  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """Tokens (batch, sequence) to activations; each tensor-parallel rank has a part of the vocabulary."""

    def __init__(self, shape: TransformerShape, tp: TensorParallelRanks) -> None:
        super().__init__()
        self._tp = tp
        self.tokens = nn.Embedding(shape.vocab // tp.count, shape.hidden)
        self.places = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        with torch.no_grad():
            self.tokens.weight.mul_(shape.embedding_std)  # nn.Embedding initialises with a standard deviation of 1

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._tp.count == 1:
            x = self.tokens(tokens)
        else:
            own = tokens - self._tp.number * self.tokens.num_embeddings
            is_own = (own >= 0) & (own < self.tokens.num_embeddings)
            x = self._tp.summed(self.tokens(torch.where(is_own, own, 0)) * is_own.unsqueeze(-1))
        if self.places is not None:
            first = self._tp.number * x.shape[1]
            x = x + self.places(torch.arange(first, first + x.shape[1], device=x.device))
        return x  # type: ignore[no-any-return]


class Head(nn.Module):
    """The last norm and the logits; each tensor-parallel rank has a part of the vocabulary."""

    def __init__(self, shape: TransformerShape, tp: TensorParallelRanks, tied: torch.Tensor | None) -> None:
        super().__init__()
        self._tp = tp
        self.norm = _hidden_norm(shape)
        self.out = nn.Linear(shape.hidden, shape.vocab // tp.count, bias=shape.head_bias)
        if tied is not None:
            self.out.weight = cast(nn.Parameter, tied)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        [logits] = self._tp.columns(self.norm(x), self.out)
        return logits


class Transformer(nn.Module):
    """Tokens (batch, sequence) to logits (batch, sequence, vocabulary).

    With `layers` it is one pipeline stage, from tokens or the previous stage's activations to activations or logits;
    blocks keep their numbers in the whole model. Between stages each tensor-parallel rank has its part of the
    sequence. `recompute`: calls each block with recomputation; `compute_dtype`: dtype of the embedding's output.
    """

    def __init__(self, shape: TransformerShape, layers: range | None = None, tp: TensorParallelRanks = _WHOLE) -> None:
        super().__init__()
        layers = range(shape.layers) if layers is None else layers
        self._shape, self._tp = shape, tp
        self.embedding = Embedding(shape, tp) if layers.start == 0 else None
        self.blocks = nn.ModuleDict({str(number): TransformerBlock(shape, tp) for number in layers})
        tied = self.embedding.tokens.weight if shape.tied and self.embedding is not None else None
        self.head = Head(shape, tp, tied) if layers.stop == shape.layers else None
        self.recompute: Any = None
        self.compute_dtype: torch.dtype | None = None
        self._rotary: _Rotary | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
            x = x if self.compute_dtype is None else x.to(self.compute_dtype)
        rotary = self._rotary_of(x.shape[1] * self._tp.count, x)
        for block in self.blocks.values():
            x = block(x, rotary) if self.recompute is None else self.recompute(block, x, rotary)
        return x if self.head is None else self.head(x)

    def keep_layers(self, layers: range) -> None:
        """Reduce the model to the pipeline stage with these layers."""
        if layers.start > 0:
            self.embedding = None
        if layers.stop < self._shape.layers:
            self.head = None
        for name in list(self.blocks):
            if int(name) not in layers:
                del self.blocks[name]

    def whole_on_each_rank(self) -> Iterator[nn.Parameter]:
        """Parameters replicated on tensor-parallel ranks, whose gradients must be summed over these ranks."""
        for name, parameter in self.named_parameters():
            rows = name.endswith((".out.bias", ".down.bias")) and not name.startswith("head.")
            if ".places." in name or "norm" in name or ".after_" in name or rows:
                yield parameter

    def _rotary_of(self, seq: int, like: torch.Tensor) -> _Rotary | None:
        """Cosines and sines, each (sequence, 1, head_dim / 2); None for learned positions."""
        if self._shape.positions:
            return None
        if self._rotary is None:
            half = self._shape.head_dim // 2
            rates = _ROTARY_BASE ** (-torch.arange(half, device=like.device) / half)
            angles = torch.arange(seq, device=like.device)[:, None, None] * rates
            self._rotary = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
        return self._rotary


def loss_of(logits: torch.Tensor, targets: torch.Tensor, *, tp: TensorParallelRanks = _WHOLE) -> torch.Tensor:
    """Mean cross entropy in fp32: () from (batch, sequence, vocabulary) and (batch, sequence)."""
    flat = logits.flatten(0, 1).float()
    if tp.count > 1:
        return vocabulary_loss(tp, flat, targets.flatten())
    return functional.cross_entropy(flat, targets.flatten())


def _hidden_norm(shape: TransformerShape) -> Norm:
    return Norm(shape.hidden, bias=shape.norm_bias, layer_norm=shape.layer_norm)


def _rotated(x: torch.Tensor, rotary: _Rotary) -> torch.Tensor:
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
