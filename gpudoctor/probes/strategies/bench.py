"""Runs and measures the steps of a strategy, and compares the results with the same steps on one rank alone."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from gpudoctor.facts.model.measured_strategies import StrategyMemory, StrategyRank, StrategyReference, StrategyShape
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.merge import finite
from gpudoctor.probes.runner.messages import StrategySample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import give_back
from gpudoctor.probes.strategies.memory import KeptForBackward, TrafficCounter, memory_of, whole_weights
from gpudoctor.probes.strategies.model import STEPS, Batch, batch_of, build_optimizer, build_transformer
from gpudoctor.probes.strategies.transformer import Transformer, loss_of

Step = Callable[[int], "torch.Tensor | None"]

_FAULT_STEP = 5
_ONE_PROCESS = Missing("one process does it all")
_OF_THREADS = Missing("DataParallel computes in threads, in which nothing is counted")
_KEPT_COUNTED_AT, _TRAFFIC_COUNTED_AT = STEPS - 2, STEPS - 1  # counting takes time, so these steps are not timed


class Bench:
    """The model, its data, and the same steps on this rank alone; `strategy`: name of the one that is running.

    `has_bf16`: whether every rank's device supports bf16, so that bf16 variants can be compared.
    """

    def __init__(self, rank: Rank, shape: StrategyShape) -> None:
        self.shape = shape
        self.strategy = ""
        self.at_first_bytes = 0  # allocated on the GPU when the variant began
        self._rank = rank
        # older GPUs have no bf16 arithmetic, and some CUDA versions refuse to emulate it
        self.has_bf16 = not rank.on_gpu or bool(rank.smallest(int(torch.cuda.get_device_capability()[0] >= 8)))
        parts = rank.world_size
        self._alone = {"fp32": Alone(shape, rank.device, parts=parts)}
        if self.has_bf16:
            self._alone["bf16"] = Alone(shape, rank.device, parts=parts, bf16=True)

    def reference(self) -> StrategyReference:
        alone = self._alone["fp32"]
        losses = tuple(map(finite, alone.losses))
        losses_bf16 = tuple(map(finite, self._alone["bf16"].losses)) if self.has_bf16 else ()
        return StrategyReference(alone.parameters, losses, losses_bf16, alone.step_ms, alone.memory)

    def begin_variant(self) -> None:
        """Free what the previous variant left; what stays allocated is noted, and not part of this one's peak."""
        give_back(self._rank)
        if self._rank.on_gpu:
            self.at_first_bytes = torch.cuda.memory_allocated()

    def model(self) -> Transformer:
        """A new model on this rank's device, with the initial weights that all ranks have."""
        return build_transformer(self.shape, self._rank.device)

    def batch(self, step: int) -> Batch:
        """Tokens and targets of all ranks together."""
        return batch_of(self.shape, step, self._rank.device)

    def part(self, step: int, index: int, parts: int) -> Batch:
        """Part `index` of the batch divided into `parts` equal parts."""
        tokens, targets = self.batch(step)
        size = self.shape.batch // parts
        return tokens[index * size : (index + 1) * size], targets[index * size : (index + 1) * size]

    def own_part(self, step: int) -> Batch:
        """This rank's 1/n of the batch, n being the number of ranks."""
        return self.part(step, self._rank.number, self._rank.world_size)

    def train(
        self,
        variant: str,
        step: Step,
        model: nn.Module,
        optimizer: Any,
        *,
        dtype: Literal["fp32", "bf16"] = "fp32",
        figures: Mapping[str, float] | None = None,
        own_part: bool = False,
        parameters: Callable[[], Iterable[torch.Tensor]] | None = None,
        weights: Callable[[], Mapping[str, torch.Tensor]] | None = None,
        alone: bool = False,
    ) -> StrategyRank:
        """Take the steps of a variant, compare the results with the reference, send them to the parent, return them.

        `step`: starts with zero_grad, ends with the optimizer's step, and returns the loss of its part of the batch.
        `figures` may be filled by the steps. `own_part`: each rank computes the loss of its own 1/n of the batch.
        `optimizer`: anything with a `state`, or None. `parameters`: those this rank holds, if not those of `model`.
        `weights`: full tensors that this rank has, by the model's names, if `whole_weights` cannot provide them.
        `alone`: no other rank takes part.
        """
        rank, parameters = self._rank, parameters or model.parameters
        rank.phase(f"{variant} step", "strategy")
        losses, times_ms = [], []
        retained, traffic = KeptForBackward(parameters()), TrafficCounter()
        if rank.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for number in range(STEPS):
            rank.step(number + 1)
            if number == _FAULT_STEP:
                rank.fail_if_injected("strategy")
            with ExitStack() as around:
                if number == _KEPT_COUNTED_AT:
                    around.enter_context(retained.counting())
                if number == _TRAFFIC_COUNTED_AT:
                    around.enter_context(traffic)
                if not alone:
                    around.enter_context(rank.blocked())
                began_ns = time.monotonic_ns()
                losses.append(step(number))
                rank.synchronize()
            times_ms.append((time.monotonic_ns() - began_ns) / 1e6)
        memory = memory_of(parameters(), optimizer, _OF_THREADS if alone else retained.most_bytes)
        memory = _with_peak(memory, rank.device, self.at_first_bytes)
        with nullcontext() if alone else rank.blocked():
            found = dict((weights or partial(whole_weights, model))())
        error, worst, compared = self._compared(found, dtype)
        result = StrategyRank(
            rank=rank.number,
            losses=tuple(finite(float(loss)) for loss in losses if loss is not None),
            weights_error=error,
            compared=compared,
            memory=memory,
            step_ms=statistics.median(times_ms[1:_KEPT_COUNTED_AT]),
            worst_weight=worst,
            communicated_bytes=_ONE_PROCESS if alone else traffic.sent_bytes,
            expected_losses=tuple(finite(losses[rank.number]) for losses in self._alone[dtype].part_losses)
            if own_part
            else (),
        )
        missing = self._missing(found, alone=alone)
        rank.send(StrategySample(self.strategy, variant, dtype, result, missing, dict(figures or {})))
        return result

    def _compared(self, found: Mapping[str, torch.Tensor], dtype: str) -> tuple[float | None, str | None, int]:
        """The worst error (None if not finite), its tensor, and the number of elements compared."""
        worst, name_of_worst, compared = 0.0, None, 0
        for name, tensor in found.items():
            expected = self._alone[dtype].weights[name]
            actual = tensor.detach().cpu().float()
            if actual.shape != expected.shape:
                raise ValueError(f"{name} came back as {tuple(actual.shape)}, and is {tuple(expected.shape)}")
            compared += actual.numel()
            error = float((actual - expected).abs().max() / expected.square().mean().sqrt())
            if not error <= worst:  # true for NaN too
                worst, name_of_worst = error, name
            if not math.isfinite(error):
                break
        return finite(worst), name_of_worst, compared

    def _missing(self, found: Mapping[str, torch.Tensor], *, alone: bool) -> tuple[str, ...]:
        """The names of weights that no rank has returned."""
        names = list(self._alone["fp32"].weights)
        given = torch.tensor([int(name in found) for name in names])
        if not alone:
            with self._rank.blocked():
                dist.all_reduce(given, op=dist.ReduceOp.MAX)
        return tuple(name for name, has in zip(names, given.tolist(), strict=True) if not has)


