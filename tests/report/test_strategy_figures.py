"""The lines that text output prints of the strategies."""

from __future__ import annotations

from html import escape

from gpudoctor.facts.model.measured_strategies import StrategyMemory
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Node
from gpudoctor.report.html import render_html
from gpudoctor.report.judge import judge
from gpudoctor.report.text_figures import figure_lines, strategy_lines
from tests.checks.measured import measured
from tests.checks.strategy.test_strategy_data import rank, run, tried


def test_nothing_tried_prints_nothing() -> None:
    assert strategy_lines(Measurements()) == []
    assert strategy_lines(measured(Node(), strategies=tried())) == []


def test_each_variant_is_a_row_of_the_rank_with_most_beside_one_rank_alone() -> None:
    found = measured(
        Node(), strategies=tried(run("ddp"), run("fsdp-bf16", rank(0), rank(1, communicated_bytes=1 << 20)))
    )
    head, titles, alone, ddp, fsdp = strategy_lines(found)
    assert "3 steps of 0.00 M parameters on 8 x 16 tokens" in head
    assert titles.split("MiB")[1].split() == ["step", "sent", "weights", "grads", "optim", "activations"]
    assert alone.split()[:6] == ["one", "rank", "alone", "20", "ms", "-"]
    assert ddp.split()[:3] == ["ddp", "6.0", "ms"]
    assert fsdp.split()[3] == "1.00"
    assert strategy_lines(found) == figure_lines(found)[1:]


def test_gpus_have_a_column_for_the_peak_of_torch() -> None:
    lines = strategy_lines(measured(Node(), strategies=tried(run("ddp"), device="cuda")))
    assert lines[1].split()[-1] == "peak"
    assert lines[-1].split()[-1] == "-"


def test_the_widest_table_fits_a_terminal_of_80_columns() -> None:
    memory = StrategyMemory(*[999 << 20] * 5)
    rows = [run(name, rank(0, memory=memory, step_ms=999.0)) for name in ("ddp-accumulation", "fsdp-bf16")]
    lines = strategy_lines(measured(Node(), strategies=tried(*rows, device="cuda")))
    assert len(lines) == 5
    assert len({len(line) for line in lines[1:]}) == 1
    assert max(map(len, lines)) <= 78  # the report puts two more before them


def test_the_page_has_the_same_rows() -> None:
    found = measured(Node(), strategies=tried(run("ddp")))
    page = render_html(judge(Node(), found))
    assert "Strategies" in page
    assert all(escape(line.strip()) in page for line in strategy_lines(found))
    assert "Strategies" not in render_html(judge(Node(), measured(Node())))
