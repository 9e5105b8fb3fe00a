"""The page of a check: prose beside the code, with the thresholds as the code has them."""

from __future__ import annotations

from pathlib import Path

from gpudoctor.checks.core.registry import Check
from gpudoctor.report.word_lists import word_list

_CHECKS = Path(__file__).parent.parent / "checks"


def page_text(check: Check) -> str:
    """The page as Markdown, then the numbers in force by default and the words looked for, with their sources."""
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
    lines += word_list(check.id) if check.page is None else []
    lines += [f"Level: {check.level}. Run it alone: gpudoctor check {check.id}", ""]
    return "\n".join(lines)


def page_path(check_id: str) -> Path:
    """Where the page of a built-in check lies: beside its code, `pcie/link_width.md` for `pcie.link-width`."""
    domain, name = check_id.split(".", 1)
    return _CHECKS / domain / f"{name.replace('-', '_')}.md"


def _packaged(check: Check) -> str:
    path = page_path(check.id)
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return f"# {check.id}: {check.title}\n\nThis check comes without a page.\n"
