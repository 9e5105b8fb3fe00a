"""Judging the results of a library other than torch (DeepSpeed, TensorFlow) like torch's."""

from __future__ import annotations

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, skip, unread
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.measured_strategies import LibraryStrategies
from gpudoctor.facts.model.measurements import Launch


def library_absent(case: Case, part: str, what: str) -> Finding:
    """Why a library was not tried; a skip if it is not installed."""
    why = case.measurements.not_run.get(part)
    if why is not None and why.kind != "failed" and why.reason.startswith(f"{what} "):
        return skip(NODE, why.reason)
    return skip(NODE, f"{what}: not measured in this run") if why is None else unread(NODE, what, why)


def library_case(case: Case, measured: LibraryStrategies) -> Case:
    """The case with the library's results in place of torch's, and without the problems of torch's ranks."""
    found, launch = measured.strategies, case.measurements.launch
    if launch is None or launch.world_size != found.world_size:
        launch = Launch("nccl" if found.device == "cuda" else "gloo", found.world_size, ())
    return msgspec.structs.replace(
        case, measurements=msgspec.structs.replace(case.measurements, strategies=found, problems=(), launch=launch)
    )
