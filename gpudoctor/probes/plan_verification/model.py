"""The transformer of `gpudoctor plan --try`: of the planned model's proportions, whole or one stage of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from gpudoctor.probes.plan_verification.messages import VerificationModel
from gpudoctor.probes.strategies.tensor_matmuls import TensorParallelRanks, vocabulary_loss

_EPSILON = 1e-5
_ROTARY_BASE = 10000.0
_Rotary = tuple[torch.Tensor, torch.Tensor]


class _RmsNorm(torch.autograd.Function):
    """Root-mean-square normalisation that keeps its input and one number a token, as fused kernels do.

    Written out of torch's own operations it would keep three times as much.
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
    """RMSNorm, or LayerNorm where the shape has a bias there."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            normed: torch.Tensor = _RmsNorm.apply(x, self.weight)  # type: ignore[no-untyped-call]
            return normed
        with torch.autocast(x.device.type, enabled=False):  # which would keep an fp32 copy
            return functional.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype), _EPSILON)


class ShardedAttention(nn.Module):
    """Causal attention that keeps no scores; each tensor-parallel rank has a part of the heads."""

    def __init__(self, shape: VerificationModel, ways: TensorParallelRanks) -> None:
        super().__init__()
        self._ways, self._heads, self._kv_heads = ways, shape.heads // ways.count, shape.kv_heads // ways.count
        q, kv = self._heads * shape.head_dim, self._kv_heads * shape.head_dim
        self.query = nn.Linear(shape.hidden, q, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.out = nn.Linear(q, shape.hidden, bias=shape.out_bias)
        self.query_norm = Norm(shape.head_dim, bias=False) if shape.qk_norm else None
        self.key_norm = Norm(shape.head_dim, bias=False) if shape.qk_norm else None

    def forward(self, x: torch.Tensor, rotary: _Rotary | None) -> torch.Tensor:
        q, k, v = self._ways.columns(x, self.query, self.key, self.value)
        batch, seq, _ = q.shape
        q, k = q.view(batch, seq, self._heads, -1), k.view(batch, seq, self._kv_heads, -1)
        v = v.view(batch, seq, self._kv_heads, -1).transpose(1, 2)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rotary is not None:
            q, k = _rotated(q, rotary), _rotated(k, rotary)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        grouped = self._heads != self._kv_heads
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self._ways.rows(mixed.transpose(1, 2).flatten(2), self.out)


class Mlp(nn.Module):
    """Up, activation, down; with a gate where the shape has one."""

    def __init__(self, shape: VerificationModel, ways: TensorParallelRanks) -> None:
        super().__init__()
        self._ways = ways
        width = shape.ffn // ways.count
        self.up = nn.Linear(shape.hidden, width, bias=shape.mlp_bias)
        self.gate = nn.Linear(shape.hidden, width, bias=shape.mlp_bias) if shape.gated else None
        self.down = nn.Linear(width, shape.hidden, bias=shape.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            [up] = self._ways.columns(x, self.up)
            return self._ways.rows(functional.gelu(up), self.down)
        up, gate = self._ways.columns(x, self.up, self.gate)
        return self._ways.rows(functional.silu(gate) * up, self.down)


class Layer(nn.Module):
    """Attention and MLP, each after a norm and beside a residual; gemma2 has norms behind them too."""

    def __init__(self, shape: VerificationModel, ways: TensorParallelRanks) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = Norm(shape.hidden, shape.norm_bias), Norm(shape.hidden, shape.norm_bias)
        self.attention, self.mlp = ShardedAttention(shape, ways), Mlp(shape, ways)
        more = shape.more_norms
        self.after_attention = Norm(shape.hidden, shape.norm_bias) if more else nn.Identity()
        self.after_mlp = Norm(shape.hidden, shape.norm_bias) if more else nn.Identity()

    def forward(self, x: torch.Tensor, rotary: _Rotary | None) -> torch.Tensor:
        x = x + self.after_attention(self.attention(self.attention_norm(x), rotary))
        return x + self.after_mlp(self.mlp(self.mlp_norm(x)))  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """Tokens (batch, sequence) to activations; tensor-parallel ranks have a part of the vocabulary each."""

    def __init__(self, shape: VerificationModel, ways: TensorParallelRanks) -> None:
        super().__init__()
        self._ways = ways
        self.tokens = nn.Embedding(shape.vocab // ways.count, shape.hidden)
        self.places = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        own = tokens - self._ways.number * self.tokens.num_embeddings
        mine = (own >= 0) & (own < self.tokens.num_embeddings)
        x = self.tokens(torch.where(mine, own, 0))
        if self._ways.count > 1:
            x = self._ways.summed(x * mine.unsqueeze(-1))
        if self.places is not None:
            first = self._ways.number * x.shape[1]
            x = x + self.places(torch.arange(first, first + x.shape[1], device=x.device))
        return x  # type: ignore[no-any-return]


class Head(nn.Module):
    """The last norm and the logits, of which a tensor-parallel rank has a part of the vocabulary."""

    def __init__(self, shape: VerificationModel, ways: TensorParallelRanks, tied: torch.Tensor | None) -> None:
        super().__init__()
        self._ways = ways
        self.norm = Norm(shape.hidden, shape.norm_bias)
        self.out = nn.Linear(shape.hidden, shape.vocab // ways.count, bias=shape.head_bias)
        if tied is not None:
            self.out.weight = cast(nn.Parameter, tied)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        [logits] = self._ways.columns(self.norm(x), self.out)
        return logits


class VerificationTransformer(nn.Module):
    """The stage `stage` of `len(layers_of_stages)`: tokens, or what the stage before gave, to activations or logits.

    `keep` wraps each layer's call: what recomputation does.
    """

    def __init__(
        self, shape: VerificationModel, layers_of_stages: tuple[int, ...], stage: int, ways: TensorParallelRanks
    ) -> None:
        super().__init__()
        self._shape, last = shape, len(layers_of_stages) - 1
        self.embedding = Embedding(shape, ways) if stage == 0 else None
        self.layers = nn.ModuleList(Layer(shape, ways) for _ in range(layers_of_stages[stage]))
        tied = self.embedding.tokens.weight if shape.tied and self.embedding is not None else None
        self.head = Head(shape, ways, tied) if stage == last else None
        self.keep: Any = None
        self.compute_dtype = torch.float32
        self._ways = ways
        self._rotary: _Rotary | None = None

    def forward(self, x: torch.Tensor, seq: int) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x).to(self.compute_dtype)
        rotary = self._rotary_of(seq, x)
        for layer in self.layers:
            x = layer(x, rotary) if self.keep is None else self.keep(layer, x, rotary)
        return x if self.head is None else self.head(x)

    def between(self, batch: int, seq: int) -> torch.Tensor:
        """An empty tensor of what one stage gives to the next: (batch, this rank's part of the sequence, hidden)."""
        device = next(self.parameters()).device
        sizes = (batch, seq // self._ways.count, self._shape.hidden)
        return torch.empty(sizes, dtype=self.compute_dtype, device=device)

    def whole_on_each_rank(self) -> Iterator[nn.Parameter]:
        """Parameters that tensor-parallel ranks do not divide, and of whose gradient each has its sequence's part."""
        for name, parameter in self.named_parameters():
            rows = name.endswith((".out.bias", ".down.bias")) and not name.startswith("head.")
            if ".places." in name or "norm" in name or ".after_" in name or rows:
                yield parameter

    def _rotary_of(self, seq: int, like: torch.Tensor) -> _Rotary | None:
        """Cosines and sines, (sequence, 1, half a head); None for learned positions."""
        if self._shape.positions:
            return None
        if self._rotary is None:
            half = self._shape.head_dim // 2
            rates = _ROTARY_BASE ** (-torch.arange(half, device=like.device) / half)
            angles = torch.arange(seq, device=like.device)[:, None, None] * rates
            self._rotary = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
        return self._rotary


def loss_of(
    ways: TensorParallelRanks, logits: torch.Tensor, targets: torch.Tensor, *, wide: bool = True
) -> torch.Tensor:
    """Mean cross entropy, in fp32 if `wide`: () of logits (batch, sequence, vocabulary), targets (batch, sequence)."""
    flat = logits.flatten(0, 1)
    flat = flat.float() if wide else flat
    if ways.count > 1:
        return vocabulary_loss(ways, flat, targets.flatten())
    return functional.cross_entropy(flat, targets.flatten())


def _rotated(x: torch.Tensor, rotary: _Rotary) -> torch.Tensor:
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
