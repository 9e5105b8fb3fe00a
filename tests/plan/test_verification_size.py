"""What is tried keeps the plan's proportions and its kinds of parallelism, and fits the ranks there are."""

from __future__ import annotations

import msgspec
import pytest

from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.plan import verification
from gpudoctor.plan.memory import PlanJob, RankSplit, memory_of
from gpudoctor.plan.model import Plan, PlanVerification, model_summary
from gpudoctor.plan.model_sizes import PUBLISHED, shape_of_size
from gpudoctor.plan.text_rows import verification_lines
from gpudoctor.plan.verification import (
    CPU_SIZE,
    GPU_SIZE,
    Devices,
    ReducedSize,
    compared,
    order_of,
    reduced_job,
    reduced_split,
    verify_plan,
)
from gpudoctor.probes.plan_verification.messages import VerificationFigures
from gpudoctor.probes.runner.plan import ProbePlan


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("size", list(PUBLISHED))
@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("limits", [CPU_SIZE, GPU_SIZE])
def test_a_smaller_model_keeps_proportions_and_its_ranks_can_divide_it(
    size: str, tensor: int, limits: ReducedSize
) -> None:
    shape = shape_of_size(size)
    if shape.kv_heads % tensor:
        pytest.skip("no plan divides this model like that")
    split = RankSplit("tensor", 1, tensor) if tensor > 1 else RankSplit("ddp", 2)
    small = reduced_job(PlanJob(shape, "fp32", "adamw", 2048, 8, 64), split, limits).shape
    for name in ("layers", "hidden", "ffn", "vocab"):
        assert getattr(small, name) <= getattr(shape, name) + 8 * tensor, name
    assert small.heads // small.kv_heads == shape.heads // shape.kv_heads
    assert small.ffn / small.hidden == pytest.approx(shape.ffn / shape.hidden, rel=0.1)
    assert (small.gated, small.tied, bool(small.positions)) == (shape.gated, shape.tied, bool(shape.positions))
    for value in (small.heads, small.kv_heads, small.ffn, small.vocab, small.max_seq):
        assert value % tensor == 0
    if tensor == 1:
        assert small.query_width / small.hidden == pytest.approx(shape.query_width / shape.hidden, rel=0.1)


def test_a_model_that_is_small_enough_stays_whole_but_for_its_depth() -> None:
    shape = shape_of_size("124m")
    small = reduced_job(PlanJob(shape, "fp32", "adamw", 512), RankSplit("ddp", 2), GPU_SIZE).shape
    assert (small.hidden, small.heads, small.head_dim, small.ffn) == (768, 12, 64, 3072)


@pytest.mark.parametrize(
    ("split", "ranks", "expected"),
    [
        (RankSplit("ddp", 8), 2, RankSplit("ddp", 2)),
        (RankSplit("fsdp", 32, sharding="parameters", shards=8, engine="sharded"), 4,
         RankSplit("fsdp", 4, sharding="parameters", shards=4, engine="sharded")),
        (RankSplit("tensor", 1, 8), 4, RankSplit("tensor", 1, 4)),
        (RankSplit("tensor", 4, 2), 4, RankSplit("tensor", 2, 2)),
        (RankSplit("pipeline", 1, 1, 32), 4, RankSplit("pipeline", 1, 1, 4)),
        (RankSplit("pipeline", 2, 1, 64), 8, RankSplit("pipeline", 2, 1, 4)),
        (RankSplit("3d", 1, 8, 16), 8, RankSplit("3d", 1, 2, 4)),
        (RankSplit("3d", 4, 8, 16), 8, RankSplit("3d", 2, 2, 2)),
        (RankSplit("3d", 1, 2, 2), 4, RankSplit("3d", 1, 2, 2)),
        (RankSplit("3d", 1, 8, 16), 1, RankSplit("ddp", 1)),
    ],
)  # fmt: skip
def test_every_kind_of_parallelism_stays(split: RankSplit, ranks: int, expected: RankSplit) -> None:
    made = reduced_split(split, ranks, layers=32)
    assert made == expected
    assert made.world == ranks


