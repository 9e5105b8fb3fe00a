"""Which GPUs get a rank: decided on facts alone; the launcher is faked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.api.load.measure import measure
from gpudoctor.api.load.request import LoadRequest
from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.model.gpu import CallError, Gpu, GpuProcess, Utilization
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Environment, Source, Unanswered, Variable
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.probes.runner import launch
from gpudoctor.probes.runner import run_progress as sampled
from tests.probes.conftest import raising


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[launch.ProbePlan]:
    taken: list[launch.ProbePlan] = []

    def run_probes(plan: launch.ProbePlan, **_: object) -> Measurements:
        taken.append(plan)
        return Measurements()

    monkeypatch.setattr(launch, "run_probes", run_probes)
    monkeypatch.setattr(sampled, "Sampler", raising(OSError("there is no driver to sample")))
    return taken


def _measured(name: str, *, force: bool = False, **leaves: Any) -> Measurements:
    """What the standard level measures on a live node like the simulated one with these leaves."""
    live = msgspec.structs.replace(load_node(name), source=Source("live", "here"), **leaves)
    request = LoadRequest(force=force)
    return measure(live, registry(), "standard", request, progress=None, on_interrupt=lambda _: None)


def _asked(name: str, **changes: Gpu) -> Measurements:
    """The same with torch, and with some GPUs changed."""
    node = load_node(name)
    gpus = tuple(changes.get(f"gpu{gpu.index}", gpu) for gpu in node.gpus)
    return _measured(name, gpus=gpus, software=msgspec.structs.replace(node.software, torch="2.9.1"))


def _gpu(name: str, index: int) -> Gpu:
    return load_node(name).gpus[index]


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        ({"processes": (GpuProcess(4711, "python", memory_mib=9000),)}, "GPU 3 is used by python (pid 4711)"),
        ({"memory_used_mib": 40_000}, "a process that is not seen here"),
        ({"utilization": Utilization(gpu_pct=97), "memory_used_mib": 900}, "97 % busy"),
        ({"errors": (CallError("nvmlDeviceGetName", 15, "GPU is lost"),)}, "GPU 3 does not answer (GPU is lost)"),
    ],
)
def test_a_gpu_in_use_or_in_trouble_is_not_put_under_load(
    leaves: dict[str, Any], words: str, plans: list[launch.ProbePlan]
) -> None:
    found = _asked("hgx-h100-8", gpu3=msgspec.structs.replace(_gpu("hgx-h100-8", 3), **leaves))
    assert plans == []
    # readings alone do not show whose work it is: then what was to be measured is unknown
    assert found.not_run["train"].kind == ("denied" if "pid 4711" in words or "errors" in leaves else "failed")
    assert words in found.not_run["train"].reason


def test_one_value_that_answers_unknown_error_keeps_no_gpu_from_load(plans: list[launch.ProbePlan]) -> None:
    errors = (CallError("nvmlDeviceGetAddressingMode", 999, "unknown error"),)
    _asked("hgx-h100-8", gpu3=msgspec.structs.replace(_gpu("hgx-h100-8", 3), errors=errors))
    assert len(plans) == 1


def test_the_driver_and_the_display_may_hold_a_little_memory(plans: list[launch.ProbePlan]) -> None:
    own = GpuProcess(1, "gpudoctor", memory_mib=500, is_own=True)
    desktop = GpuProcess(2, "Xorg", kind="G", memory_mib=300)
    _asked(
        "hgx-h100-8", gpu3=msgspec.structs.replace(_gpu("hgx-h100-8", 3), memory_used_mib=900, processes=(own, desktop))
    )
    assert len(plans) == 1


def _refused(monkeypatch: pytest.MonkeyPatch, **leaves: Any) -> str:
    """Why a live node like hgx-h100-8 with these leaves gets no load, even with --force."""
    monkeypatch.setattr(launch, "run_probes", lambda *_, **__: pytest.fail("ranks were started"))
    return _measured("hgx-h100-8", force=True, **leaves).not_run["collective"].reason


@pytest.mark.parametrize("value", ["", "-1", "0,0"])
def test_gpus_that_the_user_hides_are_not_loaded(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = Environment(variables=(Variable("CUDA_VISIBLE_DEVICES", value),))
    assert "hides every GPU" in _refused(monkeypatch, environment=hidden)


def test_a_driver_that_hangs_gets_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = Driver(unanswered=(Unanswered("nvmlDeviceGetName", 3, 2.0),))
    assert "does not answer (nvmlDeviceGetName)" in _refused(monkeypatch, driver=hung)


def test_every_whole_gpu_gets_a_rank_by_its_uuid(plans: list[launch.ProbePlan]) -> None:
    _asked("hgx-h100-8")
    [plan] = plans
    assert (plan.backend, plan.ranks) == ("nccl", 8)
    assert [gpu[:2] for gpu in plan.gpus] == [(gpu.index, gpu.uuid) for gpu in load_node("hgx-h100-8").gpus]


def test_gpus_divided_by_mig_are_not_loaded_and_say_so(plans: list[launch.ProbePlan]) -> None:
    found = _asked("a100-mig-8")
    if plans:  # the node may have whole GPUs too
        whole = {gpu.uuid for gpu in load_node("a100-mig-8").gpus if gpu.settings.mig_enabled is not True}
        assert {gpu[1] for gpu in plans[0].gpus} == whole
    else:
        assert found.not_run["collective"].kind == "unsupported"
        assert "divided by MIG" in found.not_run["collective"].reason


def test_a_gpu_that_tells_no_uuid_is_left_out(plans: list[launch.ProbePlan]) -> None:
    lost = msgspec.structs.replace(_gpu("hgx-h100-8", 3), uuid=Missing("GPU is lost", "failed"))
    _asked("hgx-h100-8", gpu3=lost)
    [plan] = plans
    assert [gpu[0] for gpu in plan.gpus] == [0, 1, 2, 4, 5, 6, 7]


def test_a_small_gpu_for_the_display_gets_no_rank(plans: list[launch.ProbePlan]) -> None:
    gpu = _gpu("rtx4090-4", 1)
    settings = msgspec.structs.replace(gpu.settings, display_active=True)
    _asked("rtx4090-4", gpu1=msgspec.structs.replace(gpu, memory_total_mib=2048, settings=settings))
    [plan] = plans
    assert [gpu[0] for gpu in plan.gpus] == [0, 2, 3]
