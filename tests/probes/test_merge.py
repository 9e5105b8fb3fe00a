"""How the samples of the ranks are put together: figures known beforehand."""

from __future__ import annotations

import msgspec
import pytest

from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.model.measurements import BucketStep, Device, Training
from gpudoctor.probes.runner.merge import merged_training
from gpudoctor.probes.runner.messages import StepBlock, TrainSample
from gpudoctor.probes.train.probe import JUDGED_RATIO, all_even
from tests.narrowed import missing, present

_MS = 1_000_000
_DEVICES: tuple[Device, ...] = ("cpu", "cuda")


def train(arrived_ms: float = 0.0, left_ms: float = 5.0, compute_ms: float = 10.0, **changed: object) -> TrainSample:
    """Four steps in two blocks, all alike; `changed`: other fields of the sample."""
    arrived_ns, left_ns = ((int(ms * _MS), int((100 + ms) * _MS)) for ms in (arrived_ms, left_ms))
    block = StepBlock((compute_ms,) * 2, (1.0,) * 2, (0.5,) * 2, arrived_ns, left_ns, (compute_ms + 2,) * 2)
    sample = TrainSample(
        batch_per_rank=64,
        parameters=10,
        gradient_bytes=40,
        blocks=(block, block),
        losses=(4.0, 2.0, 3.0, 1.0, 0.5, 0.0),
        weights_sha256="aa" * 32,
        contribution_ok=True,
        gradient_error=1e-7,
        solo_step_ms=9.0,
        steady_step_ms=compute_ms + 4,
        solo_compute_ms=compute_ms - 1,
    )
    return msgspec.structs.replace(sample, **changed)


def _merged(*samples: TrainSample, device: Device = "cpu") -> Training:
    return present(merged_training(dict(enumerate(samples)), len(samples), device))


def test_the_rank_that_comes_last_waits_least() -> None:
    training = _merged(train(10, 20, 10), train(16, 20, 16))
    first, last = training.ranks
    assert (first.lateness_ms, first.wait_ms, first.last_in_share) == (0.0, 6.0, 0.0)
    assert (last.lateness_ms, last.wait_ms, last.last_in_share) == (6.0, 0.0, 1.0)
    assert (last.compute_ms, last.compute_again_ms, last.step_ms) == (16.0, 16.0, 18.0)
    assert (last.loss_first, last.loss_last) == (3.0, 0.5)
    assert training.clock_invariant_ok is True
    assert training.steps == 4
    assert training.steady_step_ms == 20.0
    assert training.samples_per_s == pytest.approx(2 * 64 / 0.020)


def test_the_scheduler_does_not_decide_which_cpu_rank_is_last() -> None:
    by_device = {d: _merged(train(10, 20, 12), train(16, 20, 10), device=d) for d in _DEVICES}
    shares = {d: [rank.last_in_share for rank in training.ranks] for d, training in by_device.items()}
    assert shares == {"cpu": [1.0, 0.0], "cuda": [0.0, 1.0]}


def test_arrival_times_say_nothing_where_ranks_do_not_leave_together() -> None:
    assert _merged(train(10, 20, 10), train(10, 22, 10)).clock_invariant_ok is False


def test_one_rank_whose_code_was_not_in_the_sum_is_enough() -> None:
    assert _merged(train(), train(contribution_ok=False)).contribution_ok is False
    missing(_merged(train(), train(contribution_ok=None)).contribution_ok)


def test_a_train_that_one_rank_did_not_finish_is_no_train() -> None:
    assert merged_training({0: train()}, 2, "cpu") is None


def test_a_loss_that_was_not_finite_stays_so_and_is_dated() -> None:
    training = _merged(train(losses=(1.0, 1.0, None, 1.0)))
    assert training.ranks[0].nonfinite_step == 3
    assert training.ranks[0].loss_last is None
    missing(training.clock_invariant_ok)


def test_turns_over_the_cores_are_the_compute_time_of_cpu_ranks() -> None:
    turns = (4.0, 4.2, 3.8, 5.0, 5.2, 4.8)
    sample = train(cycles_ms=turns, rotated=True)
    training = _merged(sample, sample)
    assert training.rotated
    assert training.ranks[0].cycles_ms == turns
    assert (training.ranks[0].compute_ms, training.ranks[0].compute_again_ms) == (4.0, 5.0)


def test_one_rank_that_took_no_turns_spoils_the_comparison() -> None:
    assert not _merged(train(), train(cycles_ms=(1.0,), rotated=True)).rotated


def test_a_step_with_a_bucket_size_is_over_when_the_slowest_rank_is_through() -> None:
    quick, slow = (train(buckets=(BucketStep(1, a), BucketStep(25, b))) for a, b in ((3.0, 9.0), (4.0, 8.0)))
    assert _merged(quick, slow, device="cuda").buckets == (BucketStep(1, 4.0), BucketStep(25, 9.0))


def test_ranks_are_compared_until_none_can_be_slow() -> None:
    steady = [4.0, 4.02, 3.98, 4.01, 3.99, 4.0]
    wild = [4.0, 6.0, 3.0, 5.0, 2.5, 7.0]
    assert all_even([steady, steady], 36)
    assert all_even([wild, wild], 36)  # what all share is no difference
    assert all_even([wild], 36)
    assert not all_even([steady, wild], 36)
    # a slow rank is compared to the end: a disturbance would look the same
    assert not all_even([[1.25 * each for each in steady], steady], 36)
    assert not all_even([steady, [1.10 * each for each in steady]], 36)


def test_a_look_at_few_cycles_needs_a_clearer_figure_than_the_last_one() -> None:
    spread = [4.0, 4.3, 3.7, 4.15, 3.85, 4.2, 3.8]
    others = [4.0] * len(spread)
    assert all_even([spread, others], len(spread))
    assert not all_even([spread, others], 36)


def test_the_probe_samples_for_the_verdict_that_the_check_gives() -> None:
    [balance] = [check for check in registry() if check.id == "train.balance"]
    assert balance.limits["warn_ratio"].value == JUDGED_RATIO
