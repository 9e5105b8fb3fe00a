"""The whole page: head, verdict, banners, problems, checks, figures, facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from shlex import join
from xml.etree.ElementTree import Element

from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Advice, Evidence, Finding, Status, worst
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.report.html.charts import topology
from gpudoctor.report.html.elements import Child, append, banner, chip, element, page, section, tally
from gpudoctor.report.html.facts import facts_part
from gpudoctor.report.html.figures import figures_part
from gpudoctor.report.model import Report, alarms, is_above, node_words, profile_words
from gpudoctor.report.wording import (
    block_parts,
    domain_words,
    expected_words,
    explained_by,
    label_of,
    problem_groups,
    verdict_word,
    verdict_words,
)


def problem_cards(report: Report) -> Element | None:
    """A card for each fault, unknown and warning: found, expected, evidence, likely cause, advice, what it explains."""
    cards = [_card(report, result, findings) for result, findings in problem_groups(report)]
    return section("What is wrong" if report.faults else "What to look at", *cards, id_="problems")


def _card(report: Report, result: CheckResult, findings: list[Finding]) -> Element:
    first = findings[0]
    label = label_of(findings)
    title = element("h3", chip(first.status), " ", element("code", result.id), None if label == "node" else f" {label}")
    words = element("dl")
    for name, part in block_parts(findings, explained_by(report, result.id, findings)):
        steps = name == "do" and len(part) > 1
        shown = part if isinstance(part, str) else element("ol" if steps else "ul", *map(_item, part))
        append(words, element("dt", name), element("dd", shown))
    return element("div", title, element("p", result.title, class_="title"), words, class_=f"card {first.status.value}")


def _item(item: Evidence | Advice | str) -> Element:
    if isinstance(item, Evidence):
        return element("li", element("code", item.source), f" = {item.value}")
    if isinstance(item, str):
        return element("li", item)
    return element("li", item.text, *((" ", element("code", item.command)) if item.command else ()))


def check_table(report: Report) -> Element | None:
    """A folding table per domain, open if it has a problem; checks of higher levels come last."""
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
    return element("details", title, body, class_="domain", open=status in PROBLEMS)


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
    """(status, subjects, words), worst first; findings with the same words on several subjects are merged."""
    groups: dict[tuple[Status, str], list[Finding]] = {}
    for finding in sorted(result.findings, key=lambda f: WORST_FIRST.index(f.status)):
        groups.setdefault((finding.status, _words(finding)), []).append(finding)
    for (status, words), findings in groups.items():
        yield status, label_of(findings), words


def _words(finding: Finding) -> str:
    words = finding.found.text if finding.found else ""
    if finding.reason:
        words = f"{words}; {finding.reason}" if words else finding.reason
    if finding.status in (Status.FAIL, Status.WARN) and finding.expected:
        words += f"; expected {expected_words(finding.expected)}"
    return f"{words} (explained by {finding.explained_by})" if finding.explained_by else words


def render_html(report: Report, *, raw_facts: bool = True) -> str:
    """One self-contained page without scripts; the same report always gives the same bytes.

    `raw_facts`: append the facts as JSON, if the report includes them. Text from outside is escaped.
    """
    return page(f"{_word(report)} {_host(report)}: gpudoctor report", *_body(report, raw_facts))


def _body(report: Report, raw_facts: bool) -> Iterator[Child]:
    yield element("header", *_header(report), class_=f"verdict {report.verdict}")
    main = element("main")
    parts: list[Child] = [*_banners(report)]
    if report.error is None:
        parts += [
            problem_cards(report),
            check_table(report),
            topology(report),
            *figures_part(report),
            *facts_part(report, raw_facts),
        ]
    for part in parts:
        if isinstance(part, Element):
            main.append(part)
    yield main
    yield _footer(report)


def _header(report: Report) -> Iterator[Child]:
    yield element("p", f"gpudoctor {report.tool.version} report", class_="kicker")
    yield element("h1", _host(report))
    if report.error is not None:
        yield element("p", element("strong", "NOT JUDGED", class_="word"), " gpudoctor could not do its work")
        return
    yield element("p", element("strong", verdict_word(report), class_="word"), f" {verdict_words(report)}")
    if report.verdict != "pass":
        yield element("p", report.reason, class_="reason")
    node = [*node_words(report, "×"), *([f"kernel {report.host.kernel}"] if report.host.kernel else [])]
    yield element("p", " · ".join(node), class_="node")
    yield _tally(report)


def _tally(report: Report) -> Element:
    counts = report.counts
    tiles = (
        ("fail", "fault" if len(report.faults) == 1 else "faults", len(report.faults)),
        ("fail", "check failed" if counts.fail == 1 else "checks failed", counts.fail),
        ("unknown", "unknown", counts.unknown),
        ("warn", "warning" if counts.warn == 1 else "warnings", counts.warn),
        ("pass", "passed", counts.passed),
        ("skip", "skipped", counts.skip),
    )
    return tally(tiles)


def _banners(report: Report) -> Iterator[Element]:
    source = report.run.source
    if not report.simulated and report.error is None and source.kind != "live":
        yield banner("READ", f"from {source.kind} {source.name}: that machine, not the one that judged", "quiet")
    yield from (banner(word, text, "loud") for word, text in alarms(report))
    if report.error is not None:
        yield banner("ERROR", report.error, "loud")
    for note in report.run.notes:
        yield banner("Note", note, "quiet")


def _footer(report: Report) -> Element:
    run = report.run
    command = join(("gpudoctor", *run.argv)) if run.argv else None
    said = (
        ("Command", element("code", command) if command else None),
        ("Judged against", profile_words(report.profile)),
        ("Level", run.level),
        ("Source", f"{run.source.kind} {run.source.name}".strip()),
        ("Started", run.started_at or None),
        ("Took", f"{run.duration_s:.1f} s"),
        ("Exit code", str(report.exit_code)),
        ("Run", run.id or None),
        ("Virtualization", report.host.virtualization),
    )
    rows: list[Child] = []
    for name, value in said:
        if value is not None:
            rows += [element("dt", name), element("dd", value)]
    part = section("This run", element("dl", *rows), id_="run")
    return element("footer", part)


def _word(report: Report) -> str:
    word = "NOT JUDGED" if report.error is not None else verdict_word(report)
    return f"{word} (SIMULATED)" if report.simulated else word


def _host(report: Report) -> str:
    """The host name; for a simulated node, the name of the source."""
    names = (None if report.simulated else report.host.name, report.run.source.name, report.host.name)
    return next((name for name in names if name), "this machine")
