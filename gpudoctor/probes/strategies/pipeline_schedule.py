"""The order of a pipeline's work, as plain data: GPipe and 1F1B, and what each of them should cost. No torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

ScheduleName = Literal["gpipe", "1f1b"]
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b")


class Action(NamedTuple):
    """Forward or backward of one microbatch, counted from 0."""

    kind: Literal["forward", "backward"]
    microbatch: int


class Transfer(NamedTuple):
    """An activation (forward) or its gradient (backward) of one microbatch, to or from the stage named."""

    way: Literal["send", "receive"]
    peer: int
    what: Action


def gpipe(microbatches: int) -> tuple[Action, ...]:
    """All forwards, then all backwards; the same on every stage (Huang et al. 2019, arXiv:1811.06965)."""
    forwards = tuple(Action("forward", index) for index in range(microbatches))
    return forwards + tuple(Action("backward", index) for index in range(microbatches))


def one_f_one_b(stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """Fill the pipeline, then one forward and one backward in turn, then drain it.

    PipeDream-Flush of Narayanan et al. 2021 (arXiv:2104.04473, section 2.2.1): a stage holds the
    activations of at most `stages - stage` microbatches.
    """
    ahead = min(stages - stage - 1, microbatches)
    order = [Action("forward", index) for index in range(ahead)]
    for index in range(microbatches - ahead):
        order += [Action("forward", ahead + index), Action("backward", index)]
    return (*order, *(Action("backward", index) for index in range(microbatches - ahead, microbatches)))


def actions_of(schedule: ScheduleName, stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """What this stage does, in order."""
    return gpipe(microbatches) if schedule == "gpipe" else one_f_one_b(stage, stages, microbatches)


def transfers_before(done: Action | None, then: Action | None, stage: int, stages: int) -> tuple[Transfer, ...]:
    """What passes between two actions: the result of the one that is done, and what the next one needs.

    To be posted together: a stage that waited for its send to be taken before it received could
    wait for ever. None: nothing is done yet, or nothing follows.
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
    """The largest number of microbatches whose activations are kept at one time."""
    held = most = 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        most = max(most, held)
    return most


def bubble_share(stages: int, microbatches: int) -> float:
    """The share of a step in which a stage has nothing to do: (p-1)/(m+p-1).

    For both schedules, where all stages take equally long (Narayanan et al. 2021, section 2.2.1, gives
    the bubble over the ideal time, (p-1)/m; over the whole step that is (p-1)/(m+p-1)).
    """
    return (stages - 1) / (microbatches + stages - 1)


def layers_of_stage(layers: int, stage: int, stages: int) -> range:
    """The layers of one stage: as equal as can be, the first stages one more."""
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (1 if stage < more else 0))
