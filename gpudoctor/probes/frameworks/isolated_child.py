"""A process of its own for what cannot live in the ranks: frameworks that abort at exit, or want CUDA to themselves.

Until its task begins only the standard library and msgspec are imported here.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import NoReturn

import msgspec

from gpudoctor.probes.frameworks.isolated_messages import (
    Doing,
    Done,
    IsolatedAnswer,
    IsolatedFailure,
    IsolatedOrder,
    TensorflowTask,
    ViewTask,
)
from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all


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
