"""The measurements of each probe as lines of the text report."""

from __future__ import annotations

from html import escape
from itertools import combinations

from msgspec.structs import replace

from gpudoctor.facts.model.measured_hardware import DataLoading, LoaderRates, LoaderStep
from gpudoctor.facts.model.measured_strategies import StrategyMemory
from gpudoctor.facts.model.measurements import Collective, Launch, Measurements, PairBandwidth
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, Node
from gpudoctor.facts.model.telemetry import Burn, GpuCounters, Series, Spread, WrongResult
from gpudoctor.report.html import render_html
from gpudoctor.report.judge import judge
from gpudoctor.report.text_figures import (
    collective_lines,
    device_lines,
    figure_lines,
)
from tests.checks.measured import computed, copied, matrix, measured
from tests.checks.one_check import gpus
from tests.checks.strategy.test_strategy_data import rank, run, tried
from tests.checks.strategy.test_strategy_libraries import library, zero
from tests.tui.checks_app import report_of

MIB = 2**20
NODE = Node(gpus=gpus(3))


def row(op: str, size: int, time_us: float, busbw: float) -> Collective:
    return Collective(op, size, "float32", 20, time_us, 1.0, busbw, busbw)


def below_ranks(found: Measurements) -> list[str]:
    """The lines of a probe that ran alone, below the one that names its ranks."""
    return figure_lines(found if found.launch else replace(found, launch=Launch("gloo", 2, ())))[1:]


def square(ranks: int, *left_out: tuple[int, int]) -> tuple[PairBandwidth, ...]:
    every = (p for p in combinations(range(ranks), 2) if p not in left_out)
    return tuple(PairBandwidth(a, b, 64 * MIB, 15, 100.0, 1.0, 200.0 + 10 * a + b) for a, b in every)


def test_what_was_not_measured_or_not_tried_has_no_line() -> None:
    assert figure_lines(Measurements()) == []
    assert figure_lines(Measurements(tensorflow=library("TensorFlow", tried()))) == []
    ranks_only = ["Measured on 3 GPUs (nccl, fresh-interpreters):"]
    assert figure_lines(measured(NODE)) == figure_lines(measured(NODE, strategies=tried())) == ranks_only


def test_operations_stand_below_each_other_by_size() -> None:
    done = (
        row("all_reduce", 4012, 21.4, 0.0042),
        row("all_reduce", 256 * MIB, 1120.0, 420.13),
        row("reduce_scatter", 4008, 35.0, 0.06),
        row("reduce_scatter", 64 * MIB, 245_000.0, 1.234),
    )
    title, header, first, second = collective_lines(Measurements(collectives=done))
    assert "busbw in GB/s" in title
    assert header.split() == ["about", "4", "KiB", "64", "MiB", "256", "MiB"]
    assert [first.split("  ")[2], *first.split()[1:]] == [
        "all_reduce",
        "<0.01",
        "(21",
        "us)",
        "-",
        "420",
        "(1.1",
        "ms)",
    ]
    assert second.split() == ["reduce_scatter", "0.06", "(35", "us)", "1.23", "(245", "ms)", "-"]
    assert second.index("1.23") > header.index("4 KiB")


def test_a_full_table_fits_into_80_columns() -> None:
    ops = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
    done = tuple(row(op, size, 99_499.0, 999.4) for op in ops for size in (4012, 64 * MIB, 256 * MIB, 1024 * MIB))
    lines = collective_lines(Measurements(collectives=done, pairs=square(8)))
    assert max(len(line) for line in lines) <= 78, "the report indents them by two"
    assert len(lines) == 2 + 6 + 2 + 7


def test_pairs_stand_in_a_matrix_and_those_not_measured_are_dashes() -> None:
    lines = collective_lines(Measurements(pairs=square(3, (0, 2))))
    assert [line.split() for line in lines[1:]] == [["1", "2"], ["0", "201", "-"], ["1", "212"]]
    assert lines[3].index("212") == lines[1].index("2") - 2, "below its column"


