"""Telemetry beside the probes: its windows, and its way into the measurements."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from gpudoctor.api.load.measure import measure
from gpudoctor.api.load.request import LoadRequest
from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.model.measurements import Measurements, Probe
from gpudoctor.facts.model.node import Node, Source
from gpudoctor.facts.nvml.sampler import Sampler
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.probes.runner import launch, messages
from gpudoctor.probes.runner import run_progress as sampled
from gpudoctor.probes.runner.plan import ProbePlan
from gpudoctor.probes.runner.run_progress import Windows, sampling
from gpudoctor.testing.fake_nvml import Script, ScriptedFault, write_script
from tests.imported_torch import own_children
from tests.probes.conftest import DEADLINE_S, raising

pytestmark = pytest.mark.usefixtures("forked_starters")


class Told(Windows):
    """The windows of two ranks, whose messages come when the test says so."""

    def __init__(self) -> None:
        super().__init__(2, lambda: self.now_s)
        self.now_s = 0.0

    def begins(self, at_s: float, rank: int, probe: Probe) -> None:
        self.now_s = at_s
        self.take(rank, messages.Phase(probe, "something"))

    def ends(self, at_s: float, rank: int, probe: Probe) -> None:
        self.now_s = at_s
        self.take(rank, messages.Finished(probe))


def test_a_probe_runs_from_the_first_rank_that_begins_to_the_last_that_is_through() -> None:
    windows = Told()
    windows.take(0, messages.Phase("launch", "join"))
    assert windows.spans(9.0) == {}
    assert windows.whole(9.0) is None
    windows.begins(1.0, 1, "collective")
    windows.begins(1.5, 0, "collective")
    windows.ends(3.0, 0, "collective")
    windows.begins(3.1, 0, "train")
    windows.ends(3.5, 1, "collective")
    assert windows.spans(5.0) == {"collective": (1.0, 3.5), "train": (3.1, 5.0)}
    assert windows.whole(5.0) == (1.0, 5.0)
    windows.ends(6.0, 0, "train")
    windows.ends(6.5, 1, "train")
    assert windows.spans(9.0)["train"] == (3.1, 6.5)
    assert windows.whole(9.0) == (1.0, 6.5)


def test_of_several_rounds_the_last_whole_one_counts_though_a_rank_is_ahead() -> None:
    windows = Told()
    for rank in (0, 1):
        windows.begins(1.0, rank, "train")
    windows.ends(2.0, 0, "train")
    windows.begins(2.5, 0, "train")  # the next round, before the other rank reported
    windows.ends(2.6, 1, "train")
    windows.begins(2.7, 1, "train")
    assert windows.spans(4.0) == {"train": (1.0, 2.6)}
    windows.ends(5.0, 0, "train")
    windows.ends(5.5, 1, "train")
    windows.begins(5.6, 0, "train")
    assert windows.spans(9.0) == {"train": (2.5, 5.5)}
    assert windows.whole(9.0) == (1.0, 9.0)


def test_real_ranks_say_when_a_probe_runs() -> None:
    windows = Windows(2)
    plan = ProbePlan("gloo", ranks=2, probes=("collective",))
    measured = launch.run_probes(plan, deadline_s=DEADLINE_S, probe_deadline_s=DEADLINE_S, on_message=windows.take)
    assert measured.problems == ()
    [(begin_s, end_s)] = windows.spans(float("inf")).values()
    assert begin_s < end_s < float("inf")


SAMPLERS: list[Sampler] = []
Driver = Callable[..., Node]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A live node like a simulated one, whose driver the sampler can ask; `SAMPLERS` has those it started."""
    SAMPLERS.clear()

    def make(*faults: ScriptedFault, **options: Any) -> Node:
        node = load_node("hgx-h100-8")
        spec = write_script(tmp_path / "script.json", Script(node, faults))

        def start(gpus: Any, interval_s: float) -> Sampler:
            SAMPLERS.append(Sampler(gpus, interval_s, nvml=spec, **options))
            return SAMPLERS[-1]

        monkeypatch.setattr(sampled, "Sampler", start)
        software = msgspec.structs.replace(node.software, torch="2.9.1")
        return msgspec.structs.replace(node, source=Source("live", "here"), software=software)

    return make


