"""A model that is split over real CPU ranks: by tensors, by stages, by both; and the faults made on purpose in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measured_strategies import Strategies, StrategyRun
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.plan import parse_injection
from tests.imported_torch import ForkedPython
from tests.narrowed import present
from tests.probes.conftest import measure, two_ranks
from tests.probes.test_strategies import judged

pytestmark = pytest.mark.usefixtures("forked_starters")

# A dozen trains of four ranks, on machines on which other tests use the cores too.
DEADLINE_S = 300.0
ROUNDING = 1e-5


def strategies_of(found: Measurements) -> Strategies:
    assert found.problems == ()
    return present(found.strategies)


def run_of(tried: Strategies, variant: str) -> StrategyRun:
    [run] = [run for run in tried.runs if run.variant == variant]
    assert [rank.rank for rank in run.ranks] == list(range(tried.world_size))
    return run


def weights_error(run: StrategyRun) -> float:
    return max(present(rank.weights_error) for rank in run.ranks)


def failures(found: Measurements, check_id: str) -> list[str]:
    """What the check finds to have failed."""
    return [finding.subject.label for finding in judged(found, check_id).findings if finding.status is Status.FAIL]


@pytest.fixture(scope="module")
def two_faulty_ranks() -> Measurements:
    """Faults that do not interfere with each other."""
    plan = ProbePlan(
        "gloo",
        ranks=2,
        probes=("strategy",),
        level="full",
        strategies=("ddp", "fsdp", "fsdp1", "checkpointing", "tensor"),
        inject=("desync=1", "wrong-shard=1", "skip-all-gather=1", "wrong-recompute=1"),
    )
    return run_probes(plan, deadline_s=DEADLINE_S, probe_deadline_s=DEADLINE_S)


@pytest.fixture(scope="module")
def four_ranks() -> Measurements:
    plan = ProbePlan("gloo", ranks=4, probes=("strategy",), level="full", strategies=("tensor", "pipeline", "3d"))
    return run_probes(plan, deadline_s=DEADLINE_S, probe_deadline_s=DEADLINE_S)


@pytest.mark.wide
def test_weights_that_one_rank_changes_by_itself_are_caught_by_ddp(two_faulty_ranks: Measurements) -> None:
    assert failures(two_faulty_ranks, "strategy.ddp") != []
    assert "desync=1" in two_faulty_ranks.injected


@pytest.mark.wide
def test_a_rank_with_a_wrong_shard_is_named_by_the_check_of_tensor_parallelism(
    two_faulty_ranks: Measurements,
) -> None:
    run = run_of(strategies_of(two_faulty_ranks), "tensor")
    assert run.figures == {"shards": 2.0, "wrong_shards_rank_1": 1.0}
    assert weights_error(run) > 1e-2
    assert failures(two_faulty_ranks, "strategy.tensor") == ["rank 1"]


@pytest.mark.wide
def test_tensor_parallelism_sums_twice_forward_and_twice_backward_in_each_layer(four_ranks: Measurements) -> None:
    tried = strategies_of(four_ranks)
    shape = tried.shape
    hidden, logits = (4 * shape.batch * shape.sequence * size for size in (shape.width, shape.vocabulary))
    # the head gathers its logits forward, and sums the gradient of its input backward
    expected = 4 * shape.layers * hidden + logits + hidden
    assert [rank.communicated_bytes for rank in run_of(tried, "tensor").ranks] == [expected] * 4


@pytest.mark.wide
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp1"])
def test_a_gather_that_one_rank_skips_is_caught_by_the_check_of_fsdp(
    two_faulty_ranks: Measurements, strategy: str
) -> None:
    tried = strategies_of(two_faulty_ranks)
    assert weights_error(run_of(tried, strategy)) > 1e-3
    first = [rank.losses[3] for rank in run_of(tried, strategy).ranks]
    assert all(loss is not None for loss in first)
    assert failures(two_faulty_ranks, f"strategy.{strategy}") == ["rank 1"]


@pytest.mark.wide
def test_a_rank_that_computes_something_else_again_is_named_and_no_other(two_faulty_ranks: Measurements) -> None:
    run = run_of(strategies_of(two_faulty_ranks), "checkpointing")
    assert [run.figures[f"error_rank_{rank}"] == 0.0 for rank in range(2)] == [True, False]
    assert weights_error(run) > 1e-3, "its gradients went to all ranks"
    assert failures(two_faulty_ranks, "strategy.checkpointing") == ["rank 1"]


@pytest.mark.wide
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_of_four_stages_trains_what_one_rank_trains(four_ranks: Measurements, schedule: str) -> None:
    run = run_of(strategies_of(four_ranks), schedule)
    assert weights_error(run) < ROUNDING
    assert run.missing_weights == (), "each weight is in one of the stages"
    assert [bool(rank.losses) for rank in run.ranks] == [False, False, False, True]
    assert run.figures["bubble_share_expected"] == pytest.approx(3 / 11)
    assert 0 <= run.figures["bubble_share"] < 1
    assert failures(four_ranks, "strategy.pipeline") == []


@pytest.mark.wide
def test_1f1b_keeps_fewer_activations_than_gpipe_on_every_stage(four_ranks: Measurements) -> None:
    tried = strategies_of(four_ranks)
    for less, more in zip(run_of(tried, "1f1b").ranks, run_of(tried, "gpipe").ranks, strict=True):
        assert present(less.memory.activations_bytes) <= 0.6 * present(more.memory.activations_bytes)


@pytest.mark.wide
def test_four_ranks_train_split_by_tensors_and_stages(four_ranks: Measurements) -> None:
    run = run_of(strategies_of(four_ranks), "3d")
    assert weights_error(run) < ROUNDING
    assert (run.figures["data"], run.figures["shards"], run.figures["stages"]) == (1.0, 2.0, 2.0)
    assert failures(four_ranks, "strategy.3d") == []


@pytest.mark.wide
def test_eight_ranks_train_with_data_tensor_and_pipeline_parallelism() -> None:
    plan = ProbePlan("gloo", ranks=8, probes=("strategy",), level="full", strategies=("3d",))
    found = measure(plan, deadline_s=DEADLINE_S, probe_deadline_s=DEADLINE_S)
    run = run_of(strategies_of(found), "3d")
    assert weights_error(run) < ROUNDING
    assert run.figures["data"] == 2.0
    assert sum(bool(rank.losses) for rank in run.ranks) == 4, "the last stages"
    assert len({rank.losses for rank in run.ranks if rank.losses}) == 2, "each copy has its part of the batch"
    assert failures(found, "strategy.3d") == []


# If torch's own schedules do not run: both stages of a small model, by hand-written transfers, against the whole.
TWO_STAGES = """
import sys, torch, torch.distributed as dist
from gpudoctor.probes.strategies.pipeline_steps import SCHEDULES, layers_of_stage
from gpudoctor.probes.strategies.pipeline_steps import SendRecvPipeline, Stages
from gpudoctor.probes.strategies.model import StrategyShape, batch_of, build_transformer
from gpudoctor.probes.strategies.transformer import loss_of
rank, device = int(sys.argv[1]), torch.device("cpu")
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2] + "/store", 2), rank=rank, world_size=2)
shape = StrategyShape(layers=3, width=16, heads=2, vocabulary=32, sequence=4, batch=6)
whole = build_transformer(shape, device)
expected = loss_of(whole(batch_of(shape, 0, device)[0]), batch_of(shape, 0, device)[1])
expected.backward()
for schedule in SCHEDULES:
    stage = build_transformer(shape, device)
    stage.keep_layers(layers_of_stage(3, rank, 2))
    play = SendRecvPipeline(Stages((0, 1), rank, device), stage, schedule, 3, loss_of, (4, 16))
    loss = play(*batch_of(shape, 0, device))
    assert (loss is None) == (rank == 0), loss
    assert loss is None or torch.allclose(loss, expected), (loss, expected)
    names = [name for name, _ in stage.named_parameters()]
    assert ("embedding.tokens.weight" in names) == (rank == 0) and ("head.out.weight" in names) == (rank == 1), names
    for name, weight in stage.named_parameters():
        torch.testing.assert_close(weight.grad, whole.get_parameter(name).grad)
    print(schedule, *names)
