"""What is measured apart from the ranks: when, on what, and what remains if it is cut short."""

from __future__ import annotations

import errno
import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpudoctor.api.load.frameworks import frameworks_wanted, with_frameworks
from gpudoctor.api.load.measure import measure
from gpudoctor.api.load.request import FRAMEWORKS, LoadRequest, not_run
from gpudoctor.checks.core.registry import registry
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.measured_strategies import (
    Strategies,
    StrategyMemory,
    StrategyRank,
    StrategyReference,
    StrategyRun,
    StrategyShape,
)
from gpudoctor.facts.model.measurements import Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, Source
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.probes.frameworks import run as frameworks
from gpudoctor.probes.frameworks.isolated import IsolatedProcess, IsolatedResult
from gpudoctor.probes.frameworks.isolated_child import IsolatedAnswer, TensorflowTask
from gpudoctor.probes.runner import launch
from gpudoctor.probes.runner.plan import ProbePlan
from tests.checks.one_check import env, gpu
from tests.narrowed import present
from tests.probes.conftest import raising
from tests.subprocesses import completed

ALL = tuple(FRAMEWORKS.values())
CPU_PLAN = ProbePlan("gloo", 2)
GPU_PLAN = ProbePlan("nccl", 2, ((0, "GPU-a", "0000:01:00.0"), (1, "GPU-b", "0000:02:00.0")))
NOTHING_YET = Measurements()
MEMORY = StrategyMemory(4, 4, 8)
ALONE = StrategyReference(1, (4.0,), (), 1.0, MEMORY)
REFERENCE = IsolatedAnswer(version="2.21.0", reference=ALONE)


def nothing(_: Measurements) -> None:
    raise AssertionError("it was not cut short")


def trained(*numbers: int) -> tuple[StrategyRank, ...]:
    return tuple(StrategyRank(number, (4.0,), 0.0, 1, MEMORY, 1.0) for number in numbers)


def trained_by_tensorflow(plan: ProbePlan = CPU_PLAN, before: Measurements = NOTHING_YET) -> Measurements:
    return with_frameworks(("tensorflow",), plan, before, None, nothing)


def loaded(check: str, *inject: str, node: Node | None = None, **asked: Any) -> Measurements:
    """What `measure` returns for one check at level full, by default on CPU ranks."""
    [chosen] = [each for each in registry() if each.id == check]
    request = LoadRequest(**{"backend": "gloo", "ranks": 2, "inject": inject, **asked})
    node = node or load_node("hgx-h100-8")
    return measure(node, (chosen,), "full", request, progress=None, on_interrupt=nothing)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "missing_library", lambda name: None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, installed: None) -> list[IsolatedProcess]:
    """The processes that would have been started; each of them does what it should."""
    starts: list[IsolatedProcess] = []

    def run(asked: list[IsolatedProcess], **_: Any) -> list[IsolatedResult]:
        starts.extend(asked)
        return [IsolatedResult(answer(start.task)) for start in asked]

    monkeypatch.setattr(frameworks, "run_isolated", run)
    return starts


def answer(task: Any) -> IsolatedAnswer:
    assert isinstance(task, TensorflowTask)
    if task.ports:
        return IsolatedAnswer(ranks=trained(task.worker))
    return msgspec.structs.replace(REFERENCE, ranks=trained(*range(task.replicas)))


def test_each_part_is_wanted_by_its_own_check_at_its_own_level() -> None:
    chosen = tuple(check for check in registry() if check.id in FRAMEWORKS)
    assert frameworks_wanted(chosen, "full") == ALL
    assert frameworks_wanted(chosen, "standard") == ()
    assert frameworks_wanted(tuple(c for c in chosen if c.id == "strategy.tensorflow"), "full") == ("tensorflow",)


def test_what_is_not_installed_is_skipped_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec: Callable[..., Any] = importlib.util.find_spec
    absent = ("deepspeed", "tensorflow", "jax")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in absent else find_spec(name, *a))
    measured = with_frameworks(("deepspeed", "tensorflow"), CPU_PLAN, Measurements(), None, nothing)
    for name in ("deepspeed", "tensorflow"):
        why = measured.not_run[name]
        assert why.kind == "absent"
        assert f"pip install '{name}>=" in why.reason


