"""The page of a check: prose beside the code, with the thresholds as the code has them."""

from __future__ import annotations

from pathlib import Path

from gpudoctor.checks.registry import Check

PAGES = Path(__file__).parent.parent / "checks" / "pages"


def page_text(check: Check) -> str:
    """The page as Markdown, ending in a table of the numbers in force by default and their sources."""
    body = check.page if check.page is not None else _packaged(check)
    lines = [body.rstrip(), ""]
    if check.limits:
        lines += ["## Numbers", ""]
        width = max(len(name) for name in check.limits)
        lines += [
            f"    {name:<{width}}  {limit.value:g} {limit.unit}   {limit.source}"
            for name, limit in check.limits.items()
        ]
        lines += ["", f"Change one in the configuration: thresholds: {{{check.id}: {{NAME: NUMBER}}}}", ""]
    lines += [f"Level: {check.level}. Run it alone: gpudoctor check {check.id}", ""]
    return "\n".join(lines)


def _packaged(check: Check) -> str:
    path = PAGES / f"{check.id}.md"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return f"# {check.id}: {check.title}\n\nThis check comes without a page.\n"
