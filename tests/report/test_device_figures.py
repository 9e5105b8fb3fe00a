"""The lines that text output prints of links and compute."""

from __future__ import annotations

from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Node
from gpudoctor.report.text_figures import device_lines, figure_lines
from tests.checks.measured import computed, copied, matrix, measured
from tests.checks.one_check import gpus

NODE = Node(gpus=gpus(3))


def test_nothing_measured_prints_nothing() -> None:
    assert device_lines(Measurements()) == []
    assert device_lines(measured(NODE)) == []


def test_host_copies_are_a_line_a_rank_with_the_figure_for_all_at_once() -> None:
    lines = device_lines(measured(NODE, host_links=copied(52.0, 51.5, h2d_together_gb_s=26.25)))
    assert len(lines) == 3
    assert lines[1] == "    rank 0: 52.00 and 52.00 GB/s (26.25 and -)"


def test_peer_copies_are_a_matrix_and_say_where_peer_to_peer_is_off() -> None:
    links = matrix(3, 380.0, {(0, 2): 11.5}, p2p=False, both_ways_gb_s=700.0)
    head, columns, first, *rest = device_lines(measured(NODE, peer_links=links[:-1]))
    assert "both ways 700.0 to 700.0" in head
    assert "peer-to-peer off in 5 of 5 directions" in head
    assert columns.split() == ["0", "1", "2"]
    assert first.split() == ["0", "-", "380.0", "11.5"]
    assert rest[-1].split() == ["2", "380.0", "-", "-"]


def test_compute_says_whether_the_bits_were_steady() -> None:
    ranks = (computed(0), computed(1, fingerprints=("a" * 64, "b" * 64)))
    lines = device_lines(measured(NODE, compute=ranks))
    assert "bf16 720, fp16 700" in lines[1]
    assert lines[2].endswith("bits aaaaaaaa")
    assert lines[4].endswith("bits aaaaaaaa (not steady)")
    assert set(lines) <= set(figure_lines(measured(NODE, compute=ranks)))
