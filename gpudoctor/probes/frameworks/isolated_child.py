"""The isolated process, for what cannot run in the ranks: frameworks that abort at exit or need CUDA exclusively.

Its order and its answers are one JSON line each. Until its task begins, it imports only the standard library, msgspec
and the model of the measurements.
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
    """Report the devices that a framework sees."""

    framework: Framework


class TensorflowTask(msgspec.Struct, frozen=True, tag=True):
    """Train under one of TensorFlow's strategies.

    Either `replicas` in this process (mirrored), or worker `worker` of those on `ports` of the loopback interface.
    `on_gpu`: on the GPUs in CUDA_VISIBLE_DEVICES, otherwise on the CPU.
    `desync`: the replica or worker whose weights are changed by that injected fault.
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
    """Everything an isolated process is given at its start; it answers on the descriptor `fd`."""

    fd: int
    task: Task


class IsolatedAnswer(msgspec.Struct, frozen=True, tag=True):
    """One line of an isolated process."""


class Doing(IsolatedAnswer, frozen=True):
    """The process begins this step."""

    text: str


class FrameworkDevices(IsolatedAnswer, frozen=True):
    """The devices that a framework sees."""

    view: FrameworkView


class Reference(IsolatedAnswer, frozen=True):
    """The same steps without a strategy, and the library's version."""

    version: str
    reference: StrategyReference


class Trained(IsolatedAnswer, frozen=True):
    """One replica or rank under one strategy; `missing_weights`: tensors that it lacks."""

    variant: str
    rank: StrategyRank
    figures: dict[str, float] = {}
    missing_weights: tuple[str, ...] = ()


class IsolatedFailure(IsolatedAnswer, frozen=True):
    """The process cannot go on. `unsupported`: this library version lacks a feature; nothing is wrong with the node."""

    text: str
    kind: Literal["unsupported", "failed"] = "failed"


class Done(IsolatedAnswer, frozen=True):
    """The process has sent everything; how it ends afterwards is irrelevant."""


AnyAnswer = Doing | FrameworkDevices | Reference | Trained | IsolatedFailure | Done


class AnswerWriter:
    """Writes answers to the parent, each immediately and completely."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, answer: IsolatedAnswer) -> None:
        try:
            write_all(self._fd, msgspec.json.encode(answer) + b"\n")
        except BrokenPipeError:
            leave(1)  # the parent has ended

    def doing(self, text: str) -> None:
        self.send(Doing(text))


def begin(argument: str) -> NoReturn:
    """Execute the order (JSON), and exit without any teardown, in which these libraries abort or hang."""
    order = msgspec.json.decode(argument, type=IsolatedOrder)
    answers = AnswerWriter(order.fd)

    # A hook instead of `except`: it gets every exception once. Send first, since the library may have closed stderr.
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
    # JSON cannot represent lone surrogates, which must not cost the message
    text = str(error).encode(errors="replace").decode()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
