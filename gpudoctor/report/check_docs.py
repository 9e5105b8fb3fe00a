"""The page of a check: prose beside the code, and its thresholds as the code has them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.registry import Check
from gpudoctor.report.word_lists import COLUMNS, word_list

_HEADING = "## Thresholds"
_NEXT_HEADING = "## False alarms"


def page_text(check: Check) -> str:
    """The page as Markdown: with the check's limits under Thresholds and the words looked for below, from the code."""
    path = page_path(check)
    if check.page is not None:
        body = check.page.rstrip()
    elif path is not None:
        body = path.read_text(encoding="utf-8").rstrip()
    else:
        body = f"# {check.id}: {check.title}\n\nThis check comes without a page."
    if check.limits:
        body = _with_table(body, check)
    if check.page is None and (words := word_list(check.id)):
        body = "\n".join([body, "", *words]).rstrip()
    return f"{body}\n\nLevel: {check.level}. Run it alone: gpudoctor check {check.id}\n"


def page_path(check: Check) -> Path | None:
    """Where the page lies: beside the module that registered the check, named as the check or as the module.

    None if there is none, as for a check that brings the text of its page itself.
    """
    module = Path(sys.modules[check.function.__module__].__file__ or "")
    name = check.id.partition(".")[2].replace("-", "_")
    return next((path for path in (module.with_name(f"{name}.md"), module.with_suffix(".md")) if path.is_file()), None)


def _with_table(body: str, check: Check) -> str:
    """The limits after the heading of the thresholds, which is added where the next section begins if it lacks."""
    table = "\n".join(threshold_lines(check.limits.values()))
    section = (
        f"{_HEADING}\n\n{table}\n\nChange one in the configuration: thresholds: {{{check.id}: {{NAME: NUMBER}}}}\n"
    )
    for heading, replacement in ((_HEADING, section), (_NEXT_HEADING, f"{section}\n{_NEXT_HEADING}\n")):
        before, found, after = body.partition(f"\n{heading}\n")
        if found:
            return f"{before}\n{replacement}{after}"
    return f"{body}\n\n{section}".rstrip()


def threshold_lines(limits: Iterable[Limit]) -> list[str]:
    """Two lines or more for each limit: name, number, unit and the status it leads to; below it the source."""
    limits = tuple(limits)
    names = max(len(limit.name) for limit in limits) + 2
    values = {limit.name: f"{number_text(limit.value)} {limit.unit}" for limit in limits}
    widest = max(map(len, values.values())) + 2
    lines = []
    for limit in limits:
        lines.append(f"    {limit.name:<{names}}{values[limit.name]:<{widest}}{limit.leads_to or ''}".rstrip())
        lines += [f"    {'':<{names}}{line}" for line in wrap(limit.source, COLUMNS - 4 - names)]
    return lines


def number_text(value: float) -> str:
    """
    >>> number_text(0.0001), number_text(15.75), number_text(10_000_000)
    ('0.0001', '15.75', '10 000 000')
    """
    return f"{value:,.0f}".replace(",", " ") if value >= 100_000 else f"{value:g}"
