"""The report for other programs' formats: JUnit XML for CI systems, and one line of a Nagios plugin."""

from __future__ import annotations

from xml.etree import ElementTree

from gpudoctor.checks.core.faults import headline
from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.report.model import Report

CODES = {"pass": 0, "warn": 1, "fail": 2, "unknown": 3}
WORDS = {"pass": "OK", "warn": "WARNING", "fail": "CRITICAL", "unknown": "UNKNOWN"}


def render_junit(report: Report) -> str:
    """One test case per check: fail is a failure, unknown an error, skip is skipped; a warn passes with output.

    A further case, "run", is an error if gpudoctor failed, or if the verdict is unknown without a check that is.
    """
    counts = report.counts
    # a verdict that no check explains: a required check without one, a failure that another tool reports
    unexplained = report.verdict == "unknown" and not counts.unknown
    error = report.error or (report.reason if unexplained else None)
    suite = ElementTree.Element(
        "testsuite",
        name=f"gpudoctor {'SIMULATED ' if report.simulated else ''}{_clean(report.run.source.name)}",
        tests=str(len(report.checks) + (1 if error else 0)),
        failures=str(counts.fail),
        errors=str(counts.unknown + (1 if error else 0)),
        skipped=str(counts.skip),
        time=f"{report.run.duration_s:.3f}",
        timestamp=report.run.started_at,
        hostname=_clean(report.host.name or ""),
    )
    for result in report.checks:
        _case(suite, result)
    if error:
        case = ElementTree.SubElement(suite, "testcase", classname="gpudoctor", name="run")
        ElementTree.SubElement(case, "error", message=_clean(error))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, result: CheckResult) -> None:
    seconds = f"{result.duration_ms / 1000:.6f}"
    case = ElementTree.SubElement(suite, "testcase", classname=result.domain, name=result.id, time=seconds)
    lines = [f"{f.status.value}: {headline(f)}" for f in result.findings if f.status is not Status.PASS]
    text = _clean("\n".join(lines))
    first = _clean(next((headline(f) for f in result.findings if f.status is result.status), ""))
    if result.status is Status.FAIL:
        ElementTree.SubElement(case, "failure", message=first).text = text
    elif result.status is Status.UNKNOWN:
        ElementTree.SubElement(case, "error", message=first).text = text
    elif result.status is Status.SKIP:
        reason = next((f.reason for f in result.findings if f.reason), "")
        ElementTree.SubElement(case, "skipped", message=_clean(reason))
    elif text:
        ElementTree.SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    """Replace control characters and lone surrogates, which XML 1.0 cannot represent."""
    return "".join(c if c == "\n" or c.isprintable() else "?" for c in text)


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
