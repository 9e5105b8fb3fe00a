"""Prints at the end how many inputs were tried."""

from __future__ import annotations

from typing import Any

from tests.fuzz.profile import LONG, RAN, SLOWEST, peak_mib


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if LONG and RAN:
        each = ", ".join(f"{parser} {count}" for parser, count in RAN.items())
        terminalreporter.write_line(f"fuzz: {sum(RAN.values())} inputs tried ({each})")
        slowest = max(SLOWEST, key=lambda parser: SLOWEST[parser])
        terminalreporter.write_line(
            f"fuzz: the slowest took {SLOWEST[slowest]:.1f} s ({slowest}); {peak_mib()} MiB at most"
        )
