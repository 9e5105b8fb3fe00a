"""The report of a run in which nothing could be judged."""

from __future__ import annotations

from gpudoctor.exits import printable
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.report.model import Counts, HostSummary, ProfileSummary, Report, Run, Tool

COULD_NOT_REASON = "UNKNOWN gpudoctor could not do its work"


def error_report(
    run: Run, error: str, exit_code: int, *, reason: str = COULD_NOT_REASON, hostname: str | None = None
) -> Report:
    """A report with the verdict unknown and no checks; `error` is one line that says why."""
    return Report(
        schema="gpudoctor.report/1",
        tool=Tool(),
        run=run,
        host=HostSummary(hostname, None, None),
        gpus=(),
        profile=ProfileSummary("none", "nothing was judged"),
        verdict="unknown",
        exit_code=exit_code,
        reason=reason,
        counts=Counts(),
        checks=(),
        faults=(),
        measurements=Measurements(),
        simulated=run.source.kind == "simulated",
        error=printable(error),
    )
