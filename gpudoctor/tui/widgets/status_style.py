"""How a status looks: always its word, in a colour of the theme; without colours FAIL is still the loudest."""

from __future__ import annotations

from typing import Literal

from gpudoctor.checks.core.finding import WORST_FIRST, Finding, Status

# "low" is a figure far below the others that nobody has judged
Tone = Literal["fail", "unknown", "warn", "pass", "skip", "low", "head", "quiet"]

WORDS = {Status.FAIL: "FAIL", Status.UNKNOWN: "unknown", Status.WARN: "warn", Status.PASS: "PASS", Status.SKIP: "skip"}
_COLOURED: dict[str, str] = {
    "fail": "bold $text-error",
    "unknown": "bold $text-accent",
    "warn": "$text-warning",
    "pass": "$text-success",
    "skip": "$text-muted",
    "low": "$text-error",
    "head": "bold",
    "quiet": "$text-muted",
}
# Textual's grey of an error colour is darker than that of plain text
_PLAIN: dict[str, str] = {"fail": "bold reverse", "unknown": "bold underline", "warn": "bold", "head": "bold"}


def style_of(tone: Tone | Status, no_color: bool) -> str:
    """A style for textual.content; `no_color` is the App's."""
    name = tone.value if isinstance(tone, Status) else tone
    return (_PLAIN if no_color else _COLOURED).get(name, "")


def worst_first(finding: Finding) -> int:
    """For sorting: FAIL first."""
    return WORST_FIRST.index(finding.status)
