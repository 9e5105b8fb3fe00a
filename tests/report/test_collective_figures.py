"""The collectives and pairs as text."""

from __future__ import annotations

from itertools import combinations

from gpudoctor.facts.model.measurements import Collective, Measurements, PairBandwidth
from gpudoctor.report.text_figures import collective_lines

MIB = 2**20


def row(op: str, size: int, time_us: float, busbw: float) -> Collective:
    return Collective(op, size, "float32", 20, time_us, 1.0, busbw, busbw)


def square(ranks: int, *left_out: tuple[int, int]) -> tuple[PairBandwidth, ...]:
    every = (p for p in combinations(range(ranks), 2) if p not in left_out)
    return tuple(PairBandwidth(a, b, 64 * MIB, 15, 100.0, 1.0, 200.0 + 10 * a + b) for a, b in every)


def test_nothing_measured_says_nothing() -> None:
    assert collective_lines(Measurements()) == []


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
