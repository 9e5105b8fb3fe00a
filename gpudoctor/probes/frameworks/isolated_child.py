"""A process of its own for what cannot live in the ranks: frameworks that abort at exit, or want CUDA to themselves.

Its orders and answers are one JSON line each. Until its task begins only the standard library and msgspec are imported
here, and the shapes of what it measures.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Literal, NoReturn

import msgspec

from gpudoctor.facts.model.measured_strategies import (
    Framework,
    FrameworkView,
    StrategyRank,
    StrategyReference,
    StrategyShape,
)
from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all


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


class AnswerWriter:
    """Writes answers to the parent, each at once and whole."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, answer: IsolatedAnswer) -> None:
        try:
            write_all(self._fd, msgspec.json.encode(answer) + b"\n")
        except BrokenPipeError:
            leave(1)  # the parent is gone

    def doing(self, text: str) -> None:
        self.send(Doing(text))


def begin(argument: str) -> NoReturn:
    """Do what the order (JSON) asks, and end without tearing anything down.

    The exits of these libraries abort or hang.
    """
    order = msgspec.json.decode(argument, type=IsolatedOrder)
    answers = AnswerWriter(order.fd)

    # Not `except`: whatever a library raises is sent once; first of all, since it may have closed stderr.
    def send_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        unsupported = issubclass(kind, NotImplementedError)
        answers.send(IsolatedFailure(_in_words(error), "unsupported" if unsupported else "failed"))
        traceback.print_exception(kind, error, trace)
        leave(1)

    sys.excepthook = send_and_leave
    match order.task:
        case ViewTask(framework=framework):
            from gpudoctor.probes.frameworks.views import view_of

            view_of(framework, answers)
        case TensorflowTask():
            from gpudoctor.probes.frameworks.tensorflow_steps import train

            train(order.task, answers)
    answers.send(Done())
    leave()


def _in_words(error: BaseException) -> str:
    # what JSON cannot carry (half of a surrogate pair) must not cost the message
    text = str(error).encode(errors="replace").decode()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
