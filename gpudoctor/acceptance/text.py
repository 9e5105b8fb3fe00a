"""The summary of an acceptance run, in lines of at most 80 columns."""

from __future__ import annotations

import textwrap

from gpudoctor.acceptance.result import Acceptance, Item, StepResult
from gpudoctor.exits import printable

_WIDTH = 80
_INDENT = 4
_SIGNS = {"agreed": "+", "did not agree": "!", "could not look": "?"}


def summary(acceptance: Acceptance) -> str:
    """What each step said; then what could not be looked at, and what did not agree, so that the last lines matter."""
    made_up = "SIMULATED node: nothing here is about a real machine\n" if acceptance.simulated else ""
    head = f"gpudoctor acceptance of {acceptance.node}, backend {acceptance.backend}, {acceptance.duration_s:.0f} s"
    lines = [made_up + "\n".join(textwrap.wrap(printable(head), _WIDTH)), ""]
    for step in acceptance.steps:
        lines.append(_step_line(step))
        for item in step.items:
            if item.outcome == "agreed":
                lines += _wrapped(item)
    for outcome, title in (("could not look", "Could not look at:"), ("did not agree", "Did not agree:")):
        found = [(step.step, item) for step in acceptance.steps for item in step.items if item.outcome == outcome]
        if found:
            lines += ["", title]
            for name, item in found:
                lines += _wrapped(item, f"{name}: ")
    return "\n".join([*lines, "", *textwrap.wrap(_last_line(acceptance), _WIDTH)]) + "\n"


def _step_line(step: StepResult) -> str:
    return f"{step.outcome.upper():<15} {step.step:<12} {step.seconds:6.1f} s  {step.title}"[:_WIDTH]


def _wrapped(item: Item, before: str = "") -> list[str]:
    sign = f"{' ' * (_INDENT - 2)}{_SIGNS[item.outcome]} "
    return textwrap.wrap(
        printable(before + item.text),
        _WIDTH,
        initial_indent=sign,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )


def _last_line(acceptance: Acceptance) -> str:
    counts = (
        f"{acceptance.count('agreed')} steps agreed, {acceptance.count('did not agree')} did not, "
        f"{acceptance.count('could not look')} could not look"
    )
    if acceptance.interrupted:
        return f"INTERRUPTED by {acceptance.interrupted}: {counts}."
    return f"{'AGREED' if acceptance.exit_code == 0 else 'DID NOT AGREE'}: {counts}."
