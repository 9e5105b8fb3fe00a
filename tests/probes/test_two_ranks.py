"""One real run of both probes on two CPU ranks; many statements about it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import pytest

from gpudoctor.facts.model.measurements import Measurements, Training
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.launch import ProbePlan
from tests.narrowed import present
from tests.probes.conftest import measure
from tests.subprocesses import completed

pytestmark = pytest.mark.usefixtures("forked_starters")


@pytest.fixture(scope="module")
def run() -> Measurements:
    return measure(ProbePlan("gloo", ranks=2))


@pytest.fixture(scope="module")
def training(run: Measurements) -> Training:
    assert run.problems == ()
    return present(run.training)


def test_a_healthy_run_has_no_problem_and_nothing_that_was_not_run(run: Measurements) -> None:
    assert run.problems == ()
    assert {probe: why.missing for probe, why in run.not_run.items()} == {
        "link": "not asked for",
        "compute": "not asked for",
        "strategy": "not asked for",
        "data": "not asked for",
    }
    assert run.injected == ()


def test_the_launch_says_how_the_ranks_were_run(run: Measurements) -> None:
    launch = present(run.launch)
    assert launch.method == "fork-server"
    assert [rank.device for rank in launch.ranks] == ["cpu", "cpu"]
    assert 0 < present(launch.start_s) < present(launch.total_s)


def test_torch_tells_of_itself_from_inside_a_rank(run: Measurements) -> None:
    view = present(run.torch_view)
    command = [sys.executable, "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    installed = completed(command, check=True).stdout.strip()
    assert view.torch.split("+")[0] == installed.split("+")[0]
    assert view.error is None


def test_every_sum_is_right_and_holds_every_rank(run: Measurements) -> None:
    assert [c.size_bytes for c in run.collectives] == [4012, 1 << 20, 16 << 20]
    assert all(c.wrong_ranks == () and c.missing_ranks == () for c in run.collectives)


def test_bandwidth_follows_from_size_and_time_by_the_formula_of_nccl_tests(run: Measurements) -> None:
    for collective in run.collectives:
        assert collective.time_us > 0
        assert collective.iterations >= 3
        assert collective.algbw_gb_s == pytest.approx(collective.size_bytes / collective.time_us / 1000)
        assert collective.busbw_gb_s == pytest.approx(collective.algbw_gb_s)  # 2(n-1)/n is 1 for two ranks


def test_all_ranks_hold_the_same_weights_after_the_train(training: Training) -> None:
    first, second = (rank.weights_sha256 for rank in training.ranks)
    assert len(first) == 64
    assert first == second


def test_the_loss_falls_by_far_more_than_chance(training: Training) -> None:
    for rank in training.ranks:
        assert present(rank.loss_last) < present(rank.loss_first) / 2
        assert rank.nonfinite_step is None


def test_the_gradient_agrees_with_that_of_one_big_batch(training: Training) -> None:
    assert present(training.gradient_error) < 1e-5
    assert training.contribution_ok is True


def test_both_ranks_do_the_same_work_and_say_how_long_it_took(training: Training) -> None:
    assert training.steps == 30
    assert training.batch_per_rank >= 32
    assert training.gradient_bytes == 4 * training.parameters
    for rank in training.ranks:
        assert 0 < rank.compute_ms < rank.step_ms * 3
        assert rank.compute_again_ms > 0
        assert rank.data_ms >= 0
        assert rank.lateness_ms >= 0
        assert rank.wait_ms >= 0
    assert sum(rank.last_in_share for rank in training.ranks) == pytest.approx(1.0)


def test_the_step_alone_and_the_rate_are_measured_on_cpu_ranks_too(training: Training) -> None:
    assert present(training.solo_step_ms) > 0
    rate = 2 * training.batch_per_rank / present(training.steady_step_ms) * 1000
    assert training.samples_per_s == pytest.approx(rate)


def test_cpu_ranks_take_turns_on_the_cores(training: Training) -> None:
    assert training.rotated
    first, second = training.ranks
    assert len(first.cycles_ms) == len(second.cycles_ms) >= 6
    for rank in training.ranks:
        assert min(rank.cycles_ms) > 0
        assert present(rank.solo_compute_ms) > 0


def test_bucket_sizes_are_tried_at_level_full_only(training: Training) -> None:
    assert training.buckets == ()
    assert training.swap is None


def test_a_cpu_rank_has_no_gpu_memory_to_tell_of(training: Training) -> None:
    assert all(isinstance(rank.memory_peak_mib, Missing) for rank in training.ranks)


def test_the_measurements_survive_being_saved_and_read(run: Measurements) -> None:
    assert msgspec.json.decode(msgspec.json.encode(run), type=Measurements) == run


def test_no_figure_is_infinite_or_nan(run: Measurements, training: Training) -> None:
    figures = [c.busbw_gb_s for c in run.collectives] + [r.compute_ms for r in training.ranks]
    assert all(math.isfinite(figure) for figure in figures)


@pytest.mark.wide
def test_the_process_that_asks_for_probes_never_imports_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from gpudoctor.probes.runner.launch import ProbePlan, run_probes\n"
        "found = run_probes(ProbePlan('gloo', 1, probes=('collective',)), deadline_s=120, probe_deadline_s=120)\n"
        "assert found.torch_view is not None, found\n"
        "print(sorted(name for name in sys.modules if name in ('torch', 'numpy')))"
    )
    done = completed([sys.executable, "-c", program])
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