class Alone:
    """The results of the steps on one device: `losses`, `weights` by name (on the CPU), time and memory.

    `part_losses`: for each step the loss of each of `parts` equal parts of the batch.
    `bf16`: forward and backward in bf16 on a copy of the weights, which themselves stay fp32. FSDP's mixed precision
    does the same, so a strategy is compared with equal work and not with different rounding.
    """

    def __init__(self, shape: StrategyShape, device: torch.device, *, parts: int, bf16: bool = False) -> None:
        at_first_bytes = _begin_peak(device)
        model = build_transformer(shape, device)
        worker = build_transformer(shape, device).to(torch.bfloat16) if bf16 else model
        optimizer = build_optimizer(model.parameters())
        losses: list[torch.Tensor] = []
        part_losses: list[list[torch.Tensor]] = []
        times_ms: list[float] = []
        retained = KeptForBackward(worker.parameters())
        for step in range(STEPS):
            began_ns = time.monotonic_ns()
            optimizer.zero_grad()
            tokens, targets = batch_of(shape, step, device)
            with retained.counting() if step == STEPS - 1 else nullcontext():
                logits = worker(tokens)
                loss = loss_of(logits, targets)
                torch.autograd.backward(loss)
            losses.append(loss.detach())
            logits = logits.detach()
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
        self.memory = _with_peak(memory_of(model.parameters(), optimizer, retained.most_bytes), device, at_first_bytes)


def _begin_peak(device: torch.device) -> int:
    """Reset the peak of a GPU's memory; returns the bytes allocated before."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _with_peak(memory: StrategyMemory, device: torch.device, at_first_bytes: int) -> StrategyMemory:
    if device.type != "cuda":
        return memory
    return msgspec.structs.replace(memory, peak_bytes=torch.cuda.max_memory_allocated() - at_first_bytes)


def _hand_over_gradients(worker: nn.Module, model: nn.Module) -> None:
    for low, full in zip(worker.parameters(), model.parameters(), strict=True):
        assert low.grad is not None
        full.grad = low.grad.float()
        low.grad = None


def _hand_over_weights(model: nn.Module, worker: nn.Module) -> None:
    with torch.no_grad():
        for low, full in zip(worker.parameters(), model.parameters(), strict=True):
            low.copy_(full)
