"""Bars, signs and plots out of characters."""

from __future__ import annotations

import doctest

import pytest

from gpudoctor.text import units
from gpudoctor.tui import labels, run_control
from gpudoctor.tui.widgets import bars
from gpudoctor.tui.widgets.bars import nice_limit, plot_lines, stacked


@pytest.mark.parametrize("module", [bars, labels, run_control, units])
def test_what_the_documentation_shows_is_what_is_drawn(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


def test_parts_of_a_bar_end_where_their_sum_does() -> None:
    parts = [(3.3, "a"), (3.3, "b"), (3.4, "c")]
    assert stacked(parts, 10.0, 9) == "aaabbbccc"
    assert stacked([(30.0, "a")], 10.0, 9) == "a" * 9, "what is over the scale is cut"


def test_an_axis_ends_at_a_round_figure_that_is_not_below_the_highest() -> None:
    for value in (0.0007, 0.9, 1.0, 3.1, 26.0, 481.0):
        assert value <= nice_limit(value) <= value * 2.5


def test_a_plot_stands_on_a_logarithmic_axis_and_keeps_to_its_width() -> None:
    points = [(2.0**exponent, float(exponent)) for exponent in (10, 20, 30)]
    lines = plot_lines(points, ["1 KiB", "1 MiB", "1 GiB"], 60, 9, 50.0)
    assert max(len(line) for line in lines) <= 60
    marks = sorted(line.index("o") for line in lines if "o" in line)
    assert marks[1] - marks[0] == pytest.approx(marks[2] - marks[1], abs=1), "even steps of the exponent"
    assert lines[0].split()[0] == "50"
    assert lines[-1].split() == ["1", "KiB", "1", "MiB", "1", "GiB"]


def test_a_single_point_and_none_are_drawn_too() -> None:
    assert any("o" in line for line in plot_lines([(1024.0, 3.0)], ["1 KiB"], 40, 5, 5.0))
    assert not any("o" in line for line in plot_lines([], [], 40, 5, 1.0))
