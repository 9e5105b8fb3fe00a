"""Tables are made once: what text, page and screen draw of them is the same."""

from __future__ import annotations

from msgspec.structs import replace

from gpudoctor.facts.model.measured_hardware import HostLink
from gpudoctor.facts.model.measurements import Collective, Launch, Measurements, PairBandwidth, Training, TrainRank
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.report.html import render_html
from gpudoctor.report.judge import judge
from gpudoctor.report.tables.devices import STEP_PARTS, plain_name, step_parts_ms, training_table, training_words
from gpudoctor.report.tables.links import both_ways_matrix, collective_table, host_table, pair_matrix, peer_matrix
from gpudoctor.report.tables.table import Column, Table, aligned
from gpudoctor.report.text_figures import figure_lines
from gpudoctor.tui.panes.link_matrices import draw
from tests.checks.measured import matrix, measured
from tests.checks.one_check import gpus

MIB = 2**20


def collective(op: str, size_bytes: int, busbw_gb_s: float) -> Collective:
    return Collective(op, size_bytes, "float32", 20, 999.9, 1.0, busbw_gb_s, busbw_gb_s)


def test_lines_of_a_table_stand_below_their_heads() -> None:
    table = Table((Column("GPU", left=True), Column("power"), Column("held back by", left=True)), (("10", "7 W", "-"),))
    assert aligned(table, " ") == [" GPU  power  held back by", " 10     7 W  -"]


def test_a_table_is_turned_with_all_its_cells() -> None:
    done = (collective("all_reduce", 4012, 1.5), collective("broadcast", 64 * MIB, 200.0))
    turned = collective_table(done).turned("size")
    assert turned.head == ("size", "all_reduce", "broadcast")
    assert turned.rows == (("4012 B", "1.50 (1.0 ms)", "-"), ("64 MiB", "-", "200 (1.0 ms)"))


def test_text_and_page_call_sizes_that_are_a_few_bytes_apart_by_the_same_name() -> None:
    done = (collective("all_reduce", 64 * MIB, 1.5), collective("reduce_scatter", 64 * MIB - 8, 2.5))
    found = Measurements(launch=Launch("gloo", 2, ()), collectives=done)
    assert "about 64 MiB" in "\n".join(figure_lines(found))
    assert "about 64 MiB" in render_html(judge(Node(), found))


def test_a_pair_that_arrived_wrong_is_wrong_in_both_places() -> None:
    pairs = (
        PairBandwidth(0, 1, MIB, 15, 100.0, 1.0, 20.0, wrong_ranks=(1,)),
        PairBandwidth(0, 2, MIB, 15, 1.0, 1.0, 9.0),
    )
    made = pair_matrix(Measurements(pairs=pairs))
    assert made.wrong == {(0, 1), (1, 0)}
    assert made.rates == {(0, 1): 20.0, (1, 0): 20.0, (0, 2): 9.0, (2, 0): 9.0}


def test_copies_are_the_same_in_text_page_and_screen() -> None:
    node = Node(gpus=gpus(3))
    found = measured(node, peer_links=matrix(3, 380.0, {(0, 2): 11.5}, p2p=False))
    report = judge(node, found)
    assert peer_matrix(found).rates[0, 2] == 11.5
    assert len(peer_matrix(found).through_host) == 6
    assert both_ways_matrix(found).rates == {}
    assert "11.5" in "\n".join(figure_lines(found))
    assert "6 of 6 directions go through the host" in render_html(report)
    assert draw("peer", node, report).grid.cells[0, 2].text == "11.5"


def test_figures_stand_below_their_own_heads() -> None:
    copies = Measurements(host_links=(HostLink(3, MIB, 52.0, 51.0, 26.0),))
    assert host_table(copies, plain_name, ".1f").rows == (("rank 3", "52.0", "51.0", "26.0", "-"),)
    rank = TrainRank(0, 10.0, 0.1, 10.1, 0.2, 0.25, 2.0, 3.0, 4.0, 15.0, 2.5, None)
    trained = training_table(Training("cpu", 1, 5, 8, 1000, 4000, (rank,)), plain_name)
    assert dict(zip(trained.head, trained.rows[0], strict=True)) == {
        "rank": "rank 0",
        "compute ms": "10.00",
        "wait ms": "2.00",
        "data ms": "3.00",
        "other ms": "3.00",
        "timed step ms": "18.00",
        "came last": "25%",
        "memory peak MiB": "-",
        "first": "2.500",
        "last": "not finite",
    }


def test_every_millisecond_of_a_timed_step_has_a_name() -> None:
    rank = TrainRank(0, 10.0, 0.1, 10.1, 0.2, 0.25, 2.0, 3.0, 4.0, 15.0, 2.5, None)
    assert dict(zip(STEP_PARTS, step_parts_ms(rank), strict=True)) == {"compute": 10, "wait": 2, "data": 3, "other": 3}
    assert sum(step_parts_ms(rank)) == rank.data_ms + rank.step_ms
    training = Training("cpu", 1, 5, 8, 1000, 4000, (rank,), steady_step_ms=16.0, samples_per_s=500.0)
    assert "16.00 ms, 500 samples/s" in " ".join(training_words(training))
    assert "Plain step" not in " ".join(training_words(replace(training, steady_step_ms=Missing("not run"))))
