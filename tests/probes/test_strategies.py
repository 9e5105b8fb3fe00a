"""Strategies on real CPU ranks: what data parallelism in its forms trains, holds and exchanges."""

from __future__ import annotations

import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import registry
from gpudoctor.checks.core.runner import CheckResult, run_checks
from gpudoctor.checks.strategy.agreement import loss_error, mean_losses
from gpudoctor.facts.model.measured_strategies import Strategies, StrategyRun
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.probes.runner import launch
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.launch import ProbePlan
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.data_parallel import why_not_fsdp
from gpudoctor.probes.strategies.memory import TrafficCounter
from gpudoctor.probes.strategies.model import shape_for
from tests.imported_torch import ForkedPython, ImportedTorch
from tests.narrowed import present
from tests.probes.conftest import measure, two_ranks

# What fp32 rounds in ten steps was measured at 3e-7, what bf16 does at 1e-3: the checks allow ten times more and more.
ROUNDING, ROUNDING_BF16 = 5e-6, 5e-3
DATA = ("dp", "ddp", "zero1", "fsdp", "fsdp1", "checkpointing")
ENOUGH_S = 240.0


def strategies(*names: str, ranks: int = 2, inject: tuple[str, ...] = ()) -> Measurements:
    plan = ProbePlan("gloo", ranks, probes=("strategy",), level="full", strategies=names, inject=inject)
    return measure(plan, deadline_s=ENOUGH_S, probe_deadline_s=ENOUGH_S)


def judged(found: Measurements, check_id: str) -> CheckResult:
    [check] = [check for check in registry() if check.id == check_id]
    [result] = run_checks(Case(node=Node(), measurements=found), [check], level="full", clock=lambda: 0.0)
    return result


@pytest.fixture(scope="module")
def run() -> Measurements:
    found = strategies(*DATA, "tensor", "3d")
    assert found.problems == ()
    return found


@pytest.fixture(scope="module")
def tried(run: Measurements) -> Strategies:
    return present(run.strategies)


def variant(tried: Strategies, name: str) -> StrategyRun:
    [found] = [run for run in tried.runs if run.variant == name]
    assert [rank.rank for rank in found.ranks] == [0, 1]
    return found


@pytest.mark.wide
def test_every_variant_trains_what_one_rank_trains(tried: Strategies) -> None:
    assert [run.variant for run in tried.runs] == [
        *("ddp", "ddp-accumulation", "zero1", "fsdp", "fsdp-bf16", "fsdp1", "fsdp1-bf16", "checkpointing", "tensor")
    ]
    for run in tried.runs:
        allowed = ROUNDING_BF16 if run.dtype == "bf16" else ROUNDING
        assert present(loss_error(tried, run)) < allowed, run.variant
        assert run.missing_weights == ()
        for rank in run.ranks:
            assert rank.compared == tried.reference.parameters
            assert present(rank.weights_error) < allowed, run.variant


@pytest.mark.wide
def test_the_checks_pass_on_a_machine_that_is_sound(run: Measurements) -> None:
    statuses = {name: judged(run, f"strategy.{name}").status for name in DATA}
    assert statuses == dict.fromkeys(DATA, Status.PASS) | {"dp": Status.SKIP}


@pytest.mark.wide
def test_ten_steps_begin_to_learn_so_that_a_step_that_does_nothing_would_show(tried: Strategies) -> None:
    losses = tried.reference.losses
    assert len(losses) == tried.steps == 10
    first, last = present(losses[0]), present(losses[-1])
    assert last < 0.95 * first
    assert mean_losses(variant(tried, "ddp"))[0] == pytest.approx(first, rel=ROUNDING)


@pytest.mark.wide
def test_each_rank_holds_its_share_of_what_the_strategy_divides(tried: Strategies) -> None:
    whole = tried.reference.memory
    assert whole.parameters_bytes == 4 * tried.reference.parameters
    assert whole.gradients_bytes == whole.parameters_bytes
    assert whole.optimizer_bytes == pytest.approx(2 * whole.parameters_bytes, rel=0.01)
    for rank in variant(tried, "ddp").ranks:
        assert rank.memory.parameters_bytes == whole.parameters_bytes
        assert rank.memory.optimizer_bytes == whole.optimizer_bytes
    for rank in variant(tried, "zero1").ranks:
        assert rank.memory.parameters_bytes == whole.parameters_bytes
        assert rank.memory.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 2, rel=0.05)
    sharded = ("fsdp", "fsdp-bf16", "fsdp1", "fsdp1-bf16")
    for rank in (rank for name in sharded for rank in variant(tried, name).ranks):
        assert rank.memory.parameters_bytes == whole.parameters_bytes / 2
        assert rank.memory.gradients_bytes == whole.parameters_bytes / 2
        assert rank.memory.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 2, rel=0.01)


