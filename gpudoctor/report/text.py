"""The report as text for people: one line per domain, then each fault, then what to run next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudoctor.checks.faults import headline
from gpudoctor.checks.finding import Evidence, Finding, Status, Subject, worst
from gpudoctor.checks.run import CheckResult
from gpudoctor.exits import printable
from gpudoctor.report.figures import figure_lines
from gpudoctor.report.report import Report

STYLES = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIP: "dim",
    Status.UNKNOWN: "bold magenta",
}
NARROWEST = 40


def render_text(report: Report, *, width: int, color: bool, verbose: bool = False) -> str:
    """The whole report, laid out for `width` columns; colour only adds, the status word is always there."""
    console = Console(
        width=max(width, NARROWEST),
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(Group(*_parts(report, verbose)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _parts(report: Report, verbose: bool) -> Iterator[RenderableType]:
    yield from _head(report)
    yield Text("")
    yield _domains(report, verbose)
    if verbose:
        yield from _findings(report)
    figures = figure_lines(report.measurements)
    if figures:
        yield Text("")
        yield from (Padding(_text(line), (0, 0, 0, 2)) for line in figures)
    yield from _problems(report)
    yield Text("")
    yield from _tail(report)


def _head(report: Report) -> Iterator[Text]:
    names = [gpu.name or "unnamed GPU" for gpu in report.gpus]
    models = [f"{len(list(group))} x {name}" for name, group in groupby(sorted(names))]
    parts = [
        f"gpudoctor {report.tool.version}",
        report.host.name or report.run.source.name,
        ", ".join(models) or "no GPU",
    ]
    if report.host.driver:
        parts.append(f"driver {report.host.driver}")
    if report.host.cuda:
        parts.append(f"CUDA {report.host.cuda}")
    if report.simulated:
        faults = report.run.source.faults
        what = f"SIMULATED node {report.run.source.name}" + (f" with {', '.join(faults)}" if faults else "")
        yield _text(f"{what}: invented values, no real GPU was looked at", "bold yellow")
    elif report.run.source.kind != "live":
        yield _text(f"Read from {report.run.source.kind} {report.run.source.name}: that machine, not this one")
    if report.run.injected:
        yield _text(f"INJECTED {', '.join(report.run.injected)}: the probes were made to go wrong", "bold yellow")
    if report.run.interrupted:
        yield _text(f"INTERRUPTED by {report.run.interrupted}: what was known until then", "bold yellow")
    yield _text(" | ".join(parts), "bold")
    against = report.profile.matched_by
    if report.profile.name != "none":
        against = f"Judged against profile {report.profile.name} ({against})"
    yield _text(f"{against[:1].upper()}{against[1:]}. {len(report.checks)} checks, level {report.run.level}.")
    for note in report.run.notes:
        yield _text(f"Note: {note}")


def _domains(report: Report, verbose: bool) -> RenderableType:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for domain, group in groupby(report.checks, key=lambda result: result.domain):
        results = list(group)
        status = worst(result.status for result in results)
        table.add_row(_status(status), _text(domain), _text(_domain_words(results, status)))
    return Padding(table, (0, 0, 0, 2))


def _domain_words(results: list[CheckResult], status: Status) -> str:
    """ "3 of 4 ok: link-width fail (GPU 5)" or "7 checks" or "5 checks: why they were skipped"."""
    looked = [r for r in results if r.status is not Status.SKIP]
    skipped = len(results) - len(looked)
    plural = "check" if len(results) == 1 else "checks"
    if status is Status.SKIP:
        reasons = list(dict.fromkeys(_reason(r) for r in results))
        more = f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
        return f"{len(results)} {plural}: {reasons[0]}{more}"
    bad = [r for r in looked if r.status is not Status.PASS]
    tail = f", {skipped} skipped" if skipped else ""
    if not bad:
        summary = next((f.found.text for r in results for f in r.findings if f.found and f.found.unit == "links"), "")
        return f"{len(looked)} {'check' if len(looked) == 1 else 'checks'}{tail}" + (f"   {summary}" if summary else "")
    ok = len(looked) - len(bad)
    named = ", ".join(f"{r.id.partition('.')[2]}{_who(r)}" for r in bad)
    return f"{ok} of {len(looked)} ok{tail}   {named}"


def _who(result: CheckResult) -> str:
    labels = _grouped_label(f.subject for f in result.findings if f.status is result.status)
    return f": {labels}" if labels and labels != "node" else ""


def _reason(result: CheckResult) -> str:
    return next((f.reason for f in result.findings if f.reason), "nothing to judge")


def _findings(report: Report) -> Iterator[RenderableType]:
    for result in report.checks:
        yield Text("")
        yield Text.assemble(_status(result.status), "  ", _text(result.id, "bold"), "  ", _text(result.title))
        for finding in result.findings:
            text = finding.found.text if finding.found else finding.reason or ""
            row = Table.grid(padding=(0, 2))
            row.add_column(no_wrap=True)
            row.add_column(no_wrap=True, max_width=28)
            row.add_column(overflow="fold", ratio=1)
            row.add_row(_status(finding.status), _text(finding.subject.label), _text(text))
            yield Padding(row, (0, 0, 0, 2))


def _problems(report: Report) -> Iterator[RenderableType]:
    """Faults first, then what is unknown, then warnings; the same words on several GPUs make one block."""
    for status in (Status.FAIL, Status.UNKNOWN, Status.WARN):
        for result in report.checks:
            roots = [f for f in result.findings if f.status is status and f.explained_by is None]
            blocks: dict[object, list[Finding]] = {}
            for finding in roots:
                blocks.setdefault(_same_words(finding), []).append(finding)
            for findings in blocks.values():
                yield Text("")
                yield from _block(result.id, findings, _explained(report, result.id, findings))


def _same_words(finding: Finding) -> object:
    found = finding.found.text if finding.found else finding.reason
    return found, finding.expected.text if finding.expected else None, finding.likely


def _block(check_id: str, findings: list[Finding], explains: list[str]) -> Iterator[RenderableType]:
    first = findings[0]
    label = _grouped_label(f.subject for f in findings) if len(findings) > 1 else first.subject.label
    yield Text.assemble(_status(first.status), "  ", _text(check_id, "bold"), "   ", _text(label))
    rows: list[tuple[str, str]] = []
    if first.found:
        rows.append(("found", first.found.text))
    if first.reason:
        rows.append(("reason", first.reason))
    if first.expected:
        source = f" ({first.expected.source})" if first.expected.source else ""
        rows.append(("expected", f"{first.expected.text}{source}"))
    rows += _labelled("evidence", [_evidence(e) for e in first.evidence])
    if first.likely:
        rows.append(("likely", first.likely))
    steps = [a.text + (f"  {a.command}" if a.command else "") for a in first.advice]
    rows += _labelled("do", [f"{n}. {step}" if len(steps) > 1 else step for n, step in enumerate(steps, 1)])
    rows += _labelled("explains", explains)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, value in rows:
        table.add_row(_text(name, "dim"), _text(value))
    yield Padding(table, (0, 0, 0, 2))


def _explained(report: Report, check_id: str, findings: list[Finding]) -> list[str]:
    if findings[0].status is Status.FAIL:
        subjects = [f.subject for f in findings]
        return list(
            dict.fromkeys(
                line for fault in report.faults if fault.check == check_id and fault.subject in subjects
                for line in fault.explains
            )
        )  # fmt: skip
    return [
        f"{result.id} {f.status.value}: {headline(f)}"
        for result in report.checks
        for f in result.findings
        if f.explained_by == check_id and f.status is not Status.FAIL
    ]


def _labelled(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(name if n == 0 else "", line) for n, line in enumerate(lines)]


def _evidence(evidence: Evidence) -> str:
    return f"{evidence.source} = {evidence.value}"


def _grouped_label(subjects: Iterable[Subject]) -> str:
    """ "GPU 0-3, 5" for GPUs; other labels in a row, the first few of many."""
    kept = list(subjects)
    gpus = sorted({s.gpu for s in kept if s.kind == "gpu" and s.gpu is not None})
    others = list(dict.fromkeys(s.label for s in kept if s.kind != "gpu"))
    shown = others[:4] + ([f"{len(others) - 4} more"] if len(others) > 4 else [])
    return ", ".join(([f"GPU {_ranges(gpus)}"] if gpus else []) + shown)


def _ranges(numbers: list[int]) -> str:
    """
    >>> _ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _tail(report: Report) -> Iterator[Text]:
    counts = report.counts
    faults = f"{len(report.faults)} {'fault' if len(report.faults) == 1 else 'faults'}"
    gpus = _grouped_label(fault.subject for fault in report.faults)
    on = f" on {gpus}" if gpus and gpus != "node" else ""
    failed = f" ({counts.fail} {'check' if counts.fail == 1 else 'checks'} failed)" if counts.fail else ""
    yield _text(
        f"{faults}{on}{failed}, {counts.passed} passed, {counts.warn} {'warning' if counts.warn == 1 else 'warnings'}, "
        f"{counts.skip} skipped, {counts.unknown} unknown.  {report.run.duration_s:.1f} s"
    )
    verdict = {"pass": "fit to train on", "warn": "works; look at the warnings", "fail": "not fit to train on"}
    words = verdict.get(report.verdict, "not known: what could not be read is not a pass")
    style = STYLES[Status(report.verdict)]
    yield Text.assemble(_text(report.verdict.upper(), style), _text(f"  {words}"))
    worst_check = next(
        (r.id for status in (Status.FAIL, Status.UNKNOWN, Status.WARN) for r in report.checks if r.status is status), ""
    )
    if worst_check:
        yield _text(f"Next:  gpudoctor explain {worst_check}  |  gpudoctor check {worst_check.partition('.')[0]} -v")


def _status(status: Status) -> Text:
    return Text(f"{status.value.upper():<7}", style=STYLES[status])


def _text(text: str, style: str = "") -> Text:
    """Words from outside, made harmless: a name may hold escape sequences."""
    return Text(printable(text), style=style)


def terminal_width() -> int:
    """Columns of the terminal, or of COLUMNS; 100 where there is neither."""
    from shutil import get_terminal_size

    return get_terminal_size((100, 24)).columns


def wants_color(asked: str, environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """--color, then NO_COLOR and FORCE_COLOR, then whether a terminal reads it."""
    if asked != "auto":
        return asked == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
