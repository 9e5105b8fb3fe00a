"""One step of a pipeline: by torch's own schedule where it runs, else by sends and receives written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from gpudoctor.probes.strategies.model import Transformer
from gpudoctor.probes.strategies.pipeline_schedule import Action, ScheduleName, actions_of, transfers_before

# On gloo 2.13 runs it; 2.9 sends 8 bytes where it receives 4, and aborts the process. Nothing in between was tried.
TORCH_SCHEDULES_SINCE = (2, 13)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PipelineStep(Protocol):
    """One step of this rank's stage; gradients are of the mean loss over the microbatches."""

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """The mean loss on the last stage, None on the others.

        Every stage is given the whole batch: the first takes the inputs from it, the last the targets.
        """


class Stages:
    """Who is where in a pipeline: `peers` are the global ranks of its stages, in order."""

    def __init__(self, peers: Sequence[int], own: int, device: torch.device) -> None:
        self.peers = tuple(peers)
        self.index = self.peers.index(own)
        self.count = len(self.peers)
        self.device = device

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1


def cut(model: Transformer, layers: range) -> Transformer:
    """The stage of a model that has these layers: the other parts are taken out of it."""
    last = str(len(model.blocks) - 1)
    if "0" in model.blocks and 0 not in layers:
        model.embed = model.place = None
    if int(last) not in layers:
        model.norm = model.head = None
    for name in list(model.blocks):
        if int(name) not in layers:
            del model.blocks[name]
    return model


class HandWritten:
    """A schedule played with torch's batched sends and receives, which gloo and NCCL both have.

    `boundary` is the shape, without the microbatch, of what one stage gives the next.
    """

    def __init__(
        self,
        stages: Stages,
        module: nn.Module,
        schedule: ScheduleName,
        microbatches: int,
        loss: Loss,
        boundary: tuple[int, ...],
    ) -> None:
        self._stages = stages
        self._module = module
        self._loss = loss
        self._microbatches = microbatches
        self._boundary = boundary
        self._actions = actions_of(schedule, stages.index, stages.count, microbatches)

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """As PipelineStep says."""
        given = list(inputs.chunk(self._microbatches))
        wanted = targets.chunk(self._microbatches)
        received: dict[Action, torch.Tensor] = {}
        made: dict[int, torch.Tensor] = {}
        losses: list[torch.Tensor] = []
        for done, then in pairwise((None, *self._actions, None)):
            self._exchange(done, then, received, made, given[0].shape[0])
            if then is None:
                break
            index = then.microbatch
            if then.kind == "forward":
                taken = given[index] if self._stages.first else received[then].requires_grad_()
                made[index] = self._module(taken)
                if self._stages.last:
                    made[index] = self._loss(made[index], wanted[index]) / self._microbatches
                    losses.append(made[index].detach())
            else:
                torch.autograd.backward(made.pop(index), None if self._stages.last else received.pop(then))
        return torch.stack(losses).sum() if losses else None

    def _exchange(
        self,
        done: Action | None,
        then: Action | None,
        received: dict[Action, torch.Tensor],
        made: dict[int, torch.Tensor],
        size: int,
    ) -> None:
        operations = []
        for way, peer, what in transfers_before(done, then, self._stages.index, self._stages.count):
            if way == "receive":
                tensor = received[what] = torch.empty((size, *self._boundary), device=self._stages.device)
                operation: Any = dist.irecv
            elif what.kind == "forward":
                tensor, operation = made[what.microbatch].detach(), dist.isend
            else:
                gradient = received.pop(Action("forward", what.microbatch)).grad
                if gradient is None:
                    raise RuntimeError(f"microbatch {what.microbatch} has no gradient to send to stage {peer}")
                tensor, operation = gradient.contiguous(), dist.isend
            operations.append(dist.P2POp(operation, tensor, self._stages.peers[peer]))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()


class TorchsOwn:
    """torch.distributed.pipelining's schedule of that name, on all ranks of the run."""

    def __init__(
        self, stages: Stages, module: nn.Module, schedule: ScheduleName, microbatches: int, loss: Loss
    ) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        self._stages = stages
        stage = PipelineStage(module, stages.index, stages.count, stages.device)
        made: Any = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
        self._schedule = made(stage, n_microbatches=microbatches, loss_fn=loss)

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """As PipelineStep says."""
        if self._stages.first:
            self._schedule.step(inputs)
        elif self._stages.last:
            losses: list[torch.Tensor] = []
            self._schedule.step(target=targets, losses=losses)
            return torch.stack(losses).mean().detach()
        else:
            self._schedule.step()
        return None


def torch_runs_schedules() -> bool:
    """Whether this torch's own schedules are known to come to their end on CPU ranks and GPUs."""
    version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    return version >= TORCH_SCHEDULES_SINCE