def test_two_ranks_and_many_ranks_take_one_line() -> None:
    [two] = collective_lines(Measurements(pairs=square(2)))
    assert two.strip() == "sendrecv of 64 MiB between two ranks, GB/s each way: 201"
    [many] = collective_lines(Measurements(pairs=square(9)))
    assert many.endswith("36 pairs: 201 to 278, slowest 0 - 1")


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


def test_each_variant_is_a_row_of_the_rank_with_most_beside_one_rank_alone() -> None:
    found = measured(
        Node(), strategies=tried(run("ddp"), run("fsdp-bf16", rank(0), rank(1, communicated_bytes=1 << 20)))
    )
    head, titles, alone, ddp, fsdp = below_ranks(found)
    assert "3 steps of 0.00 M parameters on 8 x 16 tokens" in head
    assert titles.split("MiB")[1].split() == ["step", "sent", "weights", "grads", "optim", "activations"]
    assert alone.split()[:6] == ["one", "rank", "alone", "20", "ms", "-"]
    assert ddp.split()[:3] == ["ddp", "6.0", "ms"]
    assert fsdp.split()[3] == "1.00"


def test_gpus_have_a_column_for_the_peak_of_torch() -> None:
    lines = below_ranks(measured(Node(), strategies=tried(run("ddp"), device="cuda")))
    assert lines[1].split()[-1] == "peak"
    assert lines[-1].split()[-1] == "-"


def test_the_widest_table_fits_a_terminal_of_80_columns() -> None:
    memory = StrategyMemory(*[999 << 20] * 5)
    rows = [run(name, rank(0, memory=memory, step_ms=999.0)) for name in ("ddp-accumulation", "fsdp-bf16")]
    lines = below_ranks(measured(Node(), strategies=tried(*rows, device="cuda")))
    assert len(lines) == 5
    assert len({len(line) for line in lines[1:]}) == 1
    assert max(map(len, lines)) <= 78  # the report puts two more before them


def test_the_page_has_the_same_rows() -> None:
    found = measured(Node(), strategies=tried(run("ddp")))
    page = render_html(judge(Node(), found))
    assert "Strategies" in page
    assert all(escape(line.strip()) in page for line in below_ranks(found))
    assert "Strategies" not in render_html(judge(Node(), measured(Node())))


def test_each_library_has_a_table_of_its_own_with_its_version() -> None:
    staged = tried(zero(1), zero(3))
    measured = Measurements(strategies=tried(zero(2)), deepspeed=library("DeepSpeed", staged))
    head, _, _, first, third = lines = figure_lines(measured)[1:]
    assert head.startswith("  DeepSpeed 1.0: 3 steps of ")
    assert (first.split()[0], third.split()[0]) == ("zero-1", "zero-3")
    assert figure_lines(measured) == ["Measured in processes of their own:", *lines]
    page = render_html(replace(report_of(words=("env",)), measurements=measured))
    assert all(escape(line.strip()) in page for line in lines)
    beside_ranks = below_ranks(measured)
    assert beside_ranks[0].startswith("  strategies: ")
    assert beside_ranks[-len(lines) :] == lines


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


def test_each_number_of_workers_has_its_row_and_what_was_not_tried_has_no_figure() -> None:
    steps = (
        LoaderStep(0, LoaderRates(9541.3, 0.0984, 0.0457, 0.0077, Missing("/dev/shm cannot be read", "failed"))),
        LoaderStep(16, LoaderRates(123456.0, 12.3, 1.5, 2.5, 300 << 20)),
        LoaderStep(32, None, Missing("no room", "denied")),
    )
    loading = DataLoading("cuda", 8, 3845, 32, 10552.0, steps, paths=("/data",))
    assert below_ranks(Measurements(data_loading=loading)) == [
        "  data loader: batches of 32 samples of 10.3 KiB, 3845 files of --data",
        "    workers  samples/s    GB/s  slowest rank  first batch  shm, MiB",
        "          0       9541  0.0984        0.0457       7.7 ms         -",
        "         16     123456    12.3           1.5        2.5 s       300",
        "         32          -       -             -            -         -",
    ]
