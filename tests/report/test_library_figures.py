"""The lines that text output prints of DeepSpeed's and TensorFlow's strategies."""

from __future__ import annotations

import html

from msgspec.structs import replace

from gpudoctor.facts.model.measurements import Launch, Measurements
from gpudoctor.report.html import render_html
from gpudoctor.report.text_figures import figure_lines, library_lines, strategy_lines
from tests.checks.strategy.test_strategy_libraries import found, library, zero
from tests.tui.checks_app import report_of


def test_nothing_tried_prints_nothing() -> None:
    assert library_lines(Measurements()) == []
    assert library_lines(Measurements(tensorflow=library("TensorFlow", found()))) == []


def test_each_library_has_a_table_of_its_own_with_its_version() -> None:
    tried = found(zero(1), zero(3))
    measured = Measurements(strategies=found(zero(2)), deepspeed=library("DeepSpeed", tried))
    head, _, _, first, third = library_lines(measured)
    assert head.startswith("  DeepSpeed 1.0: 3 steps of ")
    assert (first.split()[0], third.split()[0]) == ("zero-1", "zero-3")
    assert figure_lines(measured) == ["Measured in processes of their own:", *library_lines(measured)]
    page = render_html(replace(report_of(words=("env",)), measurements=measured))
    assert all(html.escape(line.strip()) in page for line in library_lines(measured))
    beside_ranks = figure_lines(replace(measured, launch=Launch("gloo", 2, ())))
    assert beside_ranks[1:] == [*strategy_lines(measured), *library_lines(measured)]
