"""When a run is given up: a cold disk, sleeping GPUs and many contexts are slow, not broken; what hangs ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpudoctor.api.load.measure import PROBE_DEADLINE_S, RUN_DEADLINE_S
from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measurements import Launch, Measurements, RankInfo, TorchView
from gpudoctor.facts.model.node import Driver, Node, Source
from gpudoctor.probes.plan_verification.messages import TransformerShape, VerificationOrder
from gpudoctor.probes.runner import launch
from gpudoctor.probes.runner import plan as probe_plan
from gpudoctor.probes.runner.messages import Phase, Started
from gpudoctor.probes.runner.plan import Limits, ProbePlan
from gpudoctor.probes.runner.run_collector import RunCollector
from tests.checks.one_check import gpus, judge, uuid_of, words
from tests.narrowed import present
from tests.probes.conftest import FoundFirst, collecting, measure

EIGHT = ProbePlan(
    "nccl", 8, gpus=tuple((n, f"GPU-{n}", f"0000:0{n}:00.0") for n in range(8)), probes=("collective", "train")
)
FULL = msgspec.structs.replace(EIGHT, probes=("collective", "link", "compute", "train", "strategy"))


def limits(plan: ProbePlan = EIGHT) -> Limits:
    level = "standard" if plan is EIGHT else "full"
    return Limits(plan, RUN_DEADLINE_S[level], PROBE_DEADLINE_S[level])  # type: ignore[index]


def test_eight_ranks_may_read_torch_from_a_cold_network_disk_and_still_have_their_time() -> None:
    """A first job on a node whose environment is on NFS: 74 s, where the limit used to be 60 s."""
    of = limits()
    assert of.at(0.0, "import", [])[0] > 74
    end, limit_s = of.at(74.0, "join", [])
    assert end > 74 + 8 * 3 + 20, "eight GPUs that wake one after another, and NCCL"
    assert limit_s == 180
    assert of.at(150.0, "run", ["train"]) == (150.0 + 60, 60)
    assert of.at(200.0, "run", ["train"]) == (150.0 + 60, 60), "a limit begins once"
    assert of.at(150.0, "run", [])[0] == 150.0 + RUN_DEADLINE_S["standard"]


def test_fifty_six_contexts_have_their_time_and_no_other_probe_gets_more() -> None:
    of = limits(FULL)
    assert of.at(0.0, "run", ["link"])[1] == 120 + 112
    assert of.at(0.0, "run", ["compute"])[1] == 120
    assert limits(FULL).at(0.0, "run", ["link, round 2"])[1] == 120 + 112
    assert of.at(0.0, "run", [])[0] == RUN_DEADLINE_S["full"] + 112


def test_a_strategys_modules_are_more_to_read() -> None:
    assert limits(FULL).at(0.0, "import", [])[1] > limits().at(0.0, "import", [])[1]
    shape = TransformerShape(1, 8, 1, 1, 8, 8, 8)
    order = VerificationOrder(shape, 1, 1, 1, (1,), False, False, "fp32", "sgd", "none", 8, 1, 1)
    plain, planned = (ProbePlan("gloo", 1, probes=(), verification=each) for each in (None, order))
    assert Limits(planned, 1.0, 1.0).at(0.0, "import", [])[1] > Limits(plain, 1.0, 1.0).at(0.0, "import", [])[1]


def test_cpu_ranks_have_no_context_to_make() -> None:
    of = Limits(ProbePlan("gloo", 2, probes=("collective", "link")), 120.0, 30.0)
    assert of.at(0.0, "join", [])[1] == 120
    assert of.at(0.0, "run", ["link"])[1] == 30


@pytest.fixture
def outcome(tmp_path: Path) -> RunCollector:
    return collecting(EIGHT, tmp_path)


def test_what_is_waited_for_is_said_of_the_ranks_that_are_behind(outcome: RunCollector) -> None:
    assert (outcome.stage, outcome.waited_for()) == ("import", "waits for torch to be imported: 0 s")
    outcome.take(-1, Started("fresh-interpreters"))
    assert outcome.waited_for() == "waits for ranks 0, 1, 2, 3, 4, 5, 6, 7 in import torch: 0 s"
    for rank in range(8):
        outcome.take(rank, Phase("launch", "ask torch"))
    assert outcome.stage == "join"
    for rank in range(7):
        outcome.take(rank, Phase("launch", "joined"))
    assert outcome.stage == "join"
    outcome.take(7, Phase("launch", "joined"))
    stage: str = outcome.stage
    assert stage == "run"
    assert present(present(outcome.measurements().launch).import_s) >= 0


@pytest.mark.wide
def test_a_slow_import_says_what_it_waits_for_and_is_no_problem(
    tmp_path: Path, found_first: FoundFirst, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU ranks whose torch only loads after the wait for it was reported."""
    told = tmp_path / "told"
    found_first(
        "sitecustomize.py",
        "import os, sys, time\n"
        "if 'gpudoctor.probes.runner.rank_starter' in ' '.join(sys.orig_argv):\n"
        f"    while not os.path.exists({str(told)!r}):\n"
        "        time.sleep(0.02)\n",
    )
    monkeypatch.setattr(launch, "_SAY_EVERY_S", 0.0)
    words: list[str] = []

    def on_wait(text: str) -> None:
        words.append(text)
        told.touch()

    plan = ProbePlan("gloo", 2, probes=("collective",))
    found = launch.run_probes(plan, deadline_s=120.0, probe_deadline_s=120.0, on_wait=on_wait)
    assert found.problems == ()
    assert words[0].startswith("waits for torch to be imported: ")
    launched = present(found.launch)
    assert 0 < present(launched.import_s) <= present(launched.start_s)


@pytest.mark.wide
def test_a_join_that_hangs_ends_at_the_limit_of_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ProbePlan("gloo", 2, probes=("collective",), inject=("hang-rank=1:join",))
    found = measure(plan, deadline_s=8.0)
    [problem] = found.problems
    assert (problem.kind, problem.rank, problem.phase) == ("timeout", 1, "join")
    assert "within 8 s" in problem.text


@pytest.mark.parametrize(("import_s", "said"), [(74.2, True), (6.0, False)])
def test_a_slow_import_is_told_and_not_judged(import_s: float, said: bool) -> None:
    ranks = tuple(RankInfo(i, "cuda", gpu=i) for i in range(8))
    view = TorchView("2.9.1", "12.8", "2.27.5", True, 8, tuple(uuid_of(i) for i in range(8)))
    measurements = Measurements(launch=Launch("nccl", 8, ranks, import_s=import_s), torch_view=view)
    node = Node(source=Source("live", "here"), gpus=gpus(8), driver=Driver(cuda_version="12.8"))
    result = judge("env.torch", node, measurements)
    assert ("importing torch took 74 s" in words(result)) is said
    assert result.status is Status.PASS


def test_the_sources_of_the_limits_are_told() -> None:
    assert all(each.source and each.seconds > 0 for each in (probe_plan.STRATEGY_IMPORT, probe_plan.PEER_CONTEXT))