@pytest.mark.wide
def test_activations_follow_the_part_of_the_batch_that_is_under_way(tried: Strategies) -> None:
    def kept(name: str) -> float:
        return present(variant(tried, name).ranks[0].memory.activations_bytes)

    whole = present(tried.reference.memory.activations_bytes)
    assert kept("ddp") == pytest.approx(whole / 2, rel=0.05)
    assert kept("ddp-accumulation") == pytest.approx(whole / 8, rel=0.1)
    for name in ("fsdp", "fsdp1"):
        assert kept(name) == pytest.approx(kept("ddp"), rel=0.05)  # what is gathered for a layer is no activation
        assert kept(f"{name}-bf16") < 0.7 * kept(name)
    figures = variant(tried, "checkpointing").figures
    assert figures["plain_kept_bytes"] == kept("ddp")
    assert figures["checkpointed_kept_bytes"] == kept("checkpointing") < 0.2 * kept("ddp")


@pytest.mark.wide
def test_what_is_computed_again_gives_the_gradients_that_were_there_without(tried: Strategies) -> None:
    figures = variant(tried, "checkpointing").figures
    assert [figures[f"error_rank_{rank}"] for rank in (0, 1)] == [0.0, 0.0], "the same operations on the same numbers"
    assert not [name for name in figures if "peak" in name], "CPU ranks have no peak to read"


@pytest.mark.wide
def test_the_bytes_exchanged_are_those_that_the_strategy_needs(tried: Strategies) -> None:
    def sent(name: str) -> list[Any]:
        return [rank.communicated_bytes for rank in variant(tried, name).ranks]

    gradients = 4 * tried.reference.parameters
    assert sent("ddp") == sent("ddp-accumulation") == [gradients, gradients]
    assert sent("zero1") == [2 * gradients, 2 * gradients]  # gradients, and the new weights
    # gathered for the forward pass, for the backward pass but for the last layer, and gradients scattered
    assert sent("fsdp1") == sent("fsdp")
    for name, least, most in (("fsdp", 2.5, 3), ("fsdp-bf16", 1.7, 2), ("fsdp1-bf16", 1.2, 1.5)):
        # of the last, gradients are in bf16 too
        assert all(least * gradients < bytes_sent <= most * gradients for bytes_sent in sent(name)), name


@pytest.mark.wide
def test_data_parallel_says_why_not_on_cpu_ranks(tried: Strategies) -> None:
    assert "CPU ranks" in tried.not_run["dp"].reason
    assert tried.not_run["dp"].kind == "absent"


@pytest.mark.wide
def test_two_ranks_split_tensors_rightly_and_say_why_they_do_not_split_three_ways(
    run: Measurements, tried: Strategies
) -> None:
    split = variant(tried, "tensor")
    assert split.figures == {"shards": 2.0}
    whole = tried.reference.memory.parameters_bytes
    assert all(rank.memory.parameters_bytes < 0.6 * whole for rank in split.ranks)
    why = "it needs 8 ranks, or another multiple of 4 (4 make tensor 2 x pipeline 2), and these are 2"
    assert tried.not_run["3d"] == Missing(why)
    assert set(tried.not_run) == {"dp", "3d"}
    assert judged(run, "strategy.tensor").status is not Status.FAIL


def test_a_rank_that_dies_in_a_strategy_is_named_with_it(
    imported_torch: ImportedTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "start", imported_torch.start)
    found = strategies("zero1", inject=("die-rank=1:strategy",))
    [problem] = found.problems
    assert (problem.probe, problem.kind, problem.rank) == ("strategy", "crash", 1)
    assert problem.phase == "zero1 step 6"
    assert problem.waiting in ((0,), ())  # rank 0 may get the error before it waits
    assert judged(found, "strategy.zero1").status is Status.UNKNOWN


@pytest.mark.wide
def test_what_an_older_torch_cannot_shard_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.fsdp

    one, two = "FullyShardedDataParallel", "fully_shard"
    assert why_not_fsdp(one, on_gpu=False) is why_not_fsdp(two, on_gpu=False) is None
    monkeypatch.delattr(torch.cpu.Stream, "record_event")  # as in 2.6
    assert why_not_fsdp(one, on_gpu=True) is why_not_fsdp(two, on_gpu=True) is None
    assert f"{one} of this torch" in (why_not_fsdp(one, on_gpu=False) or "")
    assert "runs on GPUs only" in (why_not_fsdp(two, on_gpu=False) or "")
    monkeypatch.delattr(torch.distributed.fsdp, "fully_shard")  # as in 2.4
    assert "came with torch 2.6" in (why_not_fsdp(two, on_gpu=True) or "")
    assert why_not_fsdp(one, on_gpu=True) is None


@pytest.mark.wide
def test_traffic_is_counted_past_the_tensors_by_which_torch_plans() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode  # for seconds: not in every worker that collects

    planned = FakeTensorMode().from_tensor(torch.ones(2))
    with TrafficCounter() as traffic:
        assert (planned + planned).shape == (2,)
    assert traffic.sent_bytes == 0


