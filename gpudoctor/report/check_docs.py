"""The page of a check: its Markdown file, with thresholds and word lists generated from the code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from textwrap import wrap

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.driver_messages import MEANINGS
from gpudoctor.checks.core.registry import Check
from gpudoctor.checks.driver.load_causes import LOAD_CAUSES
from gpudoctor.checks.gpu.xid_judged import NVLINK5_UNITS, XID_74_BITS
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.facts.captures.host import module
    from gpudoctor.facts.kernel_log import message_tables


COLUMNS = 80
_CATALOGUE = "NVIDIA's Xid catalogue"
_OF_LOADING = ("signature-rejected", "other-kernel", "other-driver")

Row = tuple[str, str, str]
_HEADING = "## Thresholds"
_NEXT_HEADING = "## False alarms"


def word_list(check_id: str) -> list[str]:
    """The log patterns of a check, their meaning and source, as lines of Markdown; empty if it has none."""
    rows = list(_rows(check_id))
    if not rows:
        return []
    lines = ["### Words that it looks for", "", "As regular expressions; what they mean; who prints them.", ""]
    for text, meaning, source in rows:
        lines += wrap(text, COLUMNS, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        lines += wrap(f"{meaning} ({source})", COLUMNS, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return [*lines, ""]


def _rows(check_id: str) -> Iterator[Row]:
    if check_id == "gpu.xid":
        yield from _driver_messages()
        for register, bits, text in XID_74_BITS:
            numbers = ", ".join(map(str, bits))
            yield f"Xid 74, register {register}, bits {numbers}", text, _CATALOGUE
        for code, unit in NVLINK5_UNITS.items():
            yield f"Xid {code}", f"NVLink 5, unit {unit}; subcode: bits 20 to 25 of the first number", _CATALOGUE
    elif check_id == "gpu.count":
        yield from _driver_messages(only_not_started=True)
    elif check_id == "driver.loaded":
        for error in module.LOAD_ERRORS:
            yield error.pattern.pattern, LOAD_CAUSES[error.cause].found, error.source
        yield from _host_messages(lambda kind: kind in _OF_LOADING)
    elif check_id == "network.adapters":
        yield from _host_messages(lambda kind: kind.startswith("nic-"))
    elif check_id == "host.kernel":
        yield from _host_messages(lambda kind: kind not in _OF_LOADING and not kind.startswith("nic-"))


def _driver_messages(only_not_started: bool = False) -> Iterator[Row]:
    for row in message_tables.DRIVER_MESSAGES:
        meaning = MEANINGS.get(row.name)
        if meaning is not None and (meaning.not_started or not only_not_started):
            yield row.pattern, meaning.words, f"NVIDIA kernel module: {row.source}"


def _host_messages(expected: Callable[[str], bool]) -> Iterator[Row]:
    for row in message_tables.HOST_MESSAGES:
        if expected(row.kind):
            yield row.pattern, row.kind, f"Linux: {row.source}" if not row.source.startswith("NVIDIA") else row.source


def page_text(check: Check) -> str:
    """The page as Markdown, with the limits of the check under Thresholds and its log patterns at the end."""
    path = page_path(check)
    if check.page is not None:
        body = check.page.rstrip()
    elif path is not None:
        body = path.read_text(encoding="utf-8").rstrip()
    else:
        body = f"# {check.id}: {check.title}\n\nThis check comes without a page."
    if check.limits:
        body = _with_table(body, check)
    if check.page is None and (parts := word_list(check.id)):
        body = "\n".join([body, "", *parts]).rstrip()
    if check.domain == "run":
        return f"{body}\n\nA finding of: `gpudoctor run -- COMMAND`\n"
    return f"{body}\n\nLevel: {check.level}. Run it alone: `gpudoctor check {check.id}`\n"


def page_path(check: Check) -> Path | None:
    """The file of the page: in the folder of the module that registered the check, named after the check or module.

    None if there is none, for example for a check that was registered with the text of its page.
    """
    module = Path(sys.modules[check.function.__module__].__file__ or "")
    name = check.id.partition(".")[2].replace("-", "_")
    return next((path for path in (module.with_name(f"{name}.md"), module.with_suffix(".md")) if path.is_file()), None)


def _with_table(body: str, check: Check) -> str:
    """The body with the limits below the heading Thresholds, which is added before the next section if missing."""
    table = "\n".join(threshold_lines(check.limits.values()))
    section = f"{_HEADING}\n\n{table}\n"
    if check.domain != "run":
        section += f"\nChange one in the configuration: thresholds: {{{check.id}: {{NAME: NUMBER}}}}\n"
    for heading, replacement in ((_HEADING, section), (_NEXT_HEADING, f"{section}\n{_NEXT_HEADING}\n")):
        before, found, after = body.partition(f"\n{heading}\n")
        if found:
            return f"{before}\n{replacement}{after}"
    return f"{body}\n\n{section}".rstrip()


def threshold_lines(limits: Iterable[Limit]) -> list[str]:
    """Two or more lines per limit: name, number, unit and resulting status; below them the source."""
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
