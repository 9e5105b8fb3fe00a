"""Texts for findings about environment variables."""

from __future__ import annotations

from collections.abc import Callable

from gpudoctor.checks.core.finding import Advice, Evidence, Finding
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.node import Variable


def unset(name: str) -> Advice:
    return Advice("Clear it where it is set (shell profile, image, job script, /etc/nccl.conf).", f"unset {name}")


def shown(variable: Variable) -> Evidence:
    return Evidence("environment", f"{variable.name}={variable.value}")


def bad(
    judge: Callable[..., Finding], variable: Variable, words: str, expected: str, likely: str, *advice: Advice
) -> Finding:
    """The finding for a harmful setting; without other `advice` it says how to clear it."""
    text = f"{variable.name}={variable.value}{words}"
    return judge(NODE, text, expected, shown(variable), likely=likely, advice=advice or (unset(variable.name),))