@pytest.mark.parametrize(
    ("split", "ranks", "nearest"),
    [(RankSplit("3d", 1, 8, 16), 2, 4), (RankSplit("3d", 1, 8, 16), 7, 6), (RankSplit("3d", 1, 9, 4), 4, 6),
     (RankSplit("tensor", 1, 8), 3, 2),
     (RankSplit("pipeline", 1, 1, 4), 5, 4)],
)  # fmt: skip
def test_the_nearest_number_of_ranks_works(split: RankSplit, ranks: int, nearest: int) -> None:
    layers = 4 if split.name == "pipeline" else 32
    with pytest.raises(UserError, match=f"--ranks {ranks}: .* the nearest that works: --ranks {nearest}$"):
        reduced_split(split, ranks, layers)
    assert reduced_split(split, nearest, layers).world == nearest


def test_the_ranks_are_told_what_the_prediction_is_for() -> None:
    split = RankSplit("3d", 2, 2, 2)
    job = reduced_job(PlanJob(shape_of_size("8b"), "fp32", "adamw", 4096, 8, 64, "full"), split, CPU_SIZE)
    order = order_of(job, split)
    assert (order.data, order.tensor, order.pipeline) == (2, 2, 2)
    assert sum(order.layers_of_stages) == order.model.layers == job.shape.layers
    assert (order.micro_batch, order.micro_batches, order.seq) == (job.micro_batch, job.micro_batches, job.seq)
    assert order.recompute == "full"
    assert order.model.kv_heads * order.model.head_dim == job.shape.kv_width


def _trial(measured_share: float) -> PlanVerification:
    """A trial whose fullest rank held that share of what is predicted."""
    split = RankSplit("ddp", 2)
    job = reduced_job(PlanJob(shape_of_size("350m"), "fp32", "adamw", 1024), split, CPU_SIZE)
    memory = memory_of(job, split, 0.0)
    peak = int(memory.tensors * measured_share)
    rank = VerificationFigures(
        job.shape.parameters, int(memory.weights), int(memory.gradients), int(memory.optimizer), peak,
        (0.4, 0.5, 9.0), (8.0, 7.5), 20.0, 0.5,
    )  # fmt: skip
    other = msgspec.structs.replace(rank, peak_bytes=peak // 2, step_s=(0.3,), gflops=40.0, allreduce_gb_s=0.6)
    bare = PlanVerification("cpu", 2, "DDP", model_summary(job.shape), "fp32", "adamw", job.seq, 1, 1, "none")
    return compared(bare, job, split, {0: other, 1: rank})


def test_the_fullest_and_the_slowest_rank_are_those_that_count() -> None:
    trial = _trial(1.0)
    assert trial.off == pytest.approx(0.0, abs=1e-3)
    assert (trial.step_measured_s, trial.gflops, trial.allreduce_gb_s) == (0.5, 20.0, 0.5)
    assert trial.step_predicted_s == pytest.approx((trial.compute_s or 0) + (trial.communication_s or 0), rel=1e-3)


@pytest.mark.parametrize(("share", "words"), [(1.08, "within 10%"), (1.25, "more than 10%")])
def test_a_prediction_that_is_off_is_called_so(share: float, words: str) -> None:
    text = " ".join(" ".join(verification_lines(Plan(verification=_trial(share)), 100)).split())
    assert words in text


def test_a_dense_mlp_stands_for_experts_and_the_trial_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "run_probes", lambda *args, **options: Measurements())
    shape = msgspec.structs.replace(shape_of_size("7b"), experts=8, experts_per_token=2)
    job = PlanJob(shape, "fp32", "adamw", 512)
    trial = verify_plan(job, RankSplit("ddp", 2), Devices("gloo", (), 2))
    assert trial.notes == ("one dense MLP as wide as the 2 experts that process a token",)
    assert trial.model.ffn / trial.model.hidden == pytest.approx(2 * shape.ffn / shape.hidden, rel=0.05)


def test_the_gpus_of_a_trial_are_named_to_their_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[ProbePlan] = []

    def keep(plan: ProbePlan, **options: object) -> Measurements:
        plans.append(plan)
        return Measurements()

    monkeypatch.setattr(verification, "run_probes", keep)
    gpus = tuple(Gpu(index=n, bus_id=f"0000:0{n}:00.0", uuid=f"GPU-{n}") for n in range(2))
    job = PlanJob(shape_of_size("350m"), "bf16", "adamw", 1024)
    trial = verify_plan(job, RankSplit("ddp", 2), Devices("nccl", gpus, 2))
    assert plans[0].gpus == ((0, "GPU-0", "0000:00:00.0"), (1, "GPU-1", "0000:01:00.0"))
    assert (trial.device, trial.precision) == ("cuda", "bf16")
