"""How the samples of the ranks are put together: figures known beforehand."""

from __future__ import annotations

import pytest

from gpudoctor.facts.measurements import Device
from gpudoctor.facts.missing import Missing
from gpudoctor.probes.merge import merged_collectives, merged_training
from gpudoctor.probes.messages import Block, CollectiveSample, TrainSample


def _collective(
    *batch_us: float, size: int = 1_000_000, wrong: int = 0, missing: tuple[int, ...] = ()
) -> CollectiveSample:
    return CollectiveSample("all_reduce", size, "float32", batch_us, 10, wrong, missing)


def test_a_collective_takes_as_long_as_its_slowest_rank_in_each_batch() -> None:
    fast, slow = _collective(10.0, 90.0, 30.0), _collective(20.0, 40.0, 50.0)
    [found] = merged_collectives({0: [fast], 1: [slow], 2: [fast], 3: [fast]}, 4)
    assert (found.time_us, found.time_us_mad, found.iterations) == (50.0, 30.0, 30)
    assert found.algbw_gb_s == pytest.approx(20.0)  # 1 MB in 50 us
    assert found.busbw_gb_s == pytest.approx(30.0)  # x 2(n-1)/n = 1.5


def test_ranks_with_wrong_results_and_ranks_left_out_of_the_sum_are_told_apart() -> None:
    samples = {0: [_collective(1.0, missing=(2,))], 1: [_collective(1.0, wrong=3)], 2: [_collective(1.0)]}
    [found] = merged_collectives(samples, 3)
    assert (found.wrong_ranks, found.missing_ranks) == ((1,), (2,))


def test_only_sizes_that_every_rank_delivered_count() -> None:
    both = [_collective(1.0), _collective(2.0, size=2_000_000)]
    assert [c.size_bytes for c in merged_collectives({0: both, 1: both[:1]}, 2)] == [1_000_000]
    assert merged_collectives({0: both}, 2) == ()
    assert merged_collectives({}, 2) == ()


_MS = 1_000_000
_DEVICES: tuple[Device, ...] = ("cpu", "cuda")


def _train(arrived_ms: float, left_ms: float, compute_ms: float, contribution_ok: bool | None = True) -> TrainSample:
    """Four steps in two blocks, all alike."""
    block = Block(
        compute_ms=(compute_ms, compute_ms),
        host_ms=(1.0, 1.0),
        data_ms=(0.5, 0.5),
        arrived_ns=(int(arrived_ms * _MS), int((100 + arrived_ms) * _MS)),
        left_ns=(int(left_ms * _MS), int((100 + left_ms) * _MS)),
        step_ms=(compute_ms + 2, compute_ms + 2),
    )
    return TrainSample(
        batch_per_rank=64,
        parameters=10,
        gradient_bytes=40,
        blocks=(block, block),
        losses=(4.0, 2.0, 3.0, 1.0, 0.5, 0.0),
        weights_sha256="aa",
        contribution_ok=contribution_ok,
        gradient_error=1e-7,
        solo_step_ms=9.0,
        memory_peak_mib=None,
    )


def test_the_rank_that_comes_last_waits_least() -> None:
    training = merged_training({0: _train(10, 20, 10), 1: _train(16, 20, 16)}, 2, "cpu")
    assert training is not None
    first, last = training.ranks
    assert (first.lateness_ms, first.wait_ms, first.last_in_share) == (0.0, 6.0, 0.0)
    assert (last.lateness_ms, last.wait_ms, last.last_in_share) == (6.0, 0.0, 1.0)
    assert (last.compute_ms, last.compute_again_ms, last.step_ms) == (16.0, 16.0, 18.0)
    assert (last.loss_first, last.loss_last) == (3.0, 0.5)
    assert training.clock_invariant_ok is True
    assert training.steps == 4
    assert training.samples_per_s == pytest.approx(2 * 64 / 0.018)


def test_the_scheduler_does_not_decide_which_cpu_rank_is_last() -> None:
    by_device = {d: merged_training({0: _train(10, 20, 12), 1: _train(16, 20, 10)}, 2, d) for d in _DEVICES}
    shares = {d: [rank.last_in_share for rank in t.ranks] for d, t in by_device.items() if t is not None}
    assert shares == {"cpu": [1.0, 0.0], "cuda": [0.0, 1.0]}


def test_arrival_times_say_nothing_where_ranks_do_not_leave_together() -> None:
    training = merged_training({0: _train(10, 20, 10), 1: _train(10, 22, 10)}, 2, "cpu")
    assert training is not None
    assert training.clock_invariant_ok is False


def test_one_rank_whose_code_was_not_in_the_sum_is_enough() -> None:
    training = merged_training({0: _train(1, 2, 1), 1: _train(1, 2, 1, contribution_ok=False)}, 2, "cpu")
    assert training is not None
    assert training.contribution_ok is False
    unsure = merged_training({0: _train(1, 2, 1), 1: _train(1, 2, 1, contribution_ok=None)}, 2, "cpu")
    assert unsure is not None
    assert isinstance(unsure.contribution_ok, Missing)


def test_a_train_that_one_rank_did_not_finish_is_no_train() -> None:
    assert merged_training({0: _train(1, 2, 1)}, 2, "cpu") is None


def test_a_loss_that_was_not_finite_stays_so_and_is_dated() -> None:
    sample = _train(1, 2, 1)
    lost = TrainSample(**{f: getattr(sample, f) for f in sample.__struct_fields__} | {"losses": (1.0, 1.0, None, 1.0)})
    training = merged_training({0: lost}, 1, "cpu")
    assert training is not None
    assert training.ranks[0].nonfinite_step == 3
    assert training.ranks[0].loss_last is None
    assert isinstance(training.clock_invariant_ok, Missing)
