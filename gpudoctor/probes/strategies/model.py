"""The small transformer that every strategy trains, with its optimizer and data; equal on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gpudoctor.facts.model.measured_strategies import StrategyShape
from gpudoctor.probes.plan_verification.messages import TransformerShape
from gpudoctor.probes.strategies.transformer import Transformer, loss_of

Batch = tuple[torch.Tensor, torch.Tensor]  # tokens and targets

STEPS = 10
MICRO_BATCHES = 4  # number of parts that one rank's part of the batch can be divided into
LEARNING_RATE = 1e-3
# With AdamW's default of 1e-8 a gradient of mere rounding errors makes a step of full length (a false alarm), and a
# gradient n times too large makes the same step as the correct one (a false OK).
EPSILON = 1e-3
_SEED = 31
# For strategies that create the optimizer themselves. foreach would copy tensors whose memory is counted
OPTIMIZER_OPTIONS: dict[str, Any] = {"lr": LEARNING_RATE, "eps": EPSILON, "weight_decay": 0.0, "foreach": False}


def shape_for(world_size: int, *, on_gpu: bool) -> StrategyShape:
    """A shape divisible by `world_size`: layers into stages, heads into shards, the batch into parts and micro-batches.

    0.05 M parameters for 2 to 4 CPU ranks, 15 M for as many GPUs (small enough for a dozen trainings in some seconds).
    More ranks have more layers and sequences, so for CPU ranks, which share cores, the sequences are shorter.
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
    """The model with the same weights on every rank, independent of the state of the random generator.

    It has no biases: the gradient of the key's bias is zero up to rounding, and the norms' biases start at zero, so
    after ten steps they would consist largely of rounding errors.
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
    """AdamW as every strategy uses it; `parameters`: as for any optimizer.

    `fused`: one operation for all parameters of a group. Needed for DTensors, whose individual handling takes as
    long on a CPU as the rest of the step.
    """
    return torch.optim.AdamW(parameters, **OPTIMIZER_OPTIONS, fused=fused)


def train_step(
    model: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer, batch: Batch
) -> torch.Tensor:
    """Take one optimizer step on these tokens and targets; returns the loss before it."""
    tokens, targets = batch
    optimizer.zero_grad()
    loss = loss_of(model(tokens), targets)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


def batch_of(shape: StrategyShape, step: int, device: torch.device) -> Batch:
    """Tokens and targets of the whole batch in a step (from 0): (batch, sequence) int64 each.

    The target is a fixed function of the token, so that even ten steps begin to learn it.
    """
    generator = torch.Generator().manual_seed(_SEED + 1 + step)
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence), generator=generator)
    return tokens.to(device), ((3 * tokens + 1) % shape.vocabulary).to(device)
