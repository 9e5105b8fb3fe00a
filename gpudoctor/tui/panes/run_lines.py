"""The text about runs on the Checks tab: the current one, the finished ones, and what changed."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content

from gpudoctor.checks.core.finding import Status
from gpudoctor.exits import printable
from gpudoctor.report.difference import Difference, differences
from gpudoctor.report.model import Report
from gpudoctor.tui.labels import Tone, clock, style_of
from gpudoctor.tui.state import FinishedRun, Running, State
from gpudoctor.units import duration_text

RUNS_SHOWN = 20
DIFFERENCES_SHOWN = 30
_TONES: dict[str, Tone] = {"fail": "fail", "unknown": "unknown", "warn": "warn", "pass": "pass"}


def running_words(running: Running | None, now_s: float) -> str:
    """One line on the current run: its checks, elapsed time, usual time left, and progress."""
    if running is None:
        return ""
    what = ", ".join(running.words) or "all checks"
    left_s = None if running.ends_s is None else running.ends_s - now_s
    left = f", about {duration_text(left_s)} left" if left_s is not None and left_s > 0 else ""
    doing = f"  {running.progress}" if running.progress else ""
    return printable(
        f"RUN {what}, level {running.level}: {duration_text(max(0.0, now_s - running.since_s))}{left}{doing}"
    )


def history_content(state: State, no_color: bool) -> Content:
    """The changes of the newest run, then the runs since the start, newest first."""
    lines = list(_changes(state, no_color))
    lines.append(Content("Runs since the start").stylize("bold"))
    if not state.runs:
        lines.append(Content("none yet"))
    lines += [_run_line(run, no_color) for run in reversed(state.runs[-RUNS_SHOWN:])]
    return Content("\n").join(lines)


def compared(state: State) -> tuple[str, Report, Report] | None:
    """(name of the old report, old, new): the saved report and the newest, else the two newest runs; None without two.

    Of the runs, the old one is the newest earlier run that judged any of the same checks.
    """
    if state.base is not None and state.report is not None:
        who = state.base.host.name or state.base.run.source.name
        return f"the saved report of {who}, {state.base.run.started_at}", state.base, state.report
    reports = [(run.at_s, run.report) for run in state.runs if run.report is not None]
    if len(reports) < 2:
        return None
    _, new = reports[-1]
    ids = {check.id for check in new.checks}
    for at_s, old in reversed(reports[:-1]):
        if any(check.id in ids for check in old.checks):
            return f"the run of {clock(at_s)}", old, new
    return None


def _changes(state: State, no_color: bool) -> Iterator[Content]:
    pair = compared(state)
    if pair is None:
        return
    against, old, new = pair
    found = differences(old, new)
    yield Content(printable(f"Against {against}")).stylize("bold")
    if not found:
        yield Content("nothing changed")
    for difference in found[:DIFFERENCES_SHOWN]:
        yield _difference_line(difference, no_color)
    if len(found) > DIFFERENCES_SHOWN:
        yield Content(f"and {len(found) - DIFFERENCES_SHOWN} more")
    yield Content("")


def _difference_line(difference: Difference, no_color: bool) -> Content:
    tone: Tone = "quiet"
    if difference.kind == "gone" or difference.after is Status.PASS:
        tone = "pass"
    elif difference.after is not None:
        tone = _TONES.get(difference.after.value, "skip")
    return Content.assemble((f"{difference.kind}: ", style_of(tone, no_color)), printable(difference.text))


def _run_line(run: FinishedRun, no_color: bool) -> Content:
    what = printable(", ".join(run.words) or "all")
    head = f"{clock(run.at_s)}  {run.level:<8}  {what:<12}  "
    if run.report is None:
        return Content.assemble(head, ("no verdict ", style_of("unknown", no_color)), printable(run.error or ""))
    report = run.report
    word = report.verdict.upper() if report.verdict == "fail" else report.verdict
    faults = f"{len(report.faults)} fault{'s' * (len(report.faults) != 1)}"
    partial = "  interrupted: partial" if report.run.interrupted else ""
    on = ""
    if report.measurements.launch is not None and report.measurements.launch.backend == "gloo":
        on = f"  {report.measurements.launch.world_size} CPU ranks"
    return Content.assemble(
        head,
        (f"{word:<8}", style_of(_TONES[report.verdict], no_color)),
        f" {faults}  {report.run.duration_s:.1f} s{on}{partial}",
    )
