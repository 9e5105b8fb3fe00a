"""Pipeline schedules (GPipe and 1F1B) as plain data with their cost, and one step by them: our own, or torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from gpudoctor.probes.runner.torch_device import torch_version

ScheduleName = Literal["gpipe", "1f1b"]
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b")
# With gloo torch 2.13 works; 2.9 sends 8 bytes but receives 4, and aborts the process. Versions between are untested.
TORCH_SCHEDULES_SINCE = (2, 13)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# One step of this rank's stage, on inputs and targets of the whole batch: the first stage uses the inputs, the last the
# targets. Returns the mean loss over the microbatches on the last stage, None on the others.
PipelineStep = Callable[[torch.Tensor, torch.Tensor], "torch.Tensor | None"]


class Action(NamedTuple):
    """Forward or backward of one microbatch, counted from 0."""

    kind: Literal["forward", "backward"]
    microbatch: int


class Transfer(NamedTuple):
    """The transfer of one microbatch's activation (forward) or its gradient (backward) to or from stage `peer`."""

    way: Literal["send", "receive"]
    peer: int
    what: Action


def gpipe(microbatches: int) -> tuple[Action, ...]:
    """All forwards, then all backwards; the same on every stage (Huang et al. 2019, arXiv:1811.06965)."""
    forwards = tuple(Action("forward", index) for index in range(microbatches))
    return forwards + tuple(Action("backward", index) for index in range(microbatches))


