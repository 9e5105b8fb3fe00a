"""The command line, as in tests/cli, and the plan that it prints."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Gpudoctor, gpudoctor

__all__ = ["gpudoctor", "planned", "refused"]


def planned(gpudoctor: Gpudoctor, argv: str) -> Any:
    outcome = gpudoctor("plan", *argv.split(), "--json")
    assert outcome.code == 0, outcome.err
    return outcome.json


def refused(gpudoctor: Gpudoctor, *argv: str) -> str:
    """The one line with which a plan is refused."""
    outcome = gpudoctor("plan", *argv)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome.err
    return outcome.err
