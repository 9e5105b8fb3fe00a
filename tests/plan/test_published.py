"""Against published runs: memory per GPU within 15 %."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan.published import HELD, RUNS, TITAN, TITAN_382, Run

DOCS = Path(__file__).parent.parent.parent / "docs" / "plan-accuracy.md"


@pytest.mark.parametrize("run", HELD, ids=lambda run: f"{run.what} {run.published}")
def test_memory_is_within_15_percent_of_the_published_figure(run: Run) -> None:
    assert abs(run.error) <= 0.15, f"{run.predicted:.1f} against {run.published} {run.unit}"


def test_half_of_the_runs_are_met_within_5_percent() -> None:
    errors = sorted(abs(run.error) for run in HELD)
    assert errors[len(errors) // 2] <= 0.05


def test_the_allocators_share_was_fitted_to_one_source_and_only_one_other_run_uses_it() -> None:
    assert {run.source for run in HELD if run.counter == "reserved"} == {TITAN, TITAN_382}


def test_the_table_in_the_docs_is_what_the_formulas_give() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| ") and " reserved | " in line]
    rows += [line for line in DOCS.read_text().splitlines() if line.startswith("| ") and " allocated | " in line]
    assert sorted(rows) == sorted(run.row for run in RUNS)


def test_every_figure_has_a_source_that_a_reader_can_open() -> None:
    lines = DOCS.read_text().splitlines()
    for source in {run.source for run in RUNS}:
        assert source.definition in lines
        assert source.url.startswith("https://")
