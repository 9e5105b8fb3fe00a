"""Measurements outside the ranks: the devices each framework sees, and the strategies of other libraries.

This process never imports any of them; it looks for their files to find out whether they are installed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.machinery import PathFinder

import msgspec

from gpudoctor.facts.model.measured_strategies import (
    FRAMEWORKS,
    FrameworkView,
    LibraryStrategies,
    Strategies,
    StrategyRun,
    StrategyShape,
)
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.frameworks.isolated import ENDED_WITH_OTHERS, IsolatedProcess, IsolatedResult, run_isolated
from gpudoctor.probes.frameworks.isolated_child import IsolatedAnswer, TensorflowTask, ViewTask
from gpudoctor.probes.runner.launch import run_probes
from gpudoctor.probes.runner.plan import ProbePlan, injections_of

STEPS = 10
INSTALL = {
    "torch": "pip install 'torch>=2.4' 'numpy>=1.26'",
    "deepspeed": "pip install 'deepspeed>=0.16'",
    "tensorflow": "pip install 'tensorflow>=2.16'",
}
_NAMES = {"torch": "PyTorch", "deepspeed": "DeepSpeed", "tensorflow": "TensorFlow", "jax": "JAX"}
# Keras, which TensorFlow imports, would create ~/.keras; under /dev/null it cannot, and goes on without it
_LEAVES_NOTHING: Mapping[str, str | None] = {"KERAS_HOME": "/dev/null"}
# tensorflow/core/common_runtime/gpu/gpu_device.cc, GetValidDeviceIds: logged at INFO, which many users disable
_LEFT_OUT = "Ignoring visible gpu device"
_VERBOSE: Mapping[str, str | None] = {**_LEAVES_NOTHING, "TF_CPP_MIN_LOG_LEVEL": "0"}
# importing a framework from a cold network disk takes many times as long as the usual 2 s
IMPORT_DEADLINE_S = 90.0
# settings that would make TensorFlow behave differently from run to run or from user to user
_TENSORFLOW_ENVIRON: Mapping[str, str | None] = {
    **_LEAVES_NOTHING,
    "TF_CONFIG": None,
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_GRPC_REUSE_PORT": "1",  # this process holds the ports, so that no other takes them before the workers do
    "TF_NUM_INTRAOP_THREADS": "1",
    # its workers would connect to each other through a proxy
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "all_proxy"), None),
}


def missing_library(name: str) -> Missing | None:
    """Why a library cannot be used, with the command that installs it; None if it is installed."""
    found = importlib.util.find_spec(name)
    if found is not None and _in_working_directory(str(found.origin)):
        found = PathFinder.find_spec(name, sys.path[1:])
    if found is not None and found.origin is not None:  # None for a plain folder of the same name
        return None
    install = INSTALL.get(name)
    return Missing(f"{_NAMES[name]} is not installed" + (f": {install}" if install else ""))


def _in_working_directory(origin: str) -> bool:
    """Whether only `python -m gpudoctor` finds it, which searches there first, unlike the processes that we start."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except OSError:
        return False  # the directory was removed
    return sys.path[0] == here and origin.startswith(f"{here}{os.sep}")


def framework_views(deadline_s: float) -> Measurements:
    """Ask all installed frameworks at the same time, each in a separate process.

    Of the Measurements only `frameworks` and `not_run` are filled, the latter with "frameworks" if none is installed,
    and with "frameworks.NAME" for one that gave no answer.
    """
    installed = [name for name in FRAMEWORKS if missing_library(name) is None]
    if not installed:
        why = f"none of {', '.join(_NAMES[name] for name in FRAMEWORKS)} is installed: {INSTALL['torch']}"
        return Measurements(not_run={"frameworks": Missing(why)})
    starts = [IsolatedProcess(_NAMES[name], ViewTask(name), _VERBOSE) for name in installed]
    results = run_isolated(starts, deadline_s=deadline_s, together=False)
    views: list[FrameworkView] = []
    not_run: dict[str, Missing] = {}
    for name, each in zip(installed, results, strict=True):
        if each.failure is not None or each.answer.view is None:
            not_run[f"frameworks.{name}"] = each.failure or Missing("it gave no answer", "failed")
        else:
            views.append(_with_complaints(each.answer.view, each.output))
    return Measurements(frameworks=tuple(views), not_run=not_run)


def _with_complaints(view: FrameworkView, output: Sequence[str]) -> FrameworkView:
    left_out = dict.fromkeys(line[line.index(_LEFT_OUT) :] for line in output if _LEFT_OUT in line)
    view = msgspec.structs.replace(view, left_out=tuple(left_out))
    if view.gpus != 0:
        return view
    telling = [line for line in output if any(word in line.lower() for word in ("cuda", "gpu", "dlopen"))]
    return msgspec.structs.replace(view, complaints=tuple(telling[-3:]))


