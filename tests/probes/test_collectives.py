"""Level full on CPU ranks: every collective and every pair, and faults in them."""

from __future__ import annotations

import pytest

from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import Collective, Measurements, PairBandwidth
from gpudoctor.probes.collective.merge import merged_collectives, merged_pairs
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.messages import CollectiveSample, PairSample
from tests.probes.conftest import measure

pytestmark = pytest.mark.usefixtures("forked_starters")

OTHERS = ("all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")


def full(ranks: int, *inject: str, level: str = "full") -> ProbePlan:
    return ProbePlan("gloo", ranks, probes=("collective",), level=level, inject=inject)


@pytest.fixture(scope="module")
def run() -> Measurements:
    """Three ranks, so that sizes do not divide and one rank sits out in every round of pairs."""
    return measure(full(3, "wrong-sum=1"))


def of(run: Measurements, op: str) -> list[Collective]:
    return [c for c in run.collectives if c.op == op]


@pytest.mark.wide
def test_every_collective_is_measured_from_small_to_large(run: Measurements) -> None:
    assert run.problems == ()
    assert list(dict.fromkeys(c.op for c in run.collectives)) == ["all_reduce", *OTHERS]
    assert [c.size_bytes for c in of(run, "all_reduce")] == [4012, 1 << 20, 16 << 20]
    for op in OTHERS:
        sizes = [c.size_bytes for c in of(run, op)]
        whole = op in ("all_gather", "reduce_scatter", "all_to_all")  # nccl-tests: the buffer of all ranks
        expected = [4008, (1 << 20) - 4, (16 << 20) - 4] if whole else [4012, 1 << 20, 16 << 20]
        assert sizes == expected[: len(sizes)], "a busy machine may leave no time for the largest"
        assert len(sizes) >= 1


@pytest.mark.wide
def test_a_wrong_sum_is_wrong_in_all_reduce_and_nowhere_else(run: Measurements) -> None:
    assert {c.wrong_ranks for c in of(run, "all_reduce")} == {(1,)}
    assert {c.wrong_ranks for op in OTHERS for c in of(run, op)} == {()}
    assert {pair.wrong_ranks for pair in run.pairs} == {()}


@pytest.mark.wide
@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 4 / 3),
        ("all_gather", 2 / 3),
        ("reduce_scatter", 2 / 3),
        ("all_to_all", 2 / 3),
        ("broadcast", 1.0),
        ("sendrecv", 1.0),
    ],
)
def test_bus_bandwidth_is_by_the_factors_of_nccl_tests(run: Measurements, op: str, factor: float) -> None:
    for c in of(run, op):
        assert c.iterations >= 3
        assert c.algbw_gb_s == pytest.approx(c.size_bytes / c.time_us / 1000)
        assert c.busbw_gb_s == pytest.approx(c.algbw_gb_s * factor)


@pytest.mark.wide
def test_every_pair_of_ranks_is_measured(run: Measurements) -> None:
    assert [(pair.a, pair.b) for pair in run.pairs] == [(0, 1), (0, 2), (1, 2)]
    for pair in run.pairs:
        assert pair.size_bytes == 1 << 20
        assert pair.busbw_gb_s == pytest.approx(pair.size_bytes / pair.time_us / 1000)


@pytest.mark.wide
def test_a_rank_that_hangs_in_another_collective_is_named_with_it() -> None:
    found = measure(full(3, "hang-rank=2:all_gather"), probe_deadline_s=8.0)
    [problem] = found.problems
    assert (problem.kind, problem.rank, problem.waiting) == ("timeout", 2, (0, 1))
    assert problem.text == "rank 2 did not leave all_gather of 16 MiB within 8 s; ranks 0, 1 wait for it"
    assert [c.op for c in found.collectives][-1] == "all_gather", "what was delivered before is kept"


