"""What is wrong, as cards, and every check with its findings, by domain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from xml.etree.ElementTree import Element

from gpudoctor.checks.core.finding import WORST_FIRST, Finding, Status, worst
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.report.html.elements import Child, append, chip, element, section
from gpudoctor.report.model import Report, is_above
from gpudoctor.report.text import domain_words
from gpudoctor.report.text_blocks import expected_words, explained_by, grouped_label, problem_groups

_OPEN = (Status.FAIL, Status.UNKNOWN, Status.WARN)


def problem_cards(report: Report) -> Element | None:
    """Each fault, unknown and warning: found, expected, evidence, likely, what to do, what it explains."""
    cards = [_card(report, result, findings) for result, findings in problem_groups(report)]
    return section("What is wrong" if report.faults else "What to look at", *cards, id_="problems")


def _card(report: Report, result: CheckResult, findings: list[Finding]) -> Element:
    first = findings[0]
    label = grouped_label(f.subject for f in findings) if len(findings) > 1 else first.subject.label
    title = element("h3", chip(first.status), " ", element("code", result.id), None if label == "node" else f" {label}")
    words = element("dl")
    for name, value in _rows(first, explained_by(report, result.id, findings)):
        append(words, element("dt", name), element("dd", value))
    return element("div", title, element("p", result.title, class_="title"), words, class_=f"card {first.status.value}")


def _rows(first: Finding, explains: list[str]) -> Iterator[tuple[str, Child]]:
    if first.found:
        yield "found", first.found.text
    if first.reason:
        yield "reason", first.reason
    if first.expected:
        yield "expected", expected_words(first.expected)
    if first.evidence:
        shown = (element("li", element("code", each.source), f" = {each.value}") for each in first.evidence)
        yield "evidence", element("ul", *shown)
    if first.likely:
        yield "likely", first.likely
    if first.advice:
        steps = (
            element("li", step.text, *((" ", element("code", step.command)) if step.command else ()))
            for step in first.advice
        )
        yield "do", element("ol" if len(first.advice) > 1 else "ul", *steps)
    if explains:
        yield "explains", element("ul", *(element("li", line) for line in explains))


def check_table(report: Report) -> Element | None:
    """A folded table for each domain, open where something is to be seen; what was not asked for comes last."""
    higher = [result for result in report.checks if is_above(result, report.run.level)]
    asked = (result for result in report.checks if result not in higher)
    folds = []
    for domain, group in groupby(asked, key=lambda result: result.domain):
        results = list(group)
        status = worst(result.status for result in results)
        folds.append(_fold(status, domain, domain_words(results, status).replace("   ", " · "), results))
    if higher:
        words = f"{len(higher)} not run: level {report.run.level} was asked for"
        folds.append(_fold(Status.SKIP, "higher levels", words, higher))
    return section("Checks", *folds, id_="checks")


def _fold(status: Status, name: str, words: str, results: Iterable[CheckResult]) -> Element:
    title = element("summary", chip(status), " ", element("b", name), " ", element("span", words, class_="words"))
    rows = (_check_row(result) for result in results)
    body = element("table", element("tbody", *rows), class_="checks")
    return element("details", title, body, class_="domain", open=status in _OPEN)


def _check_row(result: CheckResult) -> Element:
    said = element("ul")
    for status, label, words in _said(result):
        mark = None if status is result.status else chip(status)
        who = element("b", label) if label != "node" else None
        append(
            said, element("li", mark, " " if mark is not None else None, who, " " if who is not None else None, words)
        )
    return element(
        "tr",
        element("td", chip(result.status)),
        element("th", element("code", result.id), element("span", result.title), scope="row"),
        element("td", said),
    )


def _said(result: CheckResult) -> Iterator[tuple[Status, str, str]]:
    """(status, subjects, words), worst first; the same words on several subjects are said once."""
    groups: dict[tuple[Status, str], list[Finding]] = {}
    for finding in sorted(result.findings, key=lambda f: WORST_FIRST.index(f.status)):
        groups.setdefault((finding.status, _words(finding)), []).append(finding)
    for (status, words), findings in groups.items():
        label = grouped_label(f.subject for f in findings) if len(findings) > 1 else findings[0].subject.label
        yield status, label, words


def _words(finding: Finding) -> str:
    words = finding.found.text if finding.found else ""
    if finding.reason:
        words = f"{words}; {finding.reason}" if words else finding.reason
    if finding.status in (Status.FAIL, Status.WARN) and finding.expected:
        words += f"; expected {expected_words(finding.expected)}"
    return f"{words} (explained by {finding.explained_by})" if finding.explained_by else words