def deepspeed_strategies(plan: ProbePlan, deadline_s: float, progress: Callable[[str], None] | None) -> Measurements:
    """ZeRO 1, 2 and 3 on separate ranks; fills only `deepspeed` or not_run["deepspeed"].

    Of `plan` only the devices and the desync fault are used.
    """
    why = missing_library("torch") or missing_library("deepspeed")
    if why is not None:
        return Measurements(not_run={"deepspeed": why})
    own = ProbePlan(
        plan.backend,
        plan.ranks,
        plan.gpus,
        ("strategy",),
        "full",
        inject=tuple(text for text in plan.inject if text.startswith("desync=")),
        strategies=("deepspeed",),
    )
    measured = run_probes(own, deadline_s=deadline_s, probe_deadline_s=deadline_s, progress=progress)
    found = measured.strategies
    failure = next((Missing(problem.text, "failed") for problem in measured.problems), None)
    if found is not None and failure is not None:
        found = msgspec.structs.replace(found, not_run={"deepspeed": failure})  # earlier stages may have figures
    if found is None or not found.runs:
        own_reason = found.not_run.get("deepspeed") if found is not None else None
        failure = failure or own_reason or measured.not_run.get("strategy")
        return Measurements(not_run={"deepspeed": failure or Missing("it brought no figures", "failed")})
    from importlib.metadata import PackageNotFoundError, version

    try:
        deepspeed_version = version("deepspeed")
    except PackageNotFoundError:
        deepspeed_version = "of unknown version"
    return Measurements(deepspeed=LibraryStrategies("DeepSpeed", deepspeed_version, found))


def tensorflow_strategies(plan: ProbePlan, deadline_s: float, progress: Callable[[str], None] | None) -> Measurements:
    """MirroredStrategy in one process, then MultiWorkerMirroredStrategy in one process per rank.

    Fills only `tensorflow` or not_run["tensorflow"]; `deadline_s` applies to each of the two.
    """
    why = missing_library("tensorflow")
    if why is not None:
        return Measurements(not_run={"tensorflow": why})
    on_gpu = plan.backend == "nccl"
    # a batch that the ranks can share; small, since building the graph takes most of the time
    shape = StrategyShape(layers=1, width=32, heads=4, vocabulary=64, sequence=16, batch=4 * plan.ranks)
    uuids = plan.gpu_uuids
    desync = next((each.rank for each in injections_of(plan) if each.kind == "desync"), None)
    report = progress or (lambda text: None)
    run = functools.partial(run_isolated, deadline_s=deadline_s, import_deadline_s=IMPORT_DEADLINE_S, together=True)
    report("TensorFlow's MirroredStrategy")
    one = TensorflowTask(shape, STEPS, on_gpu, plan.ranks, desync=desync)
    [mirrored] = run([IsolatedProcess("MirroredStrategy", one, _environ(uuids))])
    if mirrored.failure is not None and not mirrored.loaded:
        return Measurements(not_run={"tensorflow": mirrored.failure})  # it would not load in the workers either
    report("TensorFlow's MultiWorkerMirroredStrategy")
    with ExitStack() as held:
        try:
            ports = tuple(_port(held) for _ in range(plan.ranks))
        except OSError as error:
            none = Missing(f"no port for its workers on the loopback interface: {error.strerror or error}", "failed")
            return _merged(plan, shape, {"mirrored": [mirrored], "multi-worker": [IsolatedResult(failure=none)]})
        starts = [
            IsolatedProcess(
                f"worker {number}",
                TensorflowTask(shape, STEPS, on_gpu, worker=number, ports=ports, desync=desync),
                _environ(uuids[number : number + 1]),
            )
            for number in range(plan.ranks)
        ]
        workers = run(starts)
    return _merged(plan, shape, {"mirrored": [mirrored], "multi-worker": workers})


def _environ(uuids: Sequence[str]) -> Mapping[str, str | None]:
    # by UUID, since CUDA and the driver number GPUs differently
    return {**_TENSORFLOW_ENVIRON, "CUDA_VISIBLE_DEVICES": ",".join(uuids) or "-1"}


def _port(held: ExitStack) -> int:
    """A free loopback port, held until the stack is closed; only sockets with SO_REUSEPORT may bind it meanwhile."""
    holder = held.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    port: int = holder.getsockname()[1]
    return port


def _merged(plan: ProbePlan, shape: StrategyShape, results: Mapping[str, Sequence[IsolatedResult]]) -> Measurements:
    runs: list[StrategyRun] = []
    not_run: dict[str, Missing] = {}
    reported: list[IsolatedAnswer] = []
    for variant, processes in results.items():
        ranks = sorted((rank for each in processes for rank in each.answer.ranks), key=lambda rank: rank.rank)
        reported += [each.answer for each in processes if each.answer.reference is not None]
        failures = [each.failure for each in processes if each.failure is not None]
        if failures or len(ranks) != plan.ranks:
            # best the reason of a process that failed, then of one that hung, last of one that waited for another
            failures.sort(key=lambda each: (ENDED_WITH_OTHERS in each.reason, "did not leave" in each.reason))
            not_run[variant] = (failures or [Missing("not every replica answered", "failed")])[0]
        else:
            runs.append(StrategyRun("tensorflow", variant, "fp32", tuple(ranks)))
    reference = reported[0].reference if reported else None
    if not runs or reference is None:
        return Measurements(not_run={"tensorflow": next(iter(not_run.values()))})
    found = Strategies(plan.device, plan.ranks, shape, STEPS, reference, tuple(runs), not_run)
    return Measurements(tensorflow=LibraryStrategies("TensorFlow", reported[0].version, found))
