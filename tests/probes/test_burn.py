"""The rounds of a burn: what is shown of them, and what must not be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpudoctor.facts.model.measured_hardware import ComputeRank, Gemm, HostLink, PeerLink
from gpudoctor.facts.model.measurements import Measurements, Probe, Training
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.telemetry import NOT_READ_AGAIN, Burn, Series
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.launch import ProbePlan
from gpudoctor.probes.runner.messages import CollectiveSample, Finished, PairSample, Phase
from gpudoctor.probes.runner.run_collector import RunCollector
from tests.narrowed import missing, present
from tests.probes.test_merge import train

PROBES: tuple[Probe, ...] = ("collective", "link", "compute", "train")
RIGHT = "aa" * 32


def collective(wrong: int = 0, missing: tuple[int, ...] = (), us: float = 1000.0, size: int = 1 << 24) -> Any:
    return CollectiveSample("all_reduce", size, "float32", (us,), 1, wrong, missing)


def link(rank: int, wrong: int = 0, h2d: float = 50.0) -> messages.LinkSample:
    peers = (PeerLink(rank, 1 - rank, 1 << 20, 40.0, wrong_elements=wrong),)
    return messages.LinkSample(HostLink(rank, 1 << 20, h2d, 50.0, wrong_bytes=wrong), peers)


def compute(rank: int, bits: str = RIGHT, wrong: int = 0, tflops: float = 700.0) -> messages.ComputeSample:
    gemm = Gemm("bf16", 8192, tflops, 1.0)
    return messages.ComputeSample(ComputeRank(rank, (gemm,), 3000.0, 2900.0, (bits, bits), 1 << 30, wrong))


class Run:
    """An Outcome fed with the reports of two ranks, at times that the test sets."""

    def __init__(self, folder: Path, duration_s: float | None = 600.0) -> None:
        self.now_s = 0.0
        self.told: list[str] = []
        plan = ProbePlan(
            "nccl",
            2,
            ((0, "GPU-0", "0000:10:00.0"), (1, "GPU-1", "0000:11:00.0")),
            PROBES,
            "burn" if duration_s else "full",
            duration_s,
        )
        self.outcome = RunCollector(
            plan, folder, ProgressBoard(folder / "board", 2), self.told.append, clock=lambda: self.now_s
        )
        self.outcome.take(-1, messages.Started("fresh-interpreters"))
        for rank in range(2):
            self.outcome.take(rank, Phase("launch", "joined"))

    def probe(self, probe: Probe, *samples: messages.RankMessage, at_s: float) -> None:
        """Both ranks run one probe and are through with it; one sample a rank."""
        for rank in range(2):
            self.outcome.take(rank, Phase(probe, f"run {probe}"))
        self.now_s = at_s
        for rank, sample in enumerate(samples):
            self.outcome.take(rank, sample)
            self.outcome.take(rank, Finished(probe))

    def round(self, at_s: float, **changed: tuple[messages.RankMessage, ...]) -> None:
        """A whole round that ends at `at_s`; `changed` replaces the reports of two sound ranks in it."""
        usual: dict[Probe, tuple[messages.RankMessage, ...]] = {
            "collective": (collective(), collective()),
            "link": (link(0), link(1)),
            "compute": (compute(0), compute(1)),
            "train": (train(), train()),
        }
        for probe in PROBES:
            self.probe(probe, *changed.get(probe, usual[probe]), at_s=at_s)

    @property
    def measured(self) -> Measurements:
        return self.outcome.measurements()

    @property
    def burn(self) -> Burn:
        return present(self.measured.burn)

    @property
    def training(self) -> Training:
        return present(self.measured.training)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def with_a_bad_round(run: Run, bad: int, **changed: tuple[messages.RankMessage, ...]) -> Measurements:
    """Three rounds, of which one is bad and those before and after it are right."""
    for number in range(3):
        run.round(10.0 * (number + 1), **(changed if number == bad else {}))
    return run.measured


ANY_ROUND = pytest.mark.parametrize("bad", [0, 1, 2])


@ANY_ROUND
def test_a_wrong_sum_of_any_round_stays_wrong(run: Run, bad: int) -> None:
    found = with_a_bad_round(run, bad, collective=(collective(), collective(wrong=3, missing=(0,))))
    assert [(c.wrong_ranks, c.missing_ranks) for c in found.collectives] == [((1,), (0,))]
    assert run.burn.wrong[0].round == bad
    assert "without the part of rank 0" in run.burn.wrong[0].text


def test_why_nothing_was_loaded_in_the_first_round_is_not_lost_in_the_next(run: Run) -> None:
    why = Missing("what --data names holds nothing to load: there is no file", "failed")
    run.outcome.take(0, messages.LeftOut("data", why))
    run.round(10.0)
    run.round(20.0)
    assert run.measured.not_run["data"] == why


def test_wrong_ranks_of_several_rounds_add_up(run: Run) -> None:
    run.round(10.0, collective=(collective(wrong=1), collective()))
    run.round(20.0, collective=(collective(), collective(wrong=1)))
    run.round(30.0)
    assert run.measured.collectives[0].wrong_ranks == (0, 1)


def test_a_wrong_sum_at_a_size_that_the_last_round_did_not_run_is_kept_too(run: Run) -> None:
    small = collective(wrong=1, size=4096)
    found = with_a_bad_round(run, 0, collective=(small, small))
    assert {c.size_bytes: c.wrong_ranks for c in found.collectives} == {1 << 24: (), 4096: (0, 1)}


@ANY_ROUND
def test_what_a_pair_of_ranks_received_wrong_in_any_round_is_kept(run: Run, bad: int) -> None:
    for number in range(3):
        for rank in range(2):
            run.outcome.take(rank, Phase("collective", "sendrecv of ranks 0 and 1"))
            run.outcome.take(rank, PairSample(0, 1, 1 << 20, (100.0,), 1, int(number == bad and rank == 1)))
        run.round(10.0 * (number + 1))
    assert [pair.wrong_ranks for pair in run.measured.pairs] == [(1,)]
    assert [wrong.round for wrong in run.burn.wrong] == [bad]


@ANY_ROUND
def test_bytes_that_changed_on_a_link_in_any_round_are_kept(run: Run, bad: int) -> None:
    found = with_a_bad_round(run, bad, link=(link(0), link(1, wrong=7)))
    assert [h.wrong_bytes for h in found.host_links] == [0, 7]
    assert [(p.source, p.wrong_elements) for p in found.peer_links] == [(0, 0), (1, 7)]
    assert run.burn.wrong_count == 2


@ANY_ROUND
def test_other_bits_for_equal_work_in_any_round_are_kept(run: Run, bad: int) -> None:
    found = with_a_bad_round(run, bad, compute=(compute(0), compute(1, bits="bb" * 32)))
    assert [set(device.fingerprints) for device in found.compute] == [{RIGHT}, {RIGHT, "bb" * 32}]
    assert all("rank 1" in wrong.text for wrong in run.burn.wrong)
    assert run.burn.wrong_count > 0


def test_equal_bits_in_all_rounds_are_not_piled_up(run: Run) -> None:
    found = with_a_bad_round(run, 1)
    assert [device.fingerprints for device in found.compute] == [(RIGHT, RIGHT)] * 2
    assert run.burn.wrong == ()


@ANY_ROUND
def test_memory_that_changed_in_any_round_is_kept(run: Run, bad: int) -> None:
    found = with_a_bad_round(run, bad, compute=(compute(0), compute(1, wrong=64)))
    assert [device.pattern_wrong_bytes for device in found.compute] == [0, 64]


def test_memory_that_changed_is_kept_though_the_last_round_could_not_look(run: Run) -> None:
    full = Missing("out of memory", "failed")
    blind = messages.ComputeSample(ComputeRank(1, pattern_bytes=full, pattern_wrong_bytes=full))
    run.round(10.0, compute=(compute(0), compute(1, wrong=64)))
    run.round(20.0, compute=(compute(0), blind))
    last = run.measured.compute[1]
    assert (last.pattern_bytes, last.pattern_wrong_bytes) == (1 << 30, 64)


@ANY_ROUND
def test_weights_that_differed_after_any_round_still_differ(run: Run, bad: int) -> None:
    with_a_bad_round(run, bad, train=(train(), train(weights_sha256="bb")))
    assert [rank.weights_sha256 for rank in run.training.ranks] == [RIGHT, "bb"]


@ANY_ROUND
@pytest.mark.parametrize("losses", [(4.0, 3.0, None, 1.0), (1.0, 2.0, 3.0, 4.0)])
def test_a_loss_that_was_not_finite_or_did_not_fall_in_any_round_is_kept(
    run: Run, bad: int, losses: tuple[float | None, ...]
) -> None:
    with_a_bad_round(run, bad, train=(train() if None in losses else train(losses=losses), train(losses=losses)))
    last = run.training.ranks[1]
    assert last.loss_last is None or (last.loss_first is not None and last.loss_last > last.loss_first)
    assert last.nonfinite_step == (3 if None in losses else None)
    assert run.burn.wrong_count == 1


@ANY_ROUND
def test_a_gradient_that_was_wrong_in_any_round_is_kept(run: Run, bad: int) -> None:
    with_a_bad_round(run, bad, train=(train(contribution_ok=False, gradient_error=0.5), train()))
    assert (run.training.contribution_ok, run.training.gradient_error) == (False, 0.5)


def test_a_gradient_that_was_not_finite_in_an_early_round_is_kept(run: Run) -> None:
    with_a_bad_round(run, 0, train=(train(gradient_error=None), train()))
    missing(run.training.gradient_error, "failed")


def test_the_figures_shown_are_those_of_the_last_round_that_all_ranks_went_through_with(run: Run) -> None:
    run.round(10.0, compute=(compute(0, tflops=700), compute(1, tflops=700)))
    run.round(20.0, compute=(compute(0, tflops=650), compute(1, tflops=650)))
    run.probe("collective", collective(us=500.0), collective(us=500.0), at_s=25.0)
    run.outcome.take(0, Phase("link", "run link"))
    run.outcome.take(0, link(0, h2d=1.0))  # rank 1 never sends its own
    found = run.measured
    assert [c.time_us for c in found.collectives] == [500.0]
    assert [h.h2d_alone_gb_s for h in found.host_links] == [50.0, 50.0]
    assert [device.gemms[0].tflops for device in found.compute] == [650, 650]
    assert (run.burn.rounds, run.burn.duration_s) == (2, 20.0)


def test_a_wrong_result_of_a_round_that_never_ended_is_kept(run: Run) -> None:
    run.round(10.0)
    run.outcome.take(1, Phase("link", "run link"))
    run.outcome.take(1, link(1, wrong=5))
    assert [h.wrong_bytes for h in run.measured.host_links] == [0, 5]
    assert run.burn.wrong[0].round == 1


def test_without_a_duration_one_round_is_told_as_it_came_and_no_burn(tmp_path: Path) -> None:
    run = Run(tmp_path, duration_s=None)
    run.round(10.0)
    assert run.measured.burn is None
    assert run.training
    assert set(run.told) == {"joined", *(f"run {probe}" for probe in PROBES)}


def test_a_burn_says_the_round_and_the_time_left(run: Run) -> None:
    run.round(30.0)
    run.round(605.0)
    run.round(640.0)
    assert run.told[1] == "round 1, 10 min 0 s left: run collective"
    assert "round 2, 9 min 30 s left: run collective" in run.told
    assert run.told[-1] == "round 3, the last one: run train"


def test_a_probe_of_a_later_round_is_another_thing_that_runs_with_its_own_deadline(run: Run) -> None:
    run.outcome.take(0, Phase("collective", "all_reduce"))
    assert run.outcome.running == ["collective"]
    run.round(10.0)
    assert run.outcome.running == []
    run.outcome.take(0, Phase("collective", "all_reduce"))
    assert run.outcome.running == ["collective, round 2"]
    run.outcome.take(0, Finished("collective"))
    assert run.outcome.running == ["collective, round 2"]  # rank 1 is in it
    run.outcome.take(1, Finished("collective"))
    assert run.outcome.running == []


def test_a_rank_that_is_heard_ahead_of_the_others_is_in_the_next_round(run: Run) -> None:
    run.round(10.0)
    for probe, samples in zip(PROBES, (collective(), link(0), compute(0), train()), strict=True):
        run.outcome.take(0, Phase(probe, probe))
        run.outcome.take(0, samples)
        run.outcome.take(0, Finished(probe))
    run.outcome.take(0, Phase("collective", "all_reduce"))
    run.outcome.take(0, collective(us=1.0))
    assert run.outcome.running == [*(f"{probe}, round 2" for probe in PROBES), "collective, round 3"]
    assert run.burn.rounds == 1
    for probe, samples in zip(PROBES, (collective(), link(1), compute(1), train()), strict=True):
        run.outcome.take(1, samples)
        run.outcome.take(1, Finished(probe))
    assert run.burn.rounds == 2
    assert [c.time_us for c in run.measured.collectives] == [1000.0]


def named(burn: Burn, metric: str, rank: int | None) -> Series:
    [found] = [s for s in burn.series if (s.metric, s.rank) == (metric, rank)]
    return found


def test_the_first_half_minute_is_set_against_the_last_minute(run: Run) -> None:
    for number in range(20):  # ends at 10, 20 ... 200 s; the GPU of rank 1 loses 5 TFLOP/s a round
        run.round(10.0 * (number + 1), compute=(compute(0), compute(1, tflops=700.0 - 5 * number)))
    found = named(run.burn, "gemm bf16 8192", 1)
    assert (found.unit, found.values) == ("TFLOP/s", 20)
    assert (found.early.high, found.early.median, found.early.low) == (700, 695, 690)  # 10, 20, 30 s
    assert (found.late.high, found.late.low) == (630, 605)  # 150 to 200 s: after 140 s
    assert named(run.burn, "gemm bf16 8192", 0).late.median == 700


def test_a_short_burn_sets_its_first_value_against_its_last(run: Run) -> None:
    for number, ms in enumerate((10.0, 50.0, 12.8)):
        run.round(10.0 * (number + 1), train=(train(compute_ms=ms), train(compute_ms=ms)))
    found = named(run.burn, "train compute a sample", 0)
    assert (found.unit, found.early.median, found.late.median) == ("us", 156.25, 200.0)


def test_rounds_that_are_longer_than_the_windows_leave_the_first_and_the_last(run: Run) -> None:
    for number, gb_s in enumerate((50.0, 45.0, 40.0)):
        run.round(100.0 * (number + 1), link=(link(0, h2d=gb_s), link(1)))
    found = named(run.burn, "host to device", 0)
    assert (found.early.median, found.late.median) == (50.0, 40.0)


def test_what_came_once_has_no_course(run: Run) -> None:
    run.round(10.0)
    assert run.burn.series == ()


def test_every_figure_that_must_hold_has_its_course(run: Run) -> None:
    run.round(10.0)
    run.round(20.0)
    assert {(s.metric, s.unit) for s in run.burn.series if s.rank == 1} == {
        ("host to device", "GB/s"),
        ("device to host", "GB/s"),
        ("gemm bf16 8192", "TFLOP/s"),
        ("memory copy", "GB/s"),
        ("train compute a sample", "us"),
        ("train step a sample", "us"),
    }
    [together] = [s for s in run.burn.series if s.rank is None]
    assert together.metric == "all_reduce 16 MiB float32"
    assert together.late.median == pytest.approx((1 << 24) / 1000 / 1e3)


def test_counters_wait_for_their_second_reading_where_a_gpu_was_loaded(run: Run) -> None:
    run.round(10.0)
    assert run.burn.counters == run.burn.kernel_events == NOT_READ_AGAIN
    assert NOT_READ_AGAIN.kind == "failed"
