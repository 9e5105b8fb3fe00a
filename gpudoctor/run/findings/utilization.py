"""run.utilization: are the GPUs busy, evenly and steadily?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.finding import Expected, Finding, Found, ok, skip, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.measured.under_load import telemetry_of
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.watched import Watched

_LEAST = Limit(80, "%", "vendor guides: a training that is fed keeps its GPUs above 80 % busy", name="utilization_warn")
_SPREAD = Limit(15, "percentage points", "gpudoctor's own choice, as train.utilization", name="spread_warn")


@run_check("run.utilization", title="The GPUs are busy, and equally busy", limits=(_LEAST, _SPREAD))
def utilization(watched: Watched) -> Iterator[Finding]:
    """Judge the utilisation of the run's GPUs, the median of the samples."""
    telemetry = telemetry_of(watched.case, "train")
    used = {rank.gpu for rank in watched.ranks if rank.gpu is not None}
    loads = [load for load in (telemetry.gpus if telemetry else ()) if load.index in used]
    busy = {load.index: load.readings["utilization_pct"].median for load in loads if "utilization_pct" in load.readings}
    if not busy:
        yield skip(NODE, "no rank computes on a GPU" if not used else "the driver gave no utilisation")
        return
    low, high = min(busy.values()), max(busy.values())
    found = Found(f"GPUs {low:.0f} to {high:.0f} % busy (median of the readings)", low, "%")
    expected = Expected(f"at least {_LEAST.value:g} %", ">=", _LEAST.value, "%", _LEAST.source)
    if low < _LEAST.value or high - low > _SPREAD.value:
        yield warn(NODE, found, expected, likely="see which part of the step is not compute: data, host or waiting")
    else:
        yield ok(NODE, found, expected)
