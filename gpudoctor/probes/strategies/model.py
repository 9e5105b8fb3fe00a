"""What every strategy trains: a small transformer, its optimizer and its data, equal on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gpudoctor.facts.model.measured_strategies import StrategyShape
from gpudoctor.probes.strategies.transformer import Transformer, loss_of
from gpudoctor.probes.strategies.transformer_shape import TransformerShape

Batch = tuple[torch.Tensor, torch.Tensor]  # tokens and targets

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


def build_transformer(shape: StrategyShape, device: torch.device) -> Transformer:
    """The same weights on every rank, whatever was drawn before.

    No biases: the gradient of the key's is zero except for rounding, and those of the norms begin at zero, so that
    rounding is much of what they are after ten steps.
    """
    dimensions = TransformerShape(
        layers=shape.layers,
        hidden=shape.width,
        heads=shape.heads,
        kv_heads=shape.heads,
        head_dim=shape.width // shape.heads,
        ffn=4 * shape.width,
        vocab=shape.vocabulary,
        positions=shape.sequence,
        gated=False,
        layer_norm=True,
        embedding_std=1.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = Transformer(dimensions)
    return model.to(device)


def build_optimizer(parameters: Any, *, fused: bool = False) -> torch.optim.AdamW:
    """AdamW as every strategy uses it; `parameters` as any optimizer takes them.

    `fused`: in one operation for all parameters of a group, for DTensors, whose handling one by one takes as
    long on a CPU as the rest of the step.
    """
    return torch.optim.AdamW(parameters, **OPTIMIZER_OPTIONS, fused=fused)


# for those strategies that make the optimizer themselves; foreach would copy what memory is counted of
OPTIMIZER_OPTIONS: dict[str, Any] = {"lr": LEARNING_RATE, "eps": EPSILON, "weight_decay": 0.0, "foreach": False}


def train_step(
    model: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer, batch: Batch
) -> torch.Tensor:
    """One optimizer step on these tokens and targets; the loss before it."""
    tokens, targets = batch
    optimizer.zero_grad()
    loss = loss_of(model(tokens), targets)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


def batch_of(shape: StrategyShape, step: int, device: torch.device) -> Batch:
    """Tokens and targets of the whole batch in a step (from 0): (batch, sequence) int64 each.

    The target is a fixed function of the token, which even ten steps begin to learn.
    """
    generator = torch.Generator().manual_seed(_SEED + 1 + step)
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence), generator=generator)
    return tokens.to(device), ((3 * tokens + 1) % shape.vocabulary).to(device)
