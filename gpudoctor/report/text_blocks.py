"""The blocks of the text report: each fault, unknown and warning with found, expected, evidence and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudoctor.checks.core.causes import headline
from gpudoctor.checks.core.finding import PROBLEMS, Expected, Finding, Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import Subject
from gpudoctor.exits import printable
from gpudoctor.report.model import Report
from gpudoctor.units import ranges

STYLES = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIP: "dim",
    Status.UNKNOWN: "bold magenta",
}


def problems(report: Report) -> Iterator[RenderableType]:
    """Each group of problems as a block."""
    for result, findings in problem_groups(report):
        yield Text("")
        yield from _block(result.id, findings, explained_by(report, result.id, findings))


def problem_groups(report: Report) -> Iterator[tuple[CheckResult, list[Finding]]]:
    """Faults, then unknowns, then warnings; findings with the same words on several subjects form one group."""
    for status in PROBLEMS:
        for result in report.checks:
            roots = [f for f in result.findings if f.status is status and f.explained_by is None]
            groups: dict[object, list[Finding]] = {}
            for finding in roots:
                groups.setdefault(_same_words(finding), []).append(finding)
            for findings in groups.values():
                yield result, findings


def _same_words(finding: Finding) -> object:
    found = finding.found.text if finding.found else finding.reason
    return found, finding.expected.text if finding.expected else None, finding.likely


def _block(check_id: str, findings: list[Finding], explains: list[str]) -> Iterator[RenderableType]:
    first = findings[0]
    label = grouped_label(f.subject for f in findings) if len(findings) > 1 else first.subject.label
    who = "" if label == "node" else f"   {label}"
    yield Text.assemble(status_word(first.status), "  ", plain(check_id, "bold"), plain(who))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, value in block_rows(first, explains):
        table.add_row(plain(name, "dim"), plain(value))
    yield Padding(table, (0, 0, 0, 2))


def block_rows(first: Finding, explains: Iterable[str]) -> list[tuple[str, str]]:
    """A finding as rows of (label, words), in reading order; an empty label continues the previous one."""
    rows: list[tuple[str, str]] = []
    if first.found:
        rows.append(("found", first.found.text))
    if first.reason:
        rows.append(("reason", first.reason))
    if first.expected:
        rows.append(("expected", expected_words(first.expected)))
    rows += _labelled("evidence", [f"{each.source} = {each.value}" for each in first.evidence])
    if first.likely:
        rows.append(("likely", first.likely))
    steps = [a.text + (f"  {a.command}" if a.command else "") for a in first.advice]
    rows += _labelled("do", [f"{n}. {step}" if len(steps) > 1 else step for n, step in enumerate(steps, 1)])
    rows += _labelled("explains", explains)
    return rows


def explained_by(report: Report, check_id: str, findings: list[Finding]) -> list[str]:
    """What the findings of a block explain: failures and warnings line by line, three or more unknowns in one line."""
    if findings[0].status is Status.FAIL:
        subjects = [f.subject for f in findings]
        of = [fault for fault in report.faults if fault.check == check_id]
        gpus = {subject.gpu for subject in subjects}
        mine = [fault for fault in of if (gpus.issuperset(fault.gpus) if fault.gpus else fault.subject in subjects)]
        lines = list(dict.fromkeys(line for fault in mine for line in fault.explains))
    else:
        lines = [
            f"{result.id} {f.status.value}: {headline(f)}"
            for result in report.checks
            for f in result.findings
            if f.explained_by == check_id and f.status is not Status.FAIL
        ]
    blind = list(dict.fromkeys(line.split()[0] for line in lines if line.split()[1] == "unknown:"))
    if len(blind) < 3:
        return lines
    seen = [line for line in lines if line.split()[1] != "unknown:"]
    return [*seen, f"{len(blind)} checks that got no answer: {', '.join(blind)}"]


def _labelled(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(name if n == 0 else "", line) for n, line in enumerate(lines)]


def expected_words(expected: Expected) -> str:
    """The expectation and its source, unless the text already contains the source."""
    text, source = expected.text, expected.source
    if not source or all(word in text.lower() for word in source.lower().split()):
        return text
    return f"{text} ({source})"


def grouped_label(subjects: Iterable[Subject]) -> str:
    """ "GPU 0-3, 5" for GPUs; other labels are listed, at most four of them."""
    kept = list(subjects)
    gpus = sorted({s.gpu for s in kept if s.kind == "gpu" and s.gpu is not None})
    others = list(dict.fromkeys(s.label for s in kept if s.kind != "gpu" or s.gpu is None))
    shown = others[:4] + ([f"{len(others) - 4} more"] if len(others) > 4 else [])
    return ", ".join(([f"GPU {ranges(gpus)}"] if gpus else []) + shown)


def status_word(status: Status) -> Text:
    return Text(f"{status.value.upper():<7}", style=STYLES[status])


def plain(text: str, style: str = "") -> Text:
    """Text with control characters escaped: names from outside may contain terminal sequences."""
    return Text(printable(text), style=style)
