"""The report as one Nagios plugin line, with performance data."""

from __future__ import annotations

from gpudoctor.report.model import Report

CODES = {"pass": 0, "warn": 1, "fail": 2, "unknown": 3}
WORDS = {"pass": "OK", "warn": "WARNING", "fail": "CRITICAL", "unknown": "UNKNOWN"}


def render_nagios(report: Report) -> str:
    """`GPUDOCTOR CRITICAL - reason | perfdata`; the first bar starts the perfdata, so the text must not contain one."""
    counts = report.counts
    simulated = "SIMULATED " if report.simulated else ""
    data = (
        f"pass={counts.passed} warn={counts.warn} fail={counts.fail} skip={counts.skip} unknown={counts.unknown} "
        f"gpus={len(report.gpus)} faults={len(report.faults)} time={report.run.duration_s:.3f}s"
    )
    text = (report.error or report.reason).replace("|", "/")
    text = "".join(c for c in text if c.isprintable())
    return f"GPUDOCTOR {WORDS[report.verdict]} - {simulated}{text} | {data}\n"


def nagios_code(report: Report) -> int:
    """The exit code of a Nagios plugin; UNKNOWN if gpudoctor could not do its work."""
    return 3 if report.error else CODES[report.verdict]
