"""Pipeline schedules as plain data: GPipe and 1F1B, and their theoretical cost. No torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

ScheduleName = Literal["gpipe", "1f1b"]
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b")


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
    """The actions of this stage, in order."""
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
