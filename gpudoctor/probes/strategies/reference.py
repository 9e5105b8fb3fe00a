"""The steps that every strategy takes, taken by one rank alone: what the others are compared with."""

from __future__ import annotations

import statistics
import time

import msgspec
import torch
from torch import nn

from gpudoctor.facts.model.measured_strategies import StrategyShape
from gpudoctor.probes.strategies.memory import KeptForBackward, memory_of
from gpudoctor.probes.strategies.model import STEPS, batch_of, build_optimizer, build_transformer
from gpudoctor.probes.strategies.transformer import loss_of


class Alone:
    """The result of the steps on one device: `losses`, `weights` by name (on the CPU), time and memory.

    `part_losses`: for each step the loss of each of `parts` equal parts of the batch.
    `bf16`: forward and backward in bf16 on a copy of the weights, which themselves stay fp32; what FSDP's mixed
    precision does, so that a strategy is compared with equal work and not with other rounding.
    """

    def __init__(self, shape: StrategyShape, device: torch.device, *, parts: int, bf16: bool = False) -> None:
        at_first_bytes = _begin_peak(device)
        model = build_transformer(shape, device)
        worker = build_transformer(shape, device).to(torch.bfloat16) if bf16 else model
        optimizer = build_optimizer(model.parameters())
        losses: list[torch.Tensor] = []
        part_losses: list[list[torch.Tensor]] = []
        times_ms: list[float] = []
        kept = KeptForBackward(worker.parameters())
        for step in range(STEPS):
            began_ns = time.monotonic_ns()
            optimizer.zero_grad()
            if step == STEPS - 1:
                with kept.counting():
                    logits, targets, loss = _gradients(shape, device, step, worker)
            else:
                logits, targets, loss = _gradients(shape, device, step, worker)
            losses.append(loss)
            if worker is not model:
                _hand_over_gradients(worker, model)
            optimizer.step()
            if worker is not model:
                _hand_over_weights(model, worker)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times_ms.append((time.monotonic_ns() - began_ns) / 1e6)
            part_losses.append([loss_of(*part) for part in zip(logits.chunk(parts), targets.chunk(parts), strict=True)])
        self.losses = [float(loss) for loss in losses]
        self.part_losses = [[float(loss) for loss in step_losses] for step_losses in part_losses]
        self.weights = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
        self.parameters = sum(weight.numel() for weight in model.parameters())
        self.step_ms = statistics.median(times_ms[1:-1])
        self.memory = memory_of(model.parameters(), optimizer, kept.most_bytes)
        if device.type == "cuda":
            peak_bytes = torch.cuda.max_memory_allocated() - at_first_bytes
            self.memory = msgspec.structs.replace(self.memory, peak_bytes=peak_bytes)


def _begin_peak(device: torch.device) -> int:
    """Begin to look for the peak of a GPU's memory; gives what is allocated before."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _gradients(
    shape: StrategyShape, device: torch.device, step: int, model: nn.Module
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, targets and loss of a step whose gradients are there now."""
    tokens, targets = batch_of(shape, step, device)
    logits = model(tokens)
    loss = loss_of(logits, targets)
    torch.autograd.backward(loss)
    return logits.detach(), targets, loss.detach()


def _hand_over_gradients(worker: nn.Module, model: nn.Module) -> None:
    for low, full in zip(worker.parameters(), model.parameters(), strict=True):
        assert low.grad is not None
        full.grad = low.grad.float()
        low.grad = None


def _hand_over_weights(model: nn.Module, worker: nn.Module) -> None:
    with torch.no_grad():
        for low, full in zip(worker.parameters(), model.parameters(), strict=True):
            low.copy_(full)
