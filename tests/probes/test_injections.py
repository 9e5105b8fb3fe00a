"""Faults made on purpose: each is found, and pinned on the rank that has it. More of them: tests/cli/test_probes.py."""

from __future__ import annotations

import pytest

from gpudoctor.errors import UserError
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.plan import Injection, parse_injection
from tests.narrowed import present
from tests.probes.conftest import measure

pytestmark = pytest.mark.usefixtures("forked_starters")


@pytest.mark.wide
def test_a_rank_that_hangs_in_the_train_is_named_with_its_step() -> None:
    plan = ProbePlan("gloo", ranks=2, probes=("train",), inject=("hang-rank=0:train",))
    [problem] = measure(plan, probe_deadline_s=5.0).problems
    assert (problem.probe, problem.kind, problem.rank, problem.waiting) == ("train", "timeout", 0, (1,))
    assert problem.phase == "train step 6"


@pytest.mark.parametrize(("text", "factor"), [("slow-data=1", None), ("slow-data=1:2.5", 2.5)])
def test_the_factor_of_slow_data_may_be_left_out(text: str, factor: float | None) -> None:
    assert parse_injection(text, 2) == Injection("slow-data", 1, factor=factor)


@pytest.mark.wide
def test_a_slow_rank_computes_longer_and_arrives_later() -> None:
    fast, slow = present(measure(ProbePlan("gloo", ranks=2, inject=("slow-rank=1:3",))).training).ranks
    assert slow.compute_ms > 2 * fast.compute_ms
    assert slow.compute_again_ms > 2 * fast.compute_again_ms
    assert slow.last_in_share > 0.8
    assert slow.lateness_ms > fast.lateness_ms
    assert fast.wait_ms > slow.wait_ms
    assert fast.step_ms > 2 * fast.compute_ms, "in a real step the fast rank takes as long as the slow one"


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("slow-rank=1", "slow-rank=RANK:FACTOR"),
        ("slow-rank=1:fast", "a number over 1"),
        ("slow-rank=1:nan", "a number over 1"),
        ("slow-rank=1:1", "a number over 1"),
        ("hang-rank=0:lunch", "known: join, all_reduce"),
        ("hang-rank=x:train", "hang-rank=RANK:PHASE"),
        pytest.param(f"hang-rank={'1' * 5000}:train", "hang-rank=RANK:PHASE", id="more digits than int() takes"),
        ("wrong-sum=0:now", "wrong-sum=RANK"),
        ("wrong-sum=2", "ranks 0 to 1"),
        ("wrong-bits=1:3", "write it as wrong-bits=RANK"),
        ("oom=1:train", "oom=RANK"),
        ("oom=2", "ranks 0 to 1"),
        ("slow-data=1:", "a number over 1"),
        ("slow-data", "slow-data=RANK[:FACTOR]"),
        ("slow-data=1:0.5", "a number over 1"),
        ("nan=0:all_reduce", "nan=RANK:train"),
        ("melt=0", "known: hang-rank"),
        ("", "known: hang-rank"),
    ],
)
def test_a_case_that_cannot_be_injected_is_the_users_to_mend(text: str, way_out: str) -> None:
    with pytest.raises(UserError) as caught:
        run_probes(ProbePlan("gloo", ranks=2, inject=(text,)), deadline_s=1.0, probe_deadline_s=1.0)
    assert f"--inject {text}:" in str(caught.value)
    assert way_out in str(caught.value)


@pytest.mark.parametrize("plan", [ProbePlan("gloo", ranks=0), ProbePlan("nccl", ranks=2, gpus=((0, "GPU-a", "b"),))])
def test_a_plan_that_cannot_be_run_is_the_users_to_mend(plan: ProbePlan) -> None:
    with pytest.raises(UserError, match=r"needed|needs"):
        run_probes(plan, deadline_s=1.0, probe_deadline_s=1.0)
