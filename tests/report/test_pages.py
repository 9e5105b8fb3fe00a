"""Every check comes with a page that is true to the code."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpudoctor.checks
from gpudoctor.checks.core.registry import Check, registry
from gpudoctor.report.check_docs import page_path, page_text

CHECKS = Path(gpudoctor.checks.__file__).parent
SECTIONS = ("## What", "## Why", "## Thresholds", "## False alarms", "## Fix")


@pytest.mark.parametrize("check", registry(), ids=lambda check: check.id)
def test_a_page_has_its_title_and_every_section_with_words_in_it(check: Check) -> None:
    text = page_path(check.id).read_text()
    assert text.splitlines()[0] == f"# {check.id}: {check.title}"
    places = [text.find(f"\n{section}\n") for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)
    bodies = [text[a:b] for a, b in zip(places, [*places[1:], len(text)], strict=True)]
    assert all(len(body.split()) > 8 for body in bodies)


@pytest.mark.parametrize("check", registry(), ids=lambda check: check.id)
def test_the_printed_page_shows_every_threshold_with_its_number_and_source(check: Check) -> None:
    text = page_text(check)
    for name, limit in check.limits.items():
        [line] = [line for line in text.splitlines() if line.split()[:1] == [name]]
        assert f"{limit.value:g} {limit.unit}" in line
        assert limit.source in line
        assert len(limit.source) > 3


def test_no_page_lies_there_without_its_check() -> None:
    assert set(CHECKS.glob("*/*.md")) == {page_path(check.id) for check in registry()}


def test_a_plugin_brings_its_page_along() -> None:
    mine = Check("x.mine", "Mine", "quick", lambda case: iter(()), page="# x.mine: Mine\n")
    assert page_text(mine).startswith("# x.mine: Mine\n")