def test_tensorflow_gets_one_process_for_all_devices_and_then_one_for_each(started: list[IsolatedProcess]) -> None:
    found = present(trained_by_tensorflow(GPU_PLAN).tensorflow)
    assert [run.variant for run in found.strategies.runs] == ["mirrored", "multi-worker"]
    assert [start.environ["CUDA_VISIBLE_DEVICES"] for start in started] == ["GPU-a,GPU-b", "GPU-a", "GPU-b"]
    one, *workers = [start.task for start in started]
    assert isinstance(one, TensorflowTask)
    assert (one.replicas, one.ports, one.on_gpu) == (2, (), True)
    ports = {worker.ports for worker in workers if isinstance(worker, TensorflowTask)}
    assert len(ports) == 1
    assert len(set(ports.pop())) == 2


def test_on_cpu_ranks_no_gpu_is_shown_to_tensorflow(started: list[IsolatedProcess]) -> None:
    trained_by_tensorflow()
    assert {start.environ["CUDA_VISIBLE_DEVICES"] for start in started} == {"-1"}
    assert {start.environ["TF_CONFIG"] for start in started} == {None}


def test_a_worker_that_broke_costs_its_own_strategy_only_and_tells_why(
    monkeypatch: pytest.MonkeyPatch, installed: None
) -> None:
    late = Missing("worker 0 did not leave 'train under multi-worker' within 150 s", "failed")
    broken = Missing("worker 1 was ended by SIGSEGV in 'train under multi-worker'", "failed")

    def run(starts: list[IsolatedProcess], **_: Any) -> list[IsolatedResult]:
        if len(starts) == 1:
            return [IsolatedResult(answer(starts[0].task))]
        return [IsolatedResult(REFERENCE, late), IsolatedResult(failure=broken)]

    monkeypatch.setattr(frameworks, "run_isolated", run)
    found = present(trained_by_tensorflow().tensorflow).strategies
    assert [run.variant for run in found.runs] == ["mirrored"]
    assert found.not_run == {"multi-worker": broken}


def test_a_strategy_that_lacks_a_replica_is_no_figure(monkeypatch: pytest.MonkeyPatch, installed: None) -> None:
    monkeypatch.setattr(frameworks, "run_isolated", lambda starts, **_: [IsolatedResult(REFERENCE) for _ in starts])
    measured = trained_by_tensorflow()
    assert measured.tensorflow is None
    assert measured.not_run["tensorflow"].kind == "failed"


def test_a_rank_that_hangs_in_a_later_stage_of_zero_is_told_beside_the_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, installed: None
) -> None:
    shape = StrategyShape(2, 32, 4, 64, 16, 8)
    run = StrategyRun("deepspeed", "zero-1", "fp32", trained(0, 1))
    found = Strategies("cpu", 2, shape, 10, ALONE, (run,))
    problem = ProbeProblem("strategy", "timeout", "rank 1 did not leave strategy zero-2 within 240 s", 1)
    asked: list[ProbePlan] = []

    def run_probes(plan: ProbePlan, **_: Any) -> Measurements:
        asked.append(plan)
        return Measurements(strategies=found, problems=(problem,))

    monkeypatch.setattr(frameworks, "run_probes", run_probes)
    plan = ProbePlan("gloo", 2, inject=("desync=1", "slow-rank=0:2"))
    measured = with_frameworks(("deepspeed",), plan, Measurements(), None, nothing)
    strategies = present(measured.deepspeed).strategies
    assert strategies.runs == (run,)
    assert strategies.not_run == {"deepspeed": Missing(problem.text, "failed")}
    assert (asked[0].strategies, asked[0].inject) == (("deepspeed",), ("desync=1",))


