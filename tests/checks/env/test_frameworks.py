"""env.frameworks: what each framework sees, against the GPUs that it should see."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.measured_strategies import FrameworkView
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Environment, Node, Source
from tests.checks.one_check import env, expect, finds, gpus, judge, uuid_of, words
from tests.narrowed import present

ID = "env.frameworks"
NO_UUIDS = Missing("it does not tell UUIDs", "unsupported")


def node(count: int = 4, environment: Environment | None = None, **facts: Any) -> Node:
    return Node(source=Source(kind="live"), gpus=gpus(count), environment=environment or env(), **facts)


def torch(*seen: int, **facts: Any) -> FrameworkView:
    return FrameworkView("torch", "2.9.0", True, len(seen), tuple(uuid_of(index) for index in seen), **facts)


def tensorflow(count: int, **facts: Any) -> FrameworkView:
    return FrameworkView("tensorflow", "2.21.0", True, count, NO_UUIDS, **facts)


def jax(count: int | Missing, **facts: Any) -> FrameworkView:
    return FrameworkView("jax", "0.10.2", facts.pop("gpu_build", True), count, NO_UUIDS, **facts)


def judged(on: Node, *views: FrameworkView, **not_run: Missing) -> CheckResult:
    reasons = {key.replace("__", "."): why for key, why in not_run.items()}
    return judge(ID, on, Measurements(frameworks=views, not_run=reasons))


def test_all_three_that_see_what_the_driver_shows_pass() -> None:
    result = judged(node(), torch(0, 1, 2, 3), tensorflow(4), jax(4))
    assert [finding.status for finding in result.findings] == [Status.PASS] * 3


def test_those_that_see_what_cuda_visible_devices_leaves_pass() -> None:
    narrowed = node(environment=env(CUDA_VISIBLE_DEVICES="2,3"))
    assert judged(narrowed, torch(2, 3), tensorflow(2), jax(2)).status is Status.PASS
    assert judged(narrowed, tensorflow(4)).status is Status.FAIL


def test_the_gpu_that_torch_does_not_see_is_named() -> None:
    finds(judged(node(), torch(0, 1, 3)).findings, Status.FAIL, gpu=2)


def test_a_gpu_of_another_node_counts_for_none() -> None:
    finds(judged(node(), torch(0, 1, 2, 9)).findings, Status.FAIL, gpu=3)


@pytest.mark.parametrize("view", [tensorflow(3), jax(3), tensorflow(5)])
def test_another_number_of_gpus_fails_where_no_uuids_are_told(view: FrameworkView) -> None:
    [finding] = judged(node(), view).findings
    assert finding.status is Status.FAIL
    assert present(finding.expected).value == 4


@pytest.mark.parametrize("view", [torch(), torch(0, 1, 2, 3, error="CUDA error 802: system not yet initialized")])
def test_torch_that_opens_no_gpu_fails(view: FrameworkView) -> None:
    assert judged(node(), view).status is Status.FAIL


def test_tensorflow_or_jax_without_its_cuda_libraries_is_a_warning_with_the_line_that_installs_them() -> None:
    complaint = "Cannot dlopen some GPU libraries."
    result = judged(node(), torch(0, 1, 2, 3), tensorflow(0, complaints=(complaint,)), jax(0, error="no cuDNN"))
    assert [finding.status for finding in result.findings] == [Status.PASS, Status.WARN, Status.WARN]
    said = words(result)
    for part in (complaint, "no cuDNN", "pip install 'tensorflow[and-cuda]'", "pip install 'jax[cuda12]'"):
        assert part in said


def test_a_driver_that_is_too_old_for_a_framework_is_said_and_no_install_line_given() -> None:
    result = judged(node(), jax(0, error="CUDA driver version is insufficient for CUDA runtime version"))
    expect(result, Status.WARN, "the driver is too old")
    assert "pip install" not in words(result)


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("with core count: 3. The minimum required count is 8.", Status.PASS),
        ("with Cuda compute capability 3.0. The minimum required Cuda capability is 5.0.", Status.WARN),
    ],
)
def test_a_gpu_that_tensorflow_leaves_out_by_a_rule_of_its_own_is_no_failure(why: str, expected: Status) -> None:
    line = f"Ignoring visible gpu device (device: 3, name: T400) {why}"
    expect(judged(node(), tensorflow(3, left_out=(line,))), expected, line)
    assert judged(node(), tensorflow(2, left_out=(line,))).status is Status.FAIL


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, Status.WARN),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, Status.FAIL),
        ({"CUDA_VISIBLE_DEVICES": uuid_of(0)}, Status.FAIL),
    ],
)
def test_an_index_that_cuda_counts_otherwise_is_a_warning(variables: dict[str, str], expected: Status) -> None:
    result = judged(node(environment=env(**variables)), torch(2))
    assert result.status is expected
    assert ("export CUDA_DEVICE_ORDER=PCI_BUS_ID" in words(result)) is (expected is Status.WARN)


def test_an_index_never_means_a_gpu_of_another_node() -> None:
    assert judged(node(environment=env(CUDA_VISIBLE_DEVICES="0")), torch(9)).status is Status.FAIL


def test_builds_for_the_cpu_and_a_jax_that_is_held_back_are_skipped() -> None:
    for_cpu = Missing("this build is for the CPU")
    result = judged(
        node(),
        jax(for_cpu, gpu_build=False),
        jax(Missing("JAX_PLATFORMS=cpu"), held_back="JAX_PLATFORMS=cpu"),
    )
    assert [finding.status for finding in result.findings] == [Status.SKIP] * 2
    assert "JAX_PLATFORMS=cpu keeps it from the GPUs" in words(result)


def test_a_framework_that_gave_no_answer_is_unknown_and_the_others_are_judged() -> None:
    why = Missing("JAX did not leave 'import jax' within 90 s", "failed")
    result = judged(node(), torch(0, 1, 2, 3), frameworks__jax=why)
    assert sorted(finding.status.value for finding in result.findings) == ["pass", "unknown"]
    assert judged(node(), frameworks__jax=why).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (node(environment=env(CUDA_VISIBLE_DEVICES="")), Status.SKIP),
        (node(environment=Environment(variables=Missing("no permission", "denied"))), Status.SKIP),
        (node(driver=Driver(device_count=8)), Status.UNKNOWN),
    ],
)
def test_what_should_be_seen_must_be_known(on: Node, expected: Status) -> None:
    assert judged(on, tensorflow(4)).status is expected


def test_nothing_asked_is_a_skip_with_the_reason() -> None:
    assert judged(node()).status is Status.SKIP
    result = judged(node(), frameworks=Missing("GPU 0 is used by python (pid 7)", "denied"))
    expect(result, Status.SKIP, "GPU 0 is used by python")
