"""The pages of `driver.*` and `gpu.*` are complete and name the limits in force."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.registry import Check, registry
from gpudoctor.report.check_docs import page_path

MINE = [c for c in registry() if c.domain in ("driver", "gpu")]


@pytest.mark.parametrize("check", MINE, ids=lambda c: c.id)
def test_a_page_has_its_title_its_sections_and_every_limit_with_its_value(check: Check) -> None:
    page = page_path(check.id).read_text(encoding="utf-8")
    lines = page.splitlines()
    assert lines[0] == f"# {check.id}: {check.title}"
    assert [line for line in lines if line.startswith("## ")] == [
        "## What",
        "## Why",
        "## Thresholds",
        "## False alarms",
        "## Fix",
    ]
    assert len(lines) <= 60
    for name, limit in check.limits.items():
        rows = [line for line in lines if f"`{name}`" in line]
        value = "10 million" if limit.value == 10_000_000 else f"{limit.value:g}"
        assert any(value in row for row in rows), f"{name} {value}"


def test_every_check_of_the_design_is_there() -> None:
    assert {c.id for c in MINE} == {
        "driver.loaded",
        "driver.version-match",
        "driver.responsive",
        "gpu.count",
        "gpu.identical",
        "gpu.lost",
        "gpu.ecc",
        "gpu.memory-repair",
        "gpu.xid",
        "gpu.throttle",
        "gpu.temperature",
        "gpu.power-limit",
        "gpu.clocks",
        "gpu.settings",
        "gpu.in-use",
    }
    assert {c.level for c in MINE} == {"quick"}