@pytest.mark.wide
def test_a_rank_that_dies_among_the_pairs_is_named_with_its_partner() -> None:
    found = measure(full(2, "die-rank=1:pairs"))
    [problem] = found.problems
    assert (problem.kind, problem.rank, problem.waiting) == ("crash", 1, (0,))
    assert problem.phase == "sendrecv of ranks 0 and 1"
    assert len({c.op for c in found.collectives}) == 6
    assert found.pairs == ()


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (
            full(2, "hang-rank=1:all_gather", level="standard"),
            "all_gather: it is measured at --level full",
        ),
        (full(2, "die-rank=1:pairs", level="standard"), "pairs: it is measured at --level full, and this is standard"),
        (full(2, "hang-rank=1:train"), "train: the train probe is not run"),
        (full(1, "hang-rank=0:all_reduce"), "all_reduce: one rank has nobody to exchange with"),
        (full(2, "wrong-bits=1"), "compute: the compute probe is not run"),
        (full(2, "slow-rank=1:2"), "train: the train probe is not run"),
        (full(2, "slow-data=1"), "train: the train probe is not run"),
        (ProbePlan("gloo", 2, probes=("train",), inject=("wrong-sum=1",)), "collective: the collective probe is"),
    ],
)
def test_a_fault_where_no_rank_comes_by_is_the_users_to_mend(plan: ProbePlan, why: str) -> None:
    with pytest.raises(UserError, match=f"--inject {plan.inject[0]}: no rank comes by {why}"):
        run_probes(plan, deadline_s=1.0, probe_deadline_s=1.0)


# merging


def collective(*batch_us: float, op: str = "all_reduce", size: int = 1_000_000, **facts: object) -> CollectiveSample:
    told = {"wrong_elements": 0, "missing_ranks": (), **facts}
    return CollectiveSample(op, size, "float32", batch_us, 10, **told)  # type: ignore[arg-type]


def test_a_collective_takes_as_long_as_its_slowest_rank_in_each_batch() -> None:
    fast, slow = collective(10.0, 90.0, 30.0), collective(20.0, 40.0, 50.0)
    [found] = merged_collectives({0: [fast], 1: [slow], 2: [fast], 3: [fast]}, 4)
    assert (found.time_us, found.time_us_mad, found.iterations) == (50.0, 30.0, 30)
    assert found.algbw_gb_s == pytest.approx(20.0)  # 1 MB in 50 us
    assert found.busbw_gb_s == pytest.approx(30.0)  # x 2(n-1)/n = 1.5


def test_ranks_with_wrong_results_and_ranks_left_out_of_the_sum_are_told_apart() -> None:
    samples = {
        0: [collective(1.0, missing_ranks=(2,))],
        1: [collective(1.0, wrong_elements=3)],
        2: [collective(1.0)],
    }
    [found] = merged_collectives(samples, 3)
    assert (found.wrong_ranks, found.missing_ranks) == ((1,), (2,))


def test_only_what_every_rank_delivered_counts() -> None:
    both = [collective(1.0), collective(2.0, size=2_000_000)]
    assert [c.size_bytes for c in merged_collectives({0: both, 1: both[:1]}, 2)] == [1_000_000]
    assert merged_collectives({0: both}, 2) == ()
    assert merged_collectives({}, 2) == ()


def pair(a: int, b: int, *batch_us: float, wrong: int = 0) -> PairSample:
    return PairSample(a, b, 1_000_000, batch_us, 5, wrong)


def test_a_pair_takes_as_long_as_the_slower_of_the_two_in_its_better_pass() -> None:
    first = {0: pair(0, 2, 900.0, 900.0, 900.0), 2: pair(0, 2, 1.0, 1.0, 1.0)}
    second = {0: pair(0, 2, 40.0, 10.0, 30.0), 2: pair(0, 2, 20.0, 50.0, 90.0)}
    [found] = merged_pairs({rank: [first[rank], second[rank]] for rank in (0, 2)})
    assert found == PairBandwidth(0, 2, 1_000_000, 15, 50.0, 10.0, found.busbw_gb_s)
    assert found.busbw_gb_s == pytest.approx(20.0)


def test_a_pair_that_was_wrong_once_stays_wrong() -> None:
    samples = {0: [pair(0, 1, 90.0, wrong=2), pair(0, 1, 10.0)], 1: [pair(0, 1, 90.0), pair(0, 1, 10.0)]}
    [found] = merged_pairs(samples)
    assert (found.time_us, found.wrong_ranks) == (10.0, (0,))


def test_a_pair_that_only_one_of_the_two_delivered_is_left_out() -> None:
    samples = {0: [pair(0, 1, 10.0), pair(0, 2, 10.0)], 1: [pair(0, 1, 10.0)], 2: []}
    assert [(p.a, p.b) for p in merged_pairs(samples)] == [(0, 1)]
