"""The text report of a burn."""

from __future__ import annotations

from gpudoctor.facts.model.measurements import Launch, Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent
from gpudoctor.facts.model.telemetry import Burn, GpuCounters, Series, Spread, WrongResult
from gpudoctor.report.text_figures import figure_lines


def _lines(burn: Burn) -> list[str]:
    return figure_lines(Measurements(launch=Launch("nccl", 2, ()), burn=burn))


def _gemm(rank: int, late: float) -> Series:
    return Series("gemm bf16 8192", "TFLOP/s", rank, 9, Spread(700, 700, 700), Spread(late, late, late))


def test_of_each_figure_the_rank_that_changed_most_is_shown_early_and_late() -> None:
    lines = _lines(Burn(600.0, 612.4, 20, series=(_gemm(0, 699.0), _gemm(1, 650.0))))
    assert "  Burn: 20 complete rounds in 612 s (600 s asked for)" in lines
    assert [line.strip() for line in lines if "gemm" in line] == [
        "gemm bf16 8192: 700 to 650 TFLOP/s (rank 1, the most changed)"
    ]


def test_a_wrong_result_is_shown_with_its_round_and_a_flood_of_them_is_cut() -> None:
    wrong = tuple(WrongResult(n, 10.0 * n, "all_reduce wrong on rank 1") for n in range(7))
    text = "\n".join(_lines(Burn(600.0, 612.4, 20, wrong=wrong, wrong_count=90)))
    assert "WRONG in round 1 (until 0 s): all_reduce wrong on rank 1" in text
    assert text.count("WRONG") == 5
    assert "and 85 more results that were wrong" in text


def test_counters_show_what_grew_and_what_was_not_read_shows_nothing() -> None:
    counters = (GpuCounters(0, None, "b0", {"ecc_corrected": 2}), GpuCounters(1, None, "b1"))
    event = KernelEvent("xid", "NVRM: Xid 79", 79)
    text = "\n".join(_lines(Burn(600.0, 612.4, 20, counters=counters, kernel_events=(event,))))
    assert "GPU 0: ecc corrected +2" in text
    assert "GPU 1: no counter read" in text
    assert "new lines on GPUs in the kernel log: 1" in text
    none = Missing("not read")
    assert "GPU 0" not in "\n".join(_lines(Burn(600.0, 612.4, 20, counters=none, kernel_events=none)))