@pytest.mark.parametrize(
    ("plan", "part", "word"),
    [
        (CPU_PLAN, "frameworks", "not CPU ranks"),
        (ProbePlan("gloo", 1), "deepspeed", "one rank"),
        (ProbePlan("gloo", 1), "tensorflow", "one rank"),
        (ProbePlan("gloo", 2, engine="torchrun"), "tensorflow", "torchrun"),
    ],
)
def test_what_cannot_be_run_here_is_left_out_with_the_reason(plan: ProbePlan, part: str, word: str) -> None:
    measured = with_frameworks((part,), plan, Measurements(), None, nothing)
    assert measured.not_run[part].kind == "absent"
    assert word in measured.not_run[part].reason


def test_reasons_of_the_ranks_stay_and_those_of_the_parts_are_their_own(started: list[IsolatedProcess]) -> None:
    no_torch = Missing("PyTorch is not installed")
    before = Measurements(not_run=dict.fromkeys(("torch", "train", *ALL), no_torch))
    measured = trained_by_tensorflow(before=before)
    assert measured.not_run["train"] == no_torch
    assert "tensorflow" not in measured.not_run
    assert measured.not_run["deepspeed"].reason == "not asked for"


@pytest.mark.parametrize(("plan", "more"), [(GPU_PLAN, False), (CPU_PLAN, True)])
def test_nothing_more_is_started_on_gpus_whose_ranks_hung(
    plan: ProbePlan, more: bool, started: list[IsolatedProcess]
) -> None:
    hung = ProbeProblem("train", "timeout", "rank 1 did not leave the train within 60 s", 1)
    measured = trained_by_tensorflow(plan, Measurements(problems=(hung,)))
    assert bool(started) is (measured.tensorflow is not None) is more
    if not more:
        assert measured.not_run["tensorflow"] == Missing(f"not tried: {hung.text}", "failed")


