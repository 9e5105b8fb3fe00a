"""The command line, as in tests/cli, and the plan that it prints."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Gpudoctor, gpudoctor

__all__ = ["gpudoctor", "planned"]


def planned(gpudoctor: Gpudoctor, argv: str) -> Any:
    outcome = gpudoctor("plan", *argv.split(), "--json")
    assert outcome.code == 0, outcome.err
    return outcome.json
