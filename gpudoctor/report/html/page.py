"""The report of a node as a page: verdict, what to do, what is wrong, and folded all that was checked and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from shlex import join

from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Finding, Status, worst
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.report.html.cards import advice_cards, finding_card
from gpudoctor.report.html.charts import topology
from gpudoctor.report.html.facts import facts_part
from gpudoctor.report.html.figures import figures_part
from gpudoctor.report.html.parts import (
    Card,
    Cell,
    Chip,
    Code,
    Command,
    Findings,
    Fold,
    Items,
    Page,
    Section,
    Strong,
    pairs,
    section,
)
from gpudoctor.report.html.render import render_page
from gpudoctor.report.model import Report, alarms, is_above, node_words, profile_words
from gpudoctor.report.wording import (
    Explained,
    domain_words,
    expected_words,
    joined_problems,
    label_of,
    verdict_word,
    verdict_words,
)
from gpudoctor.text.grouped import grouped


def render_html(report: Report, *, raw_facts: bool = True) -> str:
    """One self-contained page without scripts; the same report always gives the same bytes.

    `raw_facts`: append the facts as JSON, if the report includes them. Text from outside is escaped.
    """
    simulated = " (SIMULATED)" if report.simulated else ""
    judged = report.error is None
    word = verdict_word(report) if judged else "NOT JUDGED"
    node = [*node_words(report, "×"), *([f"kernel {report.host.kernel}"] if report.host.kernel else [])]
    problems, title, lacking = joined_problems(report) if judged else ([], "", [])
    explained = Explained(report)
    cards = [finding_card(result.id, findings, explained.by(result.id, findings)) for result, findings in problems]
    if lacking:
        rows = pairs(*((Code(check), text) for check, text in lacking))
        cards.append(Card("unknown", (Chip("unknown"), title), (rows,)))
    page = Page(
        title=f"{word}{simulated} {_host(report)}: gpudoctor report",
        kicker=f"gpudoctor {report.tool.version} report",
        heading=_host(report),
        status=report.verdict,
        word=word,
        verdict=verdict_words(report) if judged else "gpudoctor could not do its work",
        # the badge above says the verdict
        reason=report.reason.removeprefix(f"{word} ") if judged and report.verdict != "pass" else "",
        where=" · ".join(node) if judged else "",
        counts=_counts(report) if judged else (),
        banners=tuple(_banners(report)),
        do=section("What to do", advice_cards((result.id, findings) for result, findings in problems), "do"),
        evidence=section("What is wrong" if report.faults else "What to look at", cards, "problems"),
        rest=(*_rest(report, raw_facts), *_run(report)) if judged else _run(report),
    )
    return render_page(page)


def _rest(report: Report, raw_facts: bool) -> Iterator[Section]:
    measured = tuple(figures_part(report))
    yield from (part for part in measured if part.opened)
    yield from _checks(report)
    yield from topology(report)
    yield from (part for part in measured if not part.opened)
    yield from facts_part(report, raw_facts)


def _checks(report: Report) -> tuple[Section, ...]:
    """A folding table per domain, open if it has a problem; checks of higher levels come last."""
    higher = [result for result in report.checks if is_above(result, report.run.level)]
    asked = (result for result in report.checks if result not in higher)
    folds = []
    for domain, group in groupby(asked, key=lambda result: result.domain):
        results = list(group)
        status = worst(result.status for result in results)
        folds.append(_fold(status, domain, domain_words(results, status).replace("   ", " · "), results))
    if higher:
        text = f"{len(higher)} not run: level {report.run.level} was asked for"
        folds.append(_fold(Status.SKIP, "higher levels", text, higher))
    return section("Checks", folds, "checks", opened=True)


def _fold(status: Status, name: str, text: str, results: Iterable[CheckResult]) -> Fold:
    # a title says what holds if the check passes
    rows = tuple(
        (each.status.value, each.id, "" if each.status in PROBLEMS else each.title, _found(each)) for each in results
    )
    return Fold((Chip(status.value), Strong(name), text), (Findings(rows),), status in PROBLEMS)


def _found(result: CheckResult) -> Items:
    """What was found, worst first; findings with the same words on several subjects are merged."""
    worst_first = sorted(result.findings, key=lambda f: WORST_FIRST.index(f.status))
    groups = grouped(((finding.status, _words(finding)), finding) for finding in worst_first)
    lines: list[Cell] = []
    for (status, text), findings in groups.items():
        label = label_of(findings)
        mark: tuple[Cell, ...] = () if status is result.status else (Chip(status.value),)
        lines.append((*mark, *(() if label == "node" else (Strong(label),)), text))
    return Items(tuple(lines))


def _words(finding: Finding) -> str:
    text = finding.found.text if finding.found else ""
    if finding.reason:
        text = f"{text}; {finding.reason}" if text else finding.reason
    if finding.status in (Status.FAIL, Status.WARN) and finding.expected:
        text += f"; expected {expected_words(finding.expected)}"
    return f"{text} (explained by {finding.explained_by})" if finding.explained_by else text


def _counts(report: Report) -> tuple[tuple[str, str, int], ...]:
    counts = report.counts
    return (
        ("fail", "fault" if len(report.faults) == 1 else "faults", len(report.faults)),
        ("fail", "check failed" if counts.fail == 1 else "checks failed", counts.fail),
        ("unknown", "unknown", counts.unknown),
        ("warn", "warning" if counts.warn == 1 else "warnings", counts.warn),
        ("pass", "passed", counts.passed),
        ("skip", "skipped", counts.skip),
    )


def _banners(report: Report) -> Iterator[tuple[str, str, str]]:
    source = report.run.source
    if not report.simulated and report.error is None and source.kind != "live":
        yield "READ", f"from {source.kind} {source.name}: that machine, not the one that judged", "quiet"
    yield from ((word, text, "loud") for word, text in alarms(report))
    if report.error is not None:
        yield "ERROR", report.error, "loud"
    yield from (("Note", note, "quiet") for note in report.run.notes)


def _run(report: Report) -> tuple[Section, ...]:
    run = report.run
    about = pairs(
        ("Command", Command(join(("gpudoctor", *run.argv))) if run.argv else None),
        ("Judged against", profile_words(report.profile)),
        ("Level", run.level),
        ("Source", f"{run.source.kind} {run.source.name}".strip()),
        ("Started", run.started_at),
        ("Took", f"{run.duration_s:.1f} s"),
        ("Exit code", str(report.exit_code)),
        ("Run", run.id),
        ("Virtualization", report.host.virtualization),
    )
    return section("This run", (about,), "run")


def _host(report: Report) -> str:
    """The host name; for a simulated node, the name of the source."""
    names = (None if report.simulated else report.host.name, report.run.source.name, report.host.name)
    return next((name for name in names if name), "this machine")
