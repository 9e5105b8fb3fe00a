"""The functions of `import gpudoctor`: they turn keyword arguments into requests. Contract: `docs/python-api.md`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpudoctor.api.load.request import Backend, not_run
from gpudoctor.api.node_check import CheckRequest, Sourced, prepare, read_source, report_on, run_prepared
from gpudoctor.checks.core.registry import Level
from gpudoctor.errors import UserError
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports
from gpudoctor.probes.runner.launch_engine import local_placement
from gpudoctor.process.exit_codes import FailOn

with lazy_imports():
    from gpudoctor.api import local_verdict

if TYPE_CHECKING:
    from gpudoctor.report.model import Report

Words = str | Iterable[str]  # one name, or several
Gpus = str | int | Iterable[str | int] | None  # indices, UUIDs, bus ids
Source = str | os.PathLike[str]


def check(
    *,
    node: Source | None = None,
    faults: Words = (),
    only: Words = (),
    skip: Words = (),
    require: Words = (),
    level: Level | None = None,
    duration_s: float | None = None,
    gpu: Gpus = None,
    backend: Backend | Literal["auto"] = "auto",
    ranks: int | None = None,
    inject: Words = (),
    force: bool = False,
    data: Source | Iterable[Source] = (),
    need: str | None = None,
    profile: Source | None = None,
    config: Source | None = None,
    strict: bool = False,
    deadline_s: float | None = None,
    fail_on: FailOn | None = None,
    include_facts: bool = False,
    redact: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Check this machine, or `node`, as `gpudoctor check` does with the options of the same names.

    `only`: ids, domains or globs of checks (empty: all). `duration_s`: of level burn, in seconds. `progress` is called
    with a line for people now and then. Raise UserError, one line, if the check cannot be done; a failing node is not
    an exception.
    """
    request = CheckRequest(
        node=_path(node),
        faults=_words(faults),
        only=_words(only),
        skip=_words(skip),
        require=_words(require),
        level=level,
        duration=None if duration_s is None else f"{duration_s:.3f}",
        gpu=_gpu(gpu),
        backend=backend,
        ranks=ranks,
        inject=_words(inject),
        force=force,
        data=_paths(data),
        need=need,
        profile=_path(profile),
        config=None if config is None else Path(config),
        strict=strict,
        deadline_s=deadline_s,
        fail_on=fail_on,
        include_facts=include_facts,
        redact=redact,
    )
    return run_check(request, progress=progress)


def run_check(request: CheckRequest, *, progress: Callable[[str], None] | None = None) -> Report:
    """Run the check that a request describes. Raise UserError if it cannot be done."""
    return run_prepared(prepare(request), progress=progress, words=True)


def load_source(source: Source | None = None, faults: Words = (), *, deadline_s: float = COLLECTION.seconds) -> Sourced:
    """The facts of this machine, or of a source with faults applied to them, and the measurements of a saved report.

    A source is what `--node` accepts. `deadline_s` limits reading the driver of this machine. Raise UserError.
    """
    return read_source(_path(source), _words(faults), deadline_s)


def load_node(source: Source | None = None, faults: Words = (), *, deadline_s: float = COLLECTION.seconds) -> Node:
    """The facts that `load_source` returns, without the measurements. Raise UserError."""
    return load_source(source, faults, deadline_s=deadline_s).node


def judge(
    node: Node,
    measurements: Measurements | None = None,
    *,
    only: Words = (),
    skip: Words = (),
    require: Words = (),
    level: Level | None = None,
    gpu: Gpus = None,
    profile: Source | None = None,
    config: Source | None = None,
    fail_on: FailOn | None = None,
    include_facts: bool = False,
    redact: bool = False,
) -> Report:
    """Judge given facts and measurements, without reading this machine or putting load on it.

    Without measurements, the checks that need some are skipped. Raise UserError for unknown names.
    """
    request = CheckRequest(
        only=_words(only),
        skip=_words(skip),
        require=_words(require),
        level=level,
        gpu=_gpu(gpu),
        profile=_path(profile),
        config=None if config is None else Path(config),
        fail_on=fail_on,
        include_facts=include_facts,
        redact=redact,
    )
    measured = not_run(Missing("judged without measurements")) if measurements is None else measurements
    return report_on(prepare(request), node, measured)


def preflight(
    level: Level = "quick",
    *,
    node: Source | None = None,
    faults: Words = (),
    only: Words = (),
    skip: Words = (),
    require: Words = (),
    gpu: Gpus = None,
    backend: Backend | Literal["auto"] = "auto",
    ranks: int | None = None,
    force: bool = False,
    profile: Source | None = None,
    config: Source | None = None,
    deadline_s: float | None = None,
    fail_on: FailOn | None = None,
) -> Report:
    """For the top of a training script: return the report if this node is fit to train on, else raise NotFitError.

    Under torchrun, srun or mpirun all processes call it with the same arguments before they touch a GPU: the first
    process of each node checks the GPUs of all of them, and all return its report. It does not need
    torch.distributed. A node is not fit if the exit code is not 0, the verdict is fail or unknown, or the first process
    ended or did not answer. Raise UserError, in all processes, if the check could not be done.
    """
    request = CheckRequest(
        node=_path(node),
        faults=_words(faults),
        only=_words(only),
        skip=_words(skip),
        require=_words(require),
        level=level,
        gpu=_gpu(gpu),
        backend=backend,
        ranks=ranks,
        force=force,
        profile=_path(profile),
        config=None if config is None else Path(config),
        deadline_s=deadline_s,
        fail_on=fail_on,
    )
    placement = local_placement(os.environ)
    if placement is not None and placement.rank:
        report = local_verdict.report_of_first(placement)
    elif placement is not None:
        report = local_verdict.report_for_all(placement, request)
    elif os.environ.get("LOCAL_RANK", "0") != "0" and level != "quick":
        raise UserError(
            f"preflight({level!r}): LOCAL_RANK is {os.environ['LOCAL_RANK']}, but none of torchrun, srun and mpirun "
            "started this process; what checks each node by itself is level quick"
        )
    else:
        report = run_check(request)
    if report.exit_code != 0 or report.verdict in ("fail", "unknown"):
        what = "simulated node" if report.simulated else "node"
        text = f"{what} {report.run.source.name} is not fit to train on: {report.reason}"
        raise local_verdict.NotFitError(text, report)
    return report


def _words(parts: Words) -> tuple[str, ...]:
    return (parts,) if isinstance(parts, str) else tuple(parts)


def _paths(paths: Source | Iterable[Source]) -> tuple[str, ...]:
    return (os.fspath(paths),) if isinstance(paths, (str, os.PathLike)) else tuple(os.fspath(path) for path in paths)


def _path(path: Source | None) -> str | None:
    return None if path is None else os.fspath(path)


def _gpu(gpu: Gpus) -> str | None:
    if gpu is None or isinstance(gpu, str):
        return gpu
    return str(gpu) if isinstance(gpu, int) else ",".join(map(str, gpu))
