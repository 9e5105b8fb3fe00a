"""The small transformer that every strategy trains, and its data: equal on every rank."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from gpudoctor.facts.model.measured_strategies import StrategyShape

STEPS = 10
MICRO_BATCHES = 4  # what one rank's part of the batch can be divided into
LEARNING_RATE = 1e-3
# With AdamW's usual 1e-8 a gradient that is nothing but rounding makes a step of full length, and one that is n times
# too large makes the same step as the right one: the first is a false alarm, the second a false OK.
EPSILON = 1e-3
_SEED = 31


def shape_for(world_size: int, *, on_gpu: bool) -> StrategyShape:
    """A shape that `world_size` divides: layers into stages, heads into shards, the batch into parts and micro-batches.

    0.05 M parameters for 2 to 4 CPU ranks, 15 M for as many GPUs (small, so that a dozen trains fit some seconds).
    More ranks have more layers and sequences, so those of CPU ranks, which share cores, are shorter.
    """
    times = math.ceil(4 / world_size)
    heads = world_size * times
    if on_gpu:
        heads *= max(1, round(8 / heads))
    width, sequence, vocabulary = (512, 128, 2048) if on_gpu else (32, max(4, min(16, 64 // world_size)), 64)
    return StrategyShape(
        layers=world_size * times,
        width=heads * max(2, width // heads),
        heads=heads,
        vocabulary=vocabulary,
        sequence=sequence,
        batch=MICRO_BATCHES * world_size,
    )


class Attention(nn.Module):
    """Causal attention; it works on as many heads as its projections give, so that they may be shards.

    No biases: the gradient of the key's is zero but for rounding, and those of the norms begin at zero, so that
    rounding is much of what they are after ten steps.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, width) to the same."""
        batch, sequence = hidden.shape[:2]
        query, key, value = (
            project(hidden).view(batch, sequence, -1, self.head_width).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        found: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return found


class TransformerBlock(nn.Module):
    """One layer: attention and feed-forward, each after a norm and beside a residual."""

    def __init__(self, shape: StrategyShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, bias=False)
        self.attention = Attention(shape.width, shape.heads)
        self.feed_norm = nn.LayerNorm(shape.width, bias=False)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, width) to the same."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        found: torch.Tensor = hidden + self.down(gelu(self.up(self.feed_norm(hidden))))
        return found


class Transformer(nn.Module):
    """Tokens (batch, sequence) to logits (batch, sequence, vocabulary).

    A pipeline stage is the same module with some of its parts set to None: `embed` and `place` only in the first,
    `norm` and `head` only in the last, `blocks` (keyed "0", "1", ...) a few in each; names of weights stay.
    """

    def __init__(self, shape: StrategyShape) -> None:
        super().__init__()
        self.embed: nn.Embedding | None = nn.Embedding(shape.vocabulary, shape.width)
        self.place: nn.Embedding | None = nn.Embedding(shape.sequence, shape.width)
        self.blocks = nn.ModuleDict({str(number): TransformerBlock(shape) for number in range(shape.layers)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(shape.width, bias=False)
        self.head: nn.Linear | None = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Tokens, or in a later stage what the one before gave out."""
        if self.embed is not None and self.place is not None:
            hidden = self.embed(hidden) + self.place(torch.arange(hidden.shape[1], device=hidden.device))
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.norm is not None and self.head is not None:
            hidden = self.head(self.norm(hidden))
        return hidden


def build_transformer(shape: StrategyShape, device: torch.device) -> Transformer:
    """The same weights on every rank, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = Transformer(shape)
    return model.to(device)


def build_optimizer(parameters: Any, *, fused: bool = False) -> torch.optim.AdamW:
    """AdamW as every strategy uses it; `parameters` as any optimizer takes them."""
    return torch.optim.AdamW(parameters, **OPTIMIZER_OPTIONS, fused=fused)


# for those strategies that make the optimizer themselves; foreach would copy what memory is counted of
OPTIMIZER_OPTIONS: dict[str, Any] = {"lr": LEARNING_RATE, "eps": EPSILON, "weight_decay": 0.0, "foreach": False}


def batch_of(shape: StrategyShape, step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of the whole batch in a step (from 0): (batch, sequence) int64 each.

    The target is a fixed function of the token, which even ten steps begin to learn.
    """
    generator = torch.Generator().manual_seed(_SEED + 1 + step)
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence), generator=generator)
    return tokens.to(device), ((3 * tokens + 1) % shape.vocabulary).to(device)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy over all tokens, in fp32: () of logits (batch, sequence, vocabulary)."""
    return cross_entropy(logits.float().flatten(0, 1), targets.flatten())