dist.destroy_process_group()
"""


def test_hand_written_transfers_give_the_gradients_of_the_whole_batch(
    tmp_path: Path, forked_python: Callable[..., ForkedPython]
) -> None:
    first, last = two_ranks(forked_python, TWO_STAGES, tmp_path, limit_s=DEADLINE_S)
    assert len(first) > 1, "every schedule"
    for of_first, of_last in zip(first, last, strict=True):
        schedule, *names = of_first.split()
        assert [schedule] == of_last.split()[:1]
        assert sorted({name.split(".")[0] for name in names}) == ["blocks", "embedding"]
        assert not set(names) & set(of_last.split()[1:]), "no weight is on two stages"


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("wrong-shard", "tensor"),
        ("skip-all-gather", "fsdp or strategy.fsdp1"),
        ("wrong-recompute", "checkpointing"),
    ],
)
def test_a_fault_of_a_strategy_is_refused_where_it_is_not_run(kind: str, strategy: str) -> None:
    assert parse_injection(f"{kind}=1", 2).rank == 1
    with pytest.raises(UserError, match=f"write it as {kind}=RANK"):
        parse_injection(f"{kind}=1:3", 2)
    with pytest.raises(UserError, match="no rank comes by strategy: the strategy probe is not run"):
        measure(ProbePlan("gloo", ranks=2, inject=(f"{kind}=1",)))
    with pytest.raises(UserError, match=f"no rank comes by strategy: strategy.{strategy} is not run"):
        measure(ProbePlan("gloo", ranks=2, probes=("strategy",), strategies=("ddp",), inject=(f"{kind}=1",)))
    with pytest.raises(UserError, match="one rank has nobody to exchange with"):
        measure(ProbePlan("gloo", ranks=1, probes=("strategy",), inject=(f"{kind}=0",)))
