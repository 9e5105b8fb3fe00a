"""Findings as cards: what to do against them, and what shows them. Checks of a node and of a run share them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudoctor.checks.core.finding import Advice, Evidence, Finding
from gpudoctor.report.html.parts import Card, Cell, Chip, Code, Command, Items, pairs
from gpudoctor.report.wording import block_parts, label_of
from gpudoctor.text.grouped import grouped


def finding_card(check: str, findings: Sequence[Finding], explains: Iterable[str] = ()) -> Card:
    """Found, expected, evidence, likely cause and what it explains, of findings with the same words."""
    rows = (
        (label, part if isinstance(part, str) else Items(tuple(map(_item, part))))
        for label, part in block_parts(findings, explains)
        if label != "do"
    )
    return Card(findings[0].status.value, _title(check, findings), (pairs(*rows),))


def advice_cards(problems: Iterable[tuple[str, Sequence[Finding]]]) -> list[Card]:
    """What to do against each of (check, findings with the same words); the same steps stand once."""
    by_steps = grouped((_steps(findings), (check, findings)) for check, findings in problems)
    return [
        Card(same[0][1][0].status.value, tuple(_title(*each) for each in same), (Items(steps, "steps"),))
        for steps, same in by_steps.items()
        if steps
    ]


def _steps(findings: Sequence[Finding]) -> tuple[Cell, ...]:
    return tuple(map(_item, dict(block_parts(findings, ())).get("do", ())))


def _title(check: str, findings: Sequence[Finding]) -> Cell:
    label = label_of(findings)
    return Chip(findings[0].status.value), Code(check), "" if label == "node" else label


def _item(item: Evidence | Advice | str) -> Cell:
    if isinstance(item, Evidence):
        return Code(item.source), f"= {item.value}"
    if isinstance(item, str):
        return item
    return (item.text, Command(item.command)) if item.command else item.text
