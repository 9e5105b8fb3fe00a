"""Every check comes with a page that is true to the code."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpudoctor.checks
from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.registry import Check, registry
from gpudoctor.report.check_docs import number_text, page_path, page_text

CHECKS = Path(gpudoctor.checks.__file__).parent
SECTIONS = ["## What", "## Why", "## Thresholds", "## False alarms", "## Fix"]


def own_page(check: Check) -> str:
    path = page_path(check)
    assert path is not None
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("check", registry(), ids=lambda check: check.id)
def test_a_printed_page_has_its_title_and_every_section_with_words_in_it(check: Check) -> None:
    text = page_text(check)
    assert text.splitlines()[0] == f"# {check.id}: {check.title}"
    assert [line for line in text.splitlines() if line.startswith("## ")] == SECTIONS
    places = [text.find(f"\n{section}\n") for section in SECTIONS]
    bodies = [text[a:b] for a, b in zip(places, [*places[1:], len(text)], strict=True)]
    assert all(len(body.split()) > 8 for body in bodies)


@pytest.mark.parametrize("check", registry(), ids=lambda check: check.id)
def test_the_printed_page_shows_every_threshold_with_its_number_status_and_source(check: Check) -> None:
    lines = page_text(check).splitlines()
    for name, limit in check.limits.items():
        [at] = [i for i, line in enumerate(lines) if line.startswith("    ") and line.split()[0] == name]
        assert f"{number_text(limit.value)} {limit.unit}" in lines[at]
        assert lines[at].endswith(limit.leads_to or limit.unit)
        assert " ".join(" ".join(lines[at + 1 :]).split()).startswith(limit.source)
        assert len(limit.source) > 3
    assert max((len(line) for line in lines if line.startswith("    ")), default=0) <= 80


@pytest.mark.parametrize("check", registry(), ids=lambda check: check.id)
def test_the_numbers_of_limits_stand_in_the_code_alone(check: Check) -> None:
    rows = [line for line in own_page(check).splitlines() if line.startswith("|")]
    assert not [row for row in rows for name in check.limits if f"`{name}`" in row.split("|")[1]]


def test_no_page_lies_there_without_its_check() -> None:
    pages = [page_path(check) for check in registry()]
    assert None not in pages
    assert set(CHECKS.glob("*/*.md")) == set(pages)
    assert len(set(pages)) == len(pages)


def test_a_table_of_limits_stands_in_a_page_without_a_section_for_it() -> None:
    limit = Limit(20_000_000, "bytes", "a rule " * 20, name="fail_bytes")
    mine = Check("x.mine", "Mine", "quick", lambda case: iter(()), limits={"fail_bytes": limit}, page="# x.mine: Mine")
    section = page_text(mine).partition("## Thresholds\n\n")[2].splitlines()
    assert section[0] == "    fail_bytes  20 000 000 bytes  fail"
    assert section[1].startswith("                a rule a rule")
    assert len(section[1]) <= 80
