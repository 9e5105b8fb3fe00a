"""Thresholds that are configured by GPU model apply in every check, whatever it judges: a GPU, a rank or the node."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import Clocks
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Host, Node
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Telemetry
from tests.checks.burn.test_burn import DRIFT, HGX, burnt, gemms, measured
from tests.checks.one_check import gpu, gpus, judge, uuid_of
from tests.checks.train.test_training import BALANCE, rank, slow, trained

FOUR = Node(gpus=gpus(4))


def limits(check: str, name: str, value: float, model: str = "H100") -> dict[tuple[str, str, str], float]:
    return {(check, name, model): value}


@pytest.mark.parametrize(("fail_pct", "status"), [(5, Status.FAIL), (30, Status.WARN)])
def test_a_higher_limit_for_a_failure_leaves_the_warning(fail_pct: float, status: Status) -> None:
    """15 % of a probe's time was no finding at all if the model's limit was above that and the default below."""
    node = Node(gpus=(gpu(0, clocks=Clocks(event_reasons=("idle",))),))
    load = GpuUnderLoad(0, uuid_of(0), 100, event_share={"hw-thermal": 0.15})
    telemetry = Telemetry("train", 10.0, (load,))
    result = judge(
        "gpu.throttle",
        node,
        Measurements(telemetry=(telemetry,)),
        limit_overrides=limits("gpu.throttle", "load_fail_pct", fail_pct),
    )
    assert result.status is status


@pytest.mark.parametrize(("model", "status"), [("H100", Status.PASS), ("A100", Status.FAIL)])
def test_ranks_are_judged_by_the_limits_of_their_model(model: str, status: Status) -> None:
    overrides = {**limits(BALANCE, "warn_ratio", 1.5, model), **limits(BALANCE, "fail_ratio", 2.0, model)}
    ranks = (*(rank(i) for i in range(3)), slow(3, 1.3))
    assert judge(BALANCE, FOUR, trained(*ranks), limit_overrides=overrides).status is status


def test_a_mixed_node_uses_each_models_own_limits() -> None:
    node = Node(gpus=(*gpus(2), gpu(2, "NVIDIA A100-SXM4-80GB"), gpu(3, "NVIDIA A100-SXM4-80GB")))
    ranks = trained(rank(0), slow(1, 1.3), rank(2), slow(3, 1.3))
    result = judge(BALANCE, node, ranks, limit_overrides=limits(BALANCE, "warn_ratio", 1.5, "A100"))
    bad = {f.subject.gpu for f in result.findings if f.status in (Status.WARN, Status.FAIL)}
    assert bad == {1}


@pytest.mark.parametrize(("model", "status"), [("H100", Status.PASS), ("A100", Status.FAIL)])
def test_drift_is_judged_by_the_limits_of_the_model(model: str, status: Status) -> None:
    burn = measured(burnt(*gemms(*[695.0] * 7, 595.0)))
    assert judge(DRIFT, HGX, burn, limit_overrides=limits(DRIFT, "warn_loss", 0.2, model)).status is status


def shm(*models: str) -> CheckResult:
    node = Node(gpus=tuple(gpu(i, name) for i, name in enumerate(models)), host=Host(shm_mib=16384, shm_free_mib=16384))
    return judge("host.shm", node, limit_overrides=limits("host.shm", "warn_most_mib", 1e6) | {
        ("host.shm", "warn_per_gpu_mib", "H100"): 1e5,
    })  # fmt: skip


def test_a_check_of_the_whole_node_uses_the_limits_of_the_model_that_all_gpus_are() -> None:
    assert shm("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3").status is Status.WARN
    assert shm("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB").status is Status.PASS