def test_what_a_variant_leaves_behind_is_gone_before_the_next_is_measured() -> None:
    circle: list[Any] = [torch.ones(2)]
    circle.append(circle)
    left = weakref.ref(circle[0])
    del circle
    Bench.begin_variant(cast(Any, SimpleNamespace(_rank=SimpleNamespace(on_gpu=False))))
    assert left() is None


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 6, 7, 8, 16])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_model_can_be_divided_among_any_number_of_ranks(world_size: int, on_gpu: bool) -> None:
    shape = shape_for(world_size, on_gpu=on_gpu)
    assert shape.layers % world_size == shape.heads % world_size == shape.batch % (4 * world_size) == 0
    assert shape.width % shape.heads == 0
    assert shape.layers >= 4
    if not on_gpu:  # CPU ranks share cores: each trains the whole batch alone, too
        assert shape.batch * shape.sequence <= 256


# Two ranks without a launcher, so that strategies can be put into the table; what they say comes out on stdout.
RANKS = """
    import os, sys, msgspec, torch
    import torch.distributed as dist
    from gpudoctor.probes.strategies import run as strategies
    from gpudoctor.probes.runner.messages import RankJob
    from gpudoctor.probes.runner.rank import Rank

    number, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 2), rank=number, world_size=2)

    def on_one(rank, bench):
        if rank.number == 0:
            rank.phase("what the other one does not come to")
        if rank.number == 1:
            raise RuntimeError(
                "[/pytorch/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4006. This is typically caused by "
                "a remote worker crashing. Check the logs of the remote worker. GLHF!"
            )

    def not_offered(rank, bench):
        from torch.distributed import no_such_name

    def sound(rank, bench):
        model = bench.model()
        bench.train("sound", lambda step: None, model, None, weights=lambda: {})

    def leaving_one_behind(rank, bench):
        if rank.number == 1:
            raise RuntimeError("gone astray")
        with rank.blocked():
            dist.all_reduce(torch.zeros(1))

    strategies.STRATEGIES = tuple(
        strategies.ProbeStrategy(each.__name__, each) for each in (SEQUENCE)
    )
    strategies._OTHERS_WAIT_S = float(sys.argv[3])
    rank = Rank(number, RankJob("gloo", 2, folder=folder, group_timeout_s=60.0), 1)
    try:
        strategies.run_strategies(rank)
    except RuntimeError as error:
        print(msgspec.json.encode({"type": "raised", "text": str(error), "waiting": rank.waiting}).decode())
    sys.stdout.flush()
    os._exit(0)
"""


Said = Callable[..., list[list[dict[str, Any]]]]


@pytest.fixture
def said(tmp_path: Path, forked_python: Callable[..., ForkedPython]) -> Said:
    """said(sequence, patience_s): what each of two ranks reports; after a failure the other waits this long."""

    def run(sequence: str, patience_s: float = ENOUGH_S) -> list[list[dict[str, Any]]]:
        board = ProgressBoard(tmp_path / "board", 2)
        code = textwrap.dedent(RANKS).replace("SEQUENCE", sequence)
        outputs = two_ranks(forked_python, code, tmp_path, str(patience_s), limit_s=ENOUGH_S)
        board.close()
        return [[msgspec.json.decode(line) for line in output] for output in outputs]

    return run


@pytest.mark.wide
def test_a_strategy_that_fails_is_told_and_the_next_one_runs(tmp_path: Path, said: Said) -> None:
    zero, one = said("on_one, not_offered, sound,")
    left_out = [message for message in one if message["type"] == "StrategyLeftOut"]
    assert [(message["strategy"], message["why"]["kind"]) for message in left_out] == [
        ("on_one", "failed"),
        ("not_offered", "unsupported"),
    ]
    # no address of a closed connection, no file of torch's, and no friendly advice
    assert left_out[0]["why"]["missing"] == "rank 1: RuntimeError: Connection closed by peer"
    assert left_out[1]["why"]["missing"].endswith("cannot import name 'no_such_name' from 'torch.distributed'")
    for messages in (zero, one):
        [sample] = [message for message in messages if message["type"] == "StrategySample"]
        assert sample["strategy"] == "sound"
        # it gave neither losses nor weights, which is for the check to see
        assert sample["result"]["compared"] == 0
        assert len(sample["missing_weights"]) > 10
    assert "raised" not in {message["type"] for message in (*zero, *one)}
    # the rank with fewer moves would be reported as the one that hangs
    standings = [ProgressBoard(tmp_path / "board", 2).entry(number) for number in (0, 1)]
    assert standings[0].moves == standings[1].moves > 10


@pytest.mark.wide
def test_a_rank_whose_others_wait_elsewhere_gives_up_with_its_own_error(said: Said) -> None:
    zero, one = said("leaving_one_behind, sound,", patience_s=1.0)
    [raised] = [message for message in one if message["type"] == "raised"]
    assert raised["text"] == "gone astray"
    assert raised["waiting"] is False
    # the other one was waiting for it and lost it: neither its own fault nor the strategy's
    [lost] = [message for message in zero if message["type"] == "raised"]
    assert lost["waiting"] is True
    assert not [message for message in (*zero, *one) if message["type"] in ("StrategySample", "StrategyLeftOut")]