@pytest.mark.parametrize("check", ["strategy.ddp", "train.sync"])
def test_weights_are_changed_in_ddp_and_in_the_train(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[ProbePlan] = []

    def run_probes(plan: ProbePlan, **_: Any) -> Measurements:
        plans.append(plan)
        return Measurements()

    monkeypatch.setattr(launch, "run_probes", run_probes)
    loaded(check, "desync=1")
    assert [plan.inject for plan in plans] == [("desync=1",)]


def test_what_there_was_is_kept_where_a_signal_ends_it(
    monkeypatch: pytest.MonkeyPatch, started: list[IsolatedProcess]
) -> None:
    monkeypatch.setattr(frameworks, "framework_views", raising(KeyboardInterrupt()))
    kept: list[Measurements] = []
    with pytest.raises(KeyboardInterrupt):
        with_frameworks(("tensorflow", "frameworks"), GPU_PLAN, Measurements(), None, kept.append)
    assert kept[0].tensorflow is not None


@pytest.fixture
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a probe's ranks fails the test."""
    monkeypatch.setattr(launch, "run_probes", lambda *_, **__: pytest.fail("ranks of a probe were started"))


def test_a_library_alone_starts_no_rank_of_a_probe(no_ranks: None, started: list[IsolatedProcess]) -> None:
    measured = loaded("strategy.tensorflow", "desync=1")
    assert measured.tensorflow is not None
    assert {task.desync for start in started if isinstance(task := start.task, TensorflowTask)} == {1}
    assert measured.not_run["strategy"].reason == measured.not_run["deepspeed"].reason == "not asked for"


@pytest.mark.parametrize(
    ("check", "inject", "words"),
    [
        ("strategy.tensorflow", "slow-rank=0:2", "no ranks of a probe"),
        ("strategy.tensorflow", "desync=2", "there is no rank 2"),
        ("env.frameworks", "desync=1", "no ranks of a probe"),
        ("strategy.fsdp", "desync=1", "no ranks of a probe"),
        ("compute.exact", "desync=1", "no ranks of a probe"),
    ],
)
def test_a_fault_that_nothing_would_meet_is_refused(
    no_ranks: None, started: list[IsolatedProcess], check: str, inject: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        loaded(check, inject)
    assert started == []


def test_what_is_asked_of_gpus_is_skipped_on_a_node_that_is_not_this_machine(no_ranks: None) -> None:
    assert loaded("env.frameworks").not_run["frameworks"].kind == "absent"


def test_cpu_ranks_are_no_advice_for_what_is_asked_of_gpus() -> None:
    why = Missing("a capture cannot be put under load; --backend gloo measures CPU ranks of this machine")
    reasons = not_run(why).not_run
    assert reasons["frameworks"] == Missing("a capture cannot be put under load")
    assert reasons["deepspeed"] == why


def test_workers_that_get_no_port_cost_their_own_strategy_only(
    monkeypatch: pytest.MonkeyPatch, started: list[IsolatedProcess]
) -> None:
    monkeypatch.setattr("socket.socket", raising(OSError(errno.EADDRINUSE, "Address already in use")))
    [(variant, why)] = present(trained_by_tensorflow().tensorflow).strategies.not_run.items()
    assert (variant, why.kind, len(started)) == ("multi-worker", "failed", 1)
    assert "Address already in use" in why.reason


def test_a_library_that_does_not_load_is_not_started_again_as_workers(
    monkeypatch: pytest.MonkeyPatch, installed: None
) -> None:
    why = Missing("MirroredStrategy did not leave 'import tensorflow' within 90 s", "failed")
    asked: list[int] = []

    def run(starts: list[IsolatedProcess], **limits: Any) -> list[IsolatedResult]:
        assert limits["import_deadline_s"] < limits["deadline_s"]
        asked.append(len(starts))
        return [IsolatedResult(failure=why, loaded=False)]

    monkeypatch.setattr(frameworks, "run_isolated", run)
    measured = trained_by_tensorflow()
    assert (measured.not_run["tensorflow"], asked) == (why, [1])


@pytest.mark.parametrize(
    ("visible", "force", "refused"),
    [(None, False, True), ("1", False, True), ("0", False, False), (None, True, False)],
)
def test_no_framework_is_asked_while_others_use_a_gpu_that_it_would_open(
    monkeypatch: pytest.MonkeyPatch, installed: None, visible: str | None, force: bool, refused: bool
) -> None:
    busy = GpuProcess(4242, "python")
    gpus = (gpu(0, processes=()), gpu(1, processes=(busy,)))
    environment = env() if visible is None else env(CUDA_VISIBLE_DEVICES=visible)
    node = Node(source=Source(kind="live"), gpus=gpus, environment=environment)
    asked: list[float] = []

    def framework_views(deadline_s: float) -> Measurements:
        asked.append(deadline_s)
        return Measurements()

    monkeypatch.setattr(frameworks, "framework_views", framework_views)
    measured = loaded("env.frameworks", node=node, backend="auto", gpu="0", ranks=None, force=force)
    assert bool(asked) is not refused
    assert ("frameworks" in measured.not_run) is refused
    assert not refused or measured.not_run["frameworks"].reason.startswith(
        "frameworks open every GPU: GPU 1 is used by python (pid 4242)"
    )


INTERRUPTED = """
import signal, sys
from gpudoctor.api.load import measure as loading
from gpudoctor.process.signals import InterruptedBySignal
from gpudoctor.facts.model.measured_strategies import FrameworkView
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing

def measure(node, asked, level, args, *, progress, on_interrupt, **_):
    views = (FrameworkView("tensorflow", "2.21.0", True, len(node.gpus)),)
    on_interrupt(Measurements(frameworks=views, not_run={"frameworks.jax": Missing("JAX: no answer", "failed")}))
    raise InterruptedBySignal(signal.SIGTERM)

loading.measure = measure
from gpudoctor.cli.main import main
sys.exit(main(["check", "env.frameworks", "--node", "hgx-h100-8", "--backend", "gloo", "--level", "full", "--json"]))
"""


def test_a_framework_that_gave_no_answer_is_still_told_where_a_signal_ends_what_came_after() -> None:
    done = completed([sys.executable, "-c", INTERRUPTED])
    [frameworks_seen] = json.loads(done.stdout)["checks"]
    found = {finding["status"] for finding in frameworks_seen["findings"]}
    assert (done.returncode, found) == (143, {"pass", "unknown"})
