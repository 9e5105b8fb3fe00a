"""The isolated process, for what cannot run in the ranks: frameworks that abort at exit or need CUDA exclusively.

Its order and its answers are one JSON line each. It reports the GPUs that a framework sees, or trains by TensorFlow.
Until its task begins, it imports only the standard library, msgspec and the model of the measurements.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from gpudoctor.facts.model.measured_strategies import (
    Framework,
    FrameworkView,
    StrategyRank,
    StrategyReference,
    StrategyShape,
)
from gpudoctor.facts.model.missing import Missing
from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all

_NO_UUIDS = Missing("it does not tell UUIDs", "unsupported")
_CPU_BUILD = Missing("this build is for the CPU")


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


class IsolatedAnswer(msgspec.Struct, frozen=True):
    """One line of an isolated process: the step that it is in, and everything that it has found so far.

    `view`: the devices that a framework sees. `reference`: the same steps without a strategy; `version`: the library's.
    `ranks`: each replica of this process under the strategy. `failure`: why it cannot go on; `unsupported`: this
    library's version lacks a feature, nothing is wrong with the node. `done`: how it ends afterwards is irrelevant.
    """

    doing: str = "start"
    view: FrameworkView | None = None
    version: str = ""
    reference: StrategyReference | None = None
    ranks: tuple[StrategyRank, ...] = ()
    failure: Missing | None = None
    done: bool = False


class AnswerWriter:
    """Writes answers to the parent, each immediately and completely."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._answer = IsolatedAnswer()

    def found(self, **fields: Any) -> None:
        """Set these fields of the answer, and send it."""
        self._answer = msgspec.structs.replace(self._answer, **fields)
        try:
            write_all(self._fd, msgspec.json.encode(self._answer) + b"\n")
        except BrokenPipeError:
            leave(1)  # the parent has ended

    def doing(self, text: str) -> None:
        self.found(doing=text)


def begin(argument: str) -> NoReturn:
    """Execute the order (JSON), and exit without any teardown, in which these libraries abort or hang."""
    order = msgspec.json.decode(argument, type=IsolatedOrder)
    answers = AnswerWriter(order.fd)

    # A hook instead of `except`: it gets every exception once. Send first, since the library may have closed stderr.
    def send_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        unsupported = issubclass(kind, NotImplementedError)
        answers.found(failure=Missing(_in_words(error), "unsupported" if unsupported else "failed"))
        traceback.print_exception(kind, error, trace)
        leave(1)

    sys.excepthook = send_and_leave
    match order.task:
        case ViewTask(framework=framework):
            view_of(framework, answers)
        case TensorflowTask(worker=worker, ports=ports):
            if ports:  # TensorFlow reads it when it is imported
                workers = [f"127.0.0.1:{port}" for port in ports]
                place = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": worker}}
                os.environ["TF_CONFIG"] = json.dumps(place)
            answers.doing("import tensorflow")
            gc.disable()  # a third of the import time; it finds nothing, and this process lives for seconds
            from gpudoctor.probes.frameworks.tensorflow_steps import train

            train(order.task, answers)
    answers.found(done=True)
    if isinstance(order.task, TensorflowTask) and order.task.ports:
        while True:  # until the parent ends all workers: a slower one may still fetch from this one for the last step
            signal.pause()
    leave()


def _in_words(error: BaseException) -> str:
    # JSON cannot represent lone surrogates, which must not cost the message
    text = str(error).encode(errors="replace").decode()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def view_of(framework: Framework, answers: AnswerWriter) -> None:
    """Query the framework and send its view; exceptions are the caller's to report."""
    answers.doing(f"import {framework}")
    view = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}[framework](answers)
    answers.found(view=view)


def _torch(answers: AnswerWriter) -> FrameworkView:
    import torch

    version = str(torch.__version__)
    if torch.version.cuda is None:
        return _cpu_build("torch", version)
    answers.doing("count the GPUs")
    cuda: Any = torch.cuda  # not annotated everywhere
    try:
        cuda.init()  # counting alone does not open CUDA, it may use NVML
    except (RuntimeError, AssertionError, cuda.DeferredCudaCallError) as failure:
        return FrameworkView("torch", version, True, cuda.device_count(), _NO_UUIDS, error=_first_line(failure))
    found = []
    with suppress(RuntimeError, AssertionError):  # some versions count by NVML, which lists more GPUs than CUDA opens
        for number in range(cuda.device_count()):
            found.append(getattr(cuda.get_device_properties(number), "uuid", None))
    uuids = tuple(text if (text := str(uuid)).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in found)
    return FrameworkView("torch", version, True, len(found), _NO_UUIDS if None in found else uuids)


def _tensorflow(answers: AnswerWriter) -> FrameworkView:
    import tensorflow as tf

    version = str(tf.__version__)
    if not tf.test.is_built_with_cuda():
        return _cpu_build("tensorflow", version)
    answers.doing("count the GPUs")
    # creates no context on a GPU and uses none of its memory
    return FrameworkView("tensorflow", version, True, len(tf.config.list_physical_devices("GPU")), _NO_UUIDS)


def _jax(answers: AnswerWriter) -> FrameworkView:
    # otherwise its first query allocates three quarters of the memory of every GPU
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    version = str(jax.__version__)
    if not _has_cuda_plugin():
        return _cpu_build("jax", version)
    platforms = [name.strip() for name in str(jax.config.jax_platforms or "").split(",") if name.strip()]
    if platforms and not {"cuda", "gpu"} & set(platforms):
        held_back = f"JAX_PLATFORMS={','.join(platforms)}"
        return FrameworkView("jax", version, True, Missing(held_back), _NO_UUIDS, held_back=held_back)
    shown = str(getattr(jax.config, "jax_cuda_visible_devices", None) or "all")
    if shown != "all":
        held_back = f"JAX_CUDA_VISIBLE_DEVICES={shown}"
        return FrameworkView("jax", version, True, Missing(held_back), _NO_UUIDS, held_back=held_back)
    answers.doing("count the GPUs")
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError as failure:
        return FrameworkView("jax", version, True, 0, _NO_UUIDS, error=_first_line(failure))
    return FrameworkView("jax", version, True, len(devices), _NO_UUIDS)


def _cpu_build(framework: Framework, version: str) -> FrameworkView:
    return FrameworkView(framework, version, False, _CPU_BUILD, _CPU_BUILD)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _has_cuda_plugin() -> bool:
    """Whether JAX has CUDA: as a plug-in package, in older versions inside jaxlib."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    if any("cuda" in point.name or "cuda" in point.value for point in entry_points(group="jax_plugins")):
        return True
    packages = find_spec("jax_plugins")
    folders = list(packages.submodule_search_locations or []) if packages else []
    if any("cuda" in name for folder in folders for name in os.listdir(folder)):  # noqa: PTH208
        return True
    try:
        from jaxlib import cuda  # noqa: F401
    except ImportError:
        return False
    return True