def load(node: Node, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Measurements], **args: Any) -> Measurements:
    monkeypatch.setattr(launch, "run_probes", run)
    interrupted: list[Measurements] = args.pop("interrupted", [])
    try:
        return measure(
            node, registry(), "standard", LoadRequest(), progress=None, on_interrupt=interrupted.append, **args
        )
    finally:
        assert own_children(recursive=True) == []


def trained(plan: ProbePlan, *, on_message: Callable[..., None], **_: object) -> Measurements:
    for rank in range(plan.ranks):
        on_message(rank, messages.Phase("train", "train step"))
    return Measurements()


def until_sampled(*gpus: int, since_s: float = 0.0) -> None:
    """Return when these of the node's GPUs have been sampled since then (monotonic)."""
    while not all(SAMPLERS[-1].recording().between(since_s, float("inf"))[gpu].samples for gpu in gpus):
        os.sched_yield()


def trained_until_sampled(plan: ProbePlan, *, on_message: Callable[..., None], **_: object) -> Measurements:
    """A train that lasts until every GPU was sampled, and then ends on every rank."""
    found = trained(plan, on_message=on_message)
    until_sampled(*range(plan.ranks), since_s=monotonic())  # a sample of before the train is none of it
    for rank in range(plan.ranks):
        on_message(rank, messages.Finished("train"))
    return found


def test_the_gpus_under_load_are_sampled_and_cut_by_probe(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    node = driver()
    [telemetry] = load(node, monkeypatch, trained_until_sampled).telemetry
    assert (telemetry.during, telemetry.ended) == ("train", None)
    assert [gpu.uuid for gpu in telemetry.gpus] == [gpu.uuid for gpu in node.gpus]
    assert [gpu.index for gpu in telemetry.gpus] == [gpu.index for gpu in node.gpus]
    for sampled_gpu, gpu in zip(telemetry.gpus, node.gpus, strict=True):
        assert sampled_gpu.samples > 0
        assert sampled_gpu.readings["temperature_c"].median == gpu.thermal.gpu_c


def test_a_driver_that_hangs_under_load_is_told_and_holds_nothing_up(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = driver(ScriptedFault("nvmlDeviceGetTemperature", gpu=2, hang=True), call_deadline_s=0.5)
    monkeypatch.setattr("gpudoctor.facts.nvml.sampler._SLACK_S", 60.0)

    def hung(plan: ProbePlan, **rest: Any) -> Measurements:
        found = trained(plan, **rest)
        until_sampled(0, 1)
        return found

    found = load(node, monkeypatch, hung)
    assert [(call.call, call.gpu) for call in found.unanswered] == [("nvmlDeviceGetTemperature", 2)]
    [telemetry] = found.telemetry
    assert str(telemetry.ended).startswith("nvmlDeviceGetTemperature on GPU 2 did not return in")
    assert [gpu.samples for gpu in telemetry.gpus] == [1, 1, 0, 0, 0, 0, 0, 0]


def test_an_interrupted_run_keeps_what_was_sampled(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(plan: ProbePlan, *, on_interrupt: Callable[..., None], **rest: Any) -> Measurements:
        on_interrupt(trained(plan, **rest))
        raise KeyboardInterrupt

    kept: list[Measurements] = []
    with pytest.raises(KeyboardInterrupt):
        load(driver(), monkeypatch, stopped, interrupted=kept)
    assert [telemetry.during for telemetry in kept[0].telemetry] == ["train"]


def test_a_sampler_that_cannot_start_costs_only_the_telemetry(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    node = driver()
    monkeypatch.setattr(sampled, "Sampler", raising(OSError(11, "Resource temporarily unavailable")))
    found = load(node, monkeypatch, trained)
    assert found.telemetry == ()
    assert found.not_run["telemetry"].kind == "failed"
    assert "Resource temporarily unavailable" in found.not_run["telemetry"].reason


def test_a_burn_is_also_told_as_a_whole(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    node = driver()
    gpus = tuple((gpu.index, str(gpu.uuid), gpu.bus_id) for gpu in node.gpus)
    plan = ProbePlan("nccl", ranks=8, gpus=gpus, duration_s=60.0)
    with sampling(plan) as watched:
        trained(plan, on_message=watched.take)
    assert [t.during for t in watched.with_telemetry(Measurements()).telemetry] == ["train", "burn"]


def test_cpu_ranks_have_nothing_to_sample() -> None:
    with sampling(ProbePlan("gloo", ranks=2)) as watched:
        pass
    assert watched.with_telemetry(Measurements()) == Measurements()
