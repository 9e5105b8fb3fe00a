"""The GPUs that torch, TensorFlow and JAX see; runs in a separate process for each."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from gpudoctor.facts.model.measured_strategies import Framework, FrameworkView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.frameworks.isolated_child import AnswerWriter, FrameworkDevices

_NO_UUIDS = Missing("it does not tell UUIDs", "unsupported")
_CPU_BUILD = Missing("this build is for the CPU")


def view_of(framework: Framework, answers: AnswerWriter) -> None:
    """Query the framework and send its view; exceptions are the caller's to report."""
    answers.doing(f"import {framework}")
    view = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}[framework](answers)
    answers.send(FrameworkDevices(view))


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