def one_f_one_b(stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """Fill the pipeline, then alternate one forward and one backward, then drain it.

    PipeDream-Flush of Narayanan et al. 2021 (arXiv:2104.04473, section 2.2.1): a stage holds the
    activations of at most `stages - stage` microbatches.
    """
    ahead = min(stages - stage - 1, microbatches)
    order = [Action("forward", index) for index in range(ahead)]
    for index in range(microbatches - ahead):
        order += [Action("forward", ahead + index), Action("backward", index)]
    return (*order, *(Action("backward", index) for index in range(microbatches - ahead, microbatches)))


def actions_of(schedule: ScheduleName, stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    return gpipe(microbatches) if schedule == "gpipe" else one_f_one_b(stage, stages, microbatches)


def transfers_before(done: Action | None, then: Action | None, stage: int, stages: int) -> tuple[Transfer, ...]:
    """The transfers between two actions: the result of the first, and the input of the second.

    They must be posted together: a stage that waited for its send to complete before it received could wait
    forever. `done` None: the first action; `then` None: the end.
    """
    passed = []
    if done is not None:
        peer = stage + 1 if done.kind == "forward" else stage - 1
        if 0 <= peer < stages:
            passed.append(Transfer("send", peer, done))
    if then is not None:
        peer = stage - 1 if then.kind == "forward" else stage + 1
        if 0 <= peer < stages:
            passed.append(Transfer("receive", peer, then))
    return tuple(passed)


def most_held(actions: tuple[Action, ...]) -> int:
    """The largest number of microbatches whose activations are held at one time."""
    held = most = 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        most = max(most, held)
    return most


def bubble_share(stages: int, microbatches: int) -> float:
    """The share of a step in which a stage is idle: (p-1)/(m+p-1).

    For both schedules, if all stages take equally long (Narayanan et al. 2021, section 2.2.1, gives
    the bubble relative to the ideal time, (p-1)/m; relative to the whole step that is (p-1)/(m+p-1)).
    """
    return (stages - 1) / (microbatches + stages - 1)


def layers_of_stage(layers: int, stage: int, stages: int) -> range:
    """The layers of one stage, divided as evenly as possible; the first stages have one more."""
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (1 if stage < more else 0))


class Stages:
    """The stages of a pipeline; `peers`: their global ranks, in order; `own`: this rank."""

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


class SendRecvPipeline:
    """A schedule with torch's batched sends and receives, which both gloo and NCCL have; one stage works too.

    `boundary`: the shape, without the batch dimension, of what one stage passes to the next, in `dtype`.
    `forward_context`: returns the context for forward pass and loss of a microbatch. An output that was sent is freed:
    only its edge in the graph is kept. Logits live until their backward pass is over, as in torch's own schedules.
    """

    def __init__(
        self,
        stages: Stages,
        module: nn.Module,
        schedule: ScheduleName,
        microbatches: int,
        loss: Loss,
        boundary: tuple[int, ...],
        *,
        dtype: torch.dtype | None = None,
        forward_context: Callable[[int], AbstractContextManager[Any]] = lambda microbatch: nullcontext(),
    ) -> None:
        self._stages, self._module, self._loss = stages, module, loss
        self._microbatches = microbatches
        self._boundary, self._dtype = boundary, dtype
        self._forward_context = forward_context
        self._actions = actions_of(schedule, stages.index, stages.count, microbatches)

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        given, expected = inputs.chunk(self._microbatches), targets.chunk(self._microbatches)
        received: dict[Action, torch.Tensor] = {}
        made: dict[int, Any] = {}  # where the backward pass starts: a tensor or its edge in the graph
        logits: dict[int, torch.Tensor] = {}
        losses: list[torch.Tensor] = []
        for done, then in pairwise((None, *self._actions, None)):
            self._exchange(done, then, received, made, given[0].shape[0])
            if then is None:
                break
            index = then.microbatch
            if then.kind == "forward":
                taken = given[index] if self._stages.first else received[then].requires_grad_()
                with self._forward_context(index):
                    made[index] = self._module(taken)
                    if self._stages.last:
                        logits[index] = made[index]
                        made[index] = self._loss(logits[index], expected[index]) / self._microbatches
                        losses.append(made[index].detach())
            else:
                torch.autograd.backward(made.pop(index), None if self._stages.last else received.pop(then))
                logits.pop(index, None)
        return torch.stack(losses).sum() if losses else None

    def _exchange(
        self,
        done: Action | None,
        then: Action | None,
        received: dict[Action, torch.Tensor],
        made: dict[int, Any],
        size: int,
    ) -> None:
        operations = []
        for way, peer, what in transfers_before(done, then, self._stages.index, self._stages.count):
            if way == "receive":
                tensor = received[what] = torch.empty(
                    (size, *self._boundary), dtype=self._dtype, device=self._stages.device
                )
                operation: Any = dist.irecv
            elif what.kind == "forward":
                tensor, operation = made[what.microbatch].detach().contiguous(), dist.isend
                made[what.microbatch] = _gradient_edge(made[what.microbatch])
            else:
                gradient = received.pop(Action("forward", what.microbatch)).grad
                if gradient is None:
                    raise RuntimeError(f"microbatch {what.microbatch} has no gradient to send to stage {peer}")
                tensor, operation = gradient.contiguous(), dist.isend
            operations.append(dist.P2POp(operation, tensor, self._stages.peers[peer]))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()


def _gradient_edge(output: torch.Tensor) -> Any:
    """Where a backward pass can start without the tensor's values; before torch 2.6 the tensor itself."""
    if torch_version() < (2, 6):
        return output
    from torch.autograd.graph import get_gradient_edge

    return get_gradient_edge(output)


def pipeline_step(
    stages: Stages,
    module: nn.Module,
    schedule: ScheduleName,
    microbatches: int,
    loss: Loss,
    boundary: tuple[int, ...],
) -> PipelineStep:
    """This rank's stage in a schedule of all ranks of the run: torch's own if that works, or else SendRecvPipeline."""
    if not torch_runs_schedules():
        return SendRecvPipeline(stages, module, schedule, microbatches, loss, boundary)
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stage = PipelineStage(module, stages.index, stages.count, stages.device)
    made: Any = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
    play = made(stage, n_microbatches=microbatches, loss_fn=loss)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        if stages.first:
            play.step(inputs)
        elif stages.last:
            play.step(target=targets, losses=losses)
        else:
            play.step()
        return torch.stack(losses).mean().detach() if losses else None

    return step


def torch_runs_schedules() -> bool:
    """Whether this torch's own schedules are known to work on CPU ranks and GPUs."""
    return torch_version() >= TORCH_SCHEDULES_SINCE
