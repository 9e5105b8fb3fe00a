"""Activation checkpointing: blocks keep only their input, and recompute the rest in the backward pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.data_parallel import ddp_model
from gpudoctor.probes.strategies.memory import KeptForBackward
from gpudoctor.probes.strategies.model import build_optimizer, train_step
from gpudoctor.probes.strategies.transformer import Transformer, loss_of


def run_checkpointing(rank: Rank, bench: Bench) -> None:
    """Compare loss and gradients of one batch without and with checkpointing, then train with it under DDP."""
    figures = _compared_once(rank, bench)
    bench.begin_variant()
    model = bench.model()
    model.recompute = _recomputed(rank)
    with rank.blocked():
        ddp = ddp_model(rank, model)
    optimizer = build_optimizer(model.parameters())
    bench.train(
        "checkpointing",
        lambda number: train_step(ddp, optimizer, bench.own_part(number)),
        model,
        optimizer,
        figures=figures,
        own_part=True,
    )


def _compared_once(rank: Rank, bench: Bench) -> dict[str, float]:
    """Compare one forward and backward pass of this rank's part of the batch without and with checkpointing.

    `error_rank_N`: the largest difference of loss and gradients, relative to the loss and to the RMS of each
    gradient; omitted if a number was not finite. `plain_kept_bytes`, `checkpointed_kept_bytes`: kept for the backward
    pass; on a GPU also `plain_peak_bytes`, `checkpointed_peak_bytes`: torch's peak of the pass.
    """
    losses, gradients = [], []
    figures: dict[str, float] = {}
    for name, recompute in (("plain", None), ("checkpointed", _recomputed(rank))):
        bench.begin_variant()
        model = bench.model()
        model.recompute = recompute
        _pass(model, bench)  # one-time allocations of libraries must not count for either
        model.zero_grad()
        if rank.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        losses.append(_pass(model, bench))
        if rank.on_gpu:
            figures[f"{name}_peak_bytes"] = float(torch.cuda.max_memory_allocated() - bench.at_first_bytes)
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
        model.zero_grad()
        retained = KeptForBackward(model.parameters())
        with retained.counting():
            _pass(model, bench)
        figures[f"{name}_kept_bytes"] = float(retained.most_bytes)
    plain, again = gradients
    errors = [abs(losses[1] - losses[0]) / abs(losses[0])]
    for name, gradient in plain.items():
        errors.append(float((again[name] - gradient).abs().max() / gradient.square().mean().sqrt()))
    if all(map(math.isfinite, errors)):
        figures[f"error_rank_{rank.number}"] = max(errors)
    return figures


def _pass(model: Transformer, bench: Bench) -> float:
    tokens, targets = bench.own_part(0)
    loss = loss_of(model(tokens), targets)
    torch.autograd.backward(loss)
    return float(loss.detach())


def _recomputed(rank: Rank) -> Callable[..., torch.Tensor]:
    """A function that calls a block with recomputation, in the non-reentrant way that torch recommends."""
    from torch.utils import checkpoint as torchs

    checkpoints: Any = torchs  # not annotated everywhere
    call: Callable[..., torch.Tensor] = functools.partial(checkpoints.checkpoint, use_reentrant=False)
    if rank.injected("wrong-recompute") is None:
        return call
    return lambda block, *given: call(_wrong_when_repeated(block), *given)


def _wrong_when_repeated(block: torch.nn.Module) -> Callable[..., torch.Tensor]:
    """The fault wrong-recompute: on this rank the recomputed values differ from the first ones."""
    calls: list[bool] = []

    def call(x: torch.Tensor, *given: Any) -> torch.Tensor:
        calls.append(True)
        computed: torch.Tensor = block(x if len(calls) == 1 else x.roll(1, -1), *given)
        return computed

    return call
