"""The results of an acceptance run: statements that agreed, did not agree, or could not be checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpudoctor import __version__

Outcome = Literal["agreed", "did not agree", "could not look"]
_WORST_FIRST: tuple[Outcome, ...] = ("did not agree", "agreed", "could not look")


class Item(msgspec.Struct, frozen=True):
    """One statement of a step, one line of text."""

    outcome: Outcome
    text: str


def agreed(text: str) -> Item:
    """Two sources were compared and agreed."""
    return Item("agreed", text)


def differs(text: str) -> Item:
    """Two sources were compared and differed, or one of them failed; the text names both."""
    return Item("did not agree", text)


def could_not(text: str) -> Item:
    """Nothing was compared; the text gives the reason and what would be needed."""
    return Item("could not look", text)


def found_none(what: str, found: Sequence[str], none: str) -> Item:
    """`none` as agreement if `found` is empty, else a difference with the first five of what should not be there."""
    return differs(f"{what}: {', '.join(found[:5])}") if found else agreed(none)


class StepResult(msgspec.Struct, frozen=True):
    """One step. It agreed if nothing in it disagreed and at least one thing was compared."""

    step: str
    title: str
    outcome: Outcome
    seconds: float
    items: tuple[Item, ...]


def result_of(step: str, title: str, seconds: float, items: tuple[Item, ...]) -> StepResult:
    """The result of a step: the worst outcome of its items; "did not agree" if it has none."""
    items = items or (differs("the step ended without a word: a defect of gpudoctor"),)
    outcome = min((item.outcome for item in items), key=_WORST_FIRST.index)
    return StepResult(step, title, outcome, round(seconds, 1), items)


class Acceptance(msgspec.Struct, frozen=True):
    """The run as a document, acceptance.json in its archive. `interrupted` names the signal that ended it early."""

    node: str
    simulated: bool
    backend: str
    started_at: str
    duration_s: float
    exit_code: int
    steps: tuple[StepResult, ...]
    interrupted: str | None = None
    schema: Literal["gpudoctor.acceptance/1"] = "gpudoctor.acceptance/1"
    version: str = __version__

    def count(self, outcome: Outcome) -> int:
        return sum(step.outcome == outcome for step in self.steps)
