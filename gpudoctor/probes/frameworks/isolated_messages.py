"""The orders and answers of an isolated process, one JSON line each."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.facts.model.measured_strategies import (
    Framework,
    FrameworkView,
    StrategyRank,
    StrategyReference,
    StrategyShape,
)


class ViewTask(msgspec.Struct, frozen=True, tag=True):
    """Report what a framework sees."""

    framework: Framework


class TensorflowTask(msgspec.Struct, frozen=True, tag=True):
    """Train under one of TensorFlow's strategies.

    `replicas` in this one process (mirrored); or this is worker `worker` of those on `ports` of the loopback
    interface. `on_gpu`: on the GPUs that CUDA_VISIBLE_DEVICES shows, else on the CPU.
    `desync`: the replica or worker that drifts away, to see it caught.
    """

    shape: StrategyShape
    steps: int
    on_gpu: bool
    replicas: int = 1
    worker: int = 0
    ports: tuple[int, ...] = ()
    desync: int | None = None


Task = ViewTask | TensorflowTask


class IsolatedOrder(msgspec.Struct, frozen=True):
    """All that an isolated process receives at its start; it answers on the file descriptor."""

    fd: int
    task: Task


class IsolatedAnswer(msgspec.Struct, frozen=True, tag=True):
    """One line of an isolated process."""


class Doing(IsolatedAnswer, frozen=True):
    """What it begins to do."""

    text: str


class FrameworkDevices(IsolatedAnswer, frozen=True):
    """What a framework sees."""

    view: FrameworkView


class Reference(IsolatedAnswer, frozen=True):
    """The same steps without any strategy, in the library of this version."""

    version: str
    reference: StrategyReference


class Trained(IsolatedAnswer, frozen=True):
    """One replica or rank under one strategy; `missing_weights`: tensors that it should hold and does not."""

    variant: str
    rank: StrategyRank
    figures: dict[str, float] = {}
    missing_weights: tuple[str, ...] = ()


class IsolatedFailure(IsolatedAnswer, frozen=True):
    """It cannot go on. `unsupported`: this version of the library does not offer it; nothing is wrong with the node."""

    text: str
    kind: Literal["unsupported", "failed"] = "failed"


class Done(IsolatedAnswer, frozen=True):
    """It has sent everything; what happens to the process afterwards does not count."""


AnyAnswer = Doing | FrameworkDevices | Reference | Trained | IsolatedFailure | Done
