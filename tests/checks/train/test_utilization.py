"""train.utilization, and what telemetry adds to the checks that read facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import Clocks, Ecc
from gpudoctor.facts.model.measurements import Launch, Measurements, ProbeProblem, RankInfo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Node, Unanswered
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread, Telemetry
from gpudoctor.report.text_figures import telemetry_lines
from tests.checks.one_check import blames, expect, gpu, gpus, judge, only, uuid_of, words

UTILIZATION = "train.utilization"
FOUR = Node(gpus=gpus(4))


def load(index: int, busy: float = 98.0, **leaves: Any) -> GpuUnderLoad:
    readings = {
        "utilization_pct": Spread(busy - 5, busy, min(100.0, busy + 2)),
        "sm_mhz": Spread(1700.0, 1755.0, 1980.0),
        "power_w": Spread(400.0, 640.0, 690.0),
        "temperature_c": Spread(50.0, 71.0, 73.0),
        "memory_used_mib": Spread(2048.0, 12_595.0, 12_595.0),
        "pcie_generation": Spread(5.0, 5.0, 5.0),
        "pcie_width": Spread(16.0, 16.0, 16.0),
    }
    defaults = {"uuid": uuid_of(index), "samples": 40, "readings": readings, "sampled_s": 8.0}
    return GpuUnderLoad(index, **{**defaults, **leaves})


def measured(*loads: GpuUnderLoad, during: str = "train", backend: Any = "nccl", **leaves: Any) -> Measurements:
    device: Any = "cuda" if backend == "nccl" else "cpu"
    ranks = tuple(RankInfo(i, device, gpu=one.index, uuid=one.uuid) for i, one in enumerate(loads))
    telemetry = (Telemetry(during, 8.4, loads, leaves.pop("ended", None)),) if loads else ()
    return Measurements(launch=Launch(backend, len(loads) or 2, ranks), telemetry=telemetry, **leaves)


def statuses(result: CheckResult) -> list[Status]:
    return [finding.status for finding in result.findings]


def test_gpus_that_are_alike_pass_with_what_they_showed() -> None:
    result = judge(UTILIZATION, FOUR, measured(load(0, 97), load(1), load(2), load(3, 100)))
    assert statuses(result) == [Status.PASS]
    assert "4 GPUs alike: 97 to 100 % busy, 12.3 GiB used, fluctuating by up to 7 points" in words(result)


def test_low_but_equal_utilisation_is_no_fault() -> None:
    assert judge(UTILIZATION, FOUR, measured(*(load(i, 40) for i in range(4)))).status is Status.PASS


@pytest.mark.parametrize(
    ("busy", "status", "likely"),
    [
        (78.0, Status.PASS, ""),
        (77.0, Status.WARN, "its host does not feed it"),
        (10.0, Status.WARN, "its host does not feed it"),
    ],
)
def test_a_gpu_that_stands_out_warns_and_is_named(busy: float, status: Status, likely: str) -> None:
    result = judge(UTILIZATION, FOUR, measured(load(0), load(1), load(2, busy), load(3)))
    assert statuses(result) == [status]
    assert likely in words(result)
    if status is Status.WARN:
        assert only(result, status).subject.gpu == 2
        assert f"{busy:.0f} % busy during the train, the others 98 %" in words(result)


def test_a_gpu_that_is_busier_than_the_others_is_named_too() -> None:
    result = judge(UTILIZATION, FOUR, measured(load(0, 50), load(1, 52), load(2, 99), load(3, 55)))
    expect(result, Status.WARN, "it computes while the others wait", gpu=2)


def test_of_two_gpus_the_less_busy_one_is_named() -> None:
    expect(judge(UTILIZATION, Node(gpus=gpus(2)), measured(load(0), load(1, 50))), Status.WARN, gpu=1)


def test_where_half_of_them_stand_out_the_node_is_named_once() -> None:
    result = judge(UTILIZATION, FOUR, measured(load(0, 30), load(1, 31), load(2), load(3)))
    assert statuses(result) == [Status.WARN]
    assert only(result, Status.WARN).subject.kind == "node"
    assert "GPU 0 30 %, GPU 1 31 %, GPU 2 98 %, GPU 3 98 %" in words(result)


def test_gpus_are_compared_with_their_own_model_only() -> None:
    mixed = Node(gpus=(*gpus(2), gpu(2, "NVIDIA L4"), gpu(3, "NVIDIA T4")))
    result = judge(UTILIZATION, mixed, measured(load(0), load(1), load(2, 40), load(3, 20)))
    assert statuses(result) == [Status.PASS, Status.SKIP, Status.SKIP]
    assert "40 % busy; no other GPU of its model" in words(result)


def test_without_telemetry_nothing_passes_and_the_reason_is_told() -> None:
    assert judge(UTILIZATION, FOUR).status is Status.SKIP
    expect(judge(UTILIZATION, FOUR, measured(backend="gloo")), Status.SKIP, "2 CPU ranks (gloo): no GPU was under load")
    not_started = {"telemetry": Missing("the sampler could not be started: no memory", "failed")}
    expect(judge(UTILIZATION, FOUR, measured(not_run=not_started)), Status.UNKNOWN, "the sampler could not be started")
    refused = judge(UTILIZATION, FOUR, Measurements(not_run={"train": Missing("GPU 1 is used", "denied")}))
    expect(refused, Status.SKIP, "GPU 1 is used")


def test_a_train_that_did_not_come_through_is_told_elsewhere() -> None:
    gone = (ProbeProblem("train", "timeout", "rank 2 did not leave train step 3", rank=2),)
    result = judge(UTILIZATION, FOUR, measured(*(load(i) for i in range(4)), problems=gone))
    expect(result, Status.UNKNOWN, "see train.sync")


def test_a_sampler_that_stopped_early_is_no_pass() -> None:
    ended = "nvmlDeviceGetTemperature on GPU 1 did not return in 10.0 s"
    expect(judge(UTILIZATION, FOUR, measured(*(load(i) for i in range(4)), ended=ended)), Status.UNKNOWN, ended)


def test_a_gpu_that_stopped_answering_is_unknown_and_the_rest_no_pass() -> None:
    lost = {"utilization_pct": Missing("nvmlDeviceGetUtilizationRates: GPU is lost (15)", "failed")}
    result = judge(UTILIZATION, FOUR, measured(load(0), load(1), load(2), load(3, unread=lost)))
    assert statuses(result) == [Status.UNKNOWN]
    assert only(result, Status.UNKNOWN).subject.gpu == 3


def test_gpus_whose_driver_tells_no_utilisation_are_skipped() -> None:
    none = {"utilization_pct": Missing("not supported by this GPU or driver", "unsupported")}
    silent = [load(i, readings={}, unread=none) for i in range(4)]
    assert set(statuses(judge(UTILIZATION, FOUR, measured(*silent)))) == {Status.SKIP}
    short = judge(UTILIZATION, FOUR, measured(*(load(i, samples=4) for i in range(4))))
    expect(short, Status.SKIP, "too short to watch: 4 readings")


# what telemetry adds to checks of facts


def throttle(share: float, reason: str, **leaves: Any) -> CheckResult:
    node = Node(gpus=gpus(2, clocks=Clocks(event_reasons=("idle",))))
    return judge("gpu.throttle", node, measured(load(0), load(1, event_share={reason: share}, **leaves)))


@pytest.mark.parametrize(
    ("share", "reason", "status"),
    [
        (0.92, "hw-power-brake", Status.FAIL),
        (0.11, "hw-thermal", Status.FAIL),
        (0.1, "hw-thermal", Status.WARN),
        (0.01, "hw-slowdown", Status.PASS),
        (1.0, "sw-thermal", Status.WARN),
        (1.0, "sw-power-cap", Status.PASS),
        (1.0, "idle", Status.PASS),
    ],
)
def test_what_slows_a_gpu_under_load_is_found_though_it_is_gone_when_idle(
    share: float, reason: str, status: Status
) -> None:
    blames(throttle(share, reason), status, f"under load ({reason})", "of train", gpu=1)


def test_the_narrower_reason_is_told_and_few_samples_tell_nothing() -> None:
    assert "(hw-thermal)" in words(throttle(0.9, "hw-slowdown", event_ms={"hw-thermal": 7200.0}))
    assert throttle(0.9, "hw-thermal", samples=9).status is Status.PASS


def test_a_timer_that_runs_faster_than_time_is_no_timer() -> None:
    assert throttle(1.0, "idle", event_ms={"hw-thermal": 9.0e9}).status is Status.PASS
    assert throttle(1.0, "idle", event_ms={"hw-thermal": 8400.0}).status is Status.FAIL  # in steps


def test_memory_errors_that_came_under_load_fail() -> None:
    clean = Ecc(enabled=True, pending=True, corrected_volatile=0, uncorrected_volatile=0)
    node = Node(gpus=gpus(2, ecc=clean))
    grown = load(1, counters={"ecc_uncorrected": 2, "ecc_corrected": 5})
    result = judge("gpu.ecc", node, measured(load(0, counters={"ecc_uncorrected": 0, "ecc_corrected": 9}), grown))
    expect(result, Status.FAIL, "2 uncorrected memory errors under load (during train)", gpu=1)
    assert len(result.findings) == 2


def test_a_call_that_hung_under_load_is_the_drivers_fault() -> None:
    node = Node(driver=Driver(init_code=0, calls=300, slowest_call_s=0.01), gpus=gpus(2))
    assert judge("driver.responsive", node).status is Status.PASS
    hung = Measurements(unanswered=(Unanswered("nvmlDeviceGetTemperature", 1, 10.2),))
    result = judge("driver.responsive", node, hung)
    assert statuses(result) == [Status.FAIL]
    assert "nvmlDeviceGetTemperature on GPU 1 did not return within 10.2 s" in words(result)


# text


def test_the_table_has_a_line_a_gpu_and_fits_80_columns() -> None:
    worst = load(
        7,
        100,
        readings={**load(7, 100).readings, "power_w": Spread(900.0, 1000.0, 1100.0)},
        event_share={"hw-thermal": 1.0},
    )
    held = load(6, event_share={"hw-power-brake": 0.917, "sw-power-cap": 0.5, "idle": 1.0})
    lines = telemetry_lines(measured(*(load(i) for i in range(6)), held, worst))
    assert lines[0] == "  GPUs during train, 40 readings in 8.4 s (medians):"
    assert len(lines) == 10
    assert max(len(line) for line in lines) <= 80
    assert lines[2].split("  ")[-1] == "none"
    assert " ".join(lines[5].split()) == "3 98 % 93-100 1755 MHz 640 W 71 C 12.3 GiB 5 x16 none"
    assert lines[8].endswith("HW brake 92 %")
    assert lines[9].endswith("HW thermal 100 %")


def test_the_table_says_what_is_not_known() -> None:
    blind = GpuUnderLoad(0, None, 1, unread={"event_reasons": Missing("x")})
    lines = telemetry_lines(measured(blind, load(1), ended="the sampler died by SIGKILL"))
    assert lines[0].startswith("  GPUs during train, 1 to 40 readings")
    assert lines[2].split() == ["0", *"-" * 8]
    assert lines[-1] == "    not sampled to the end: the sampler died by SIGKILL"
    assert telemetry_lines(Measurements()) == []
    assert telemetry_lines(measured(GpuUnderLoad(0, None, 0))) == []


def test_without_a_train_the_last_probe_is_shown() -> None:
    two = (Telemetry("collective", 2.0, (load(0),)), Telemetry("link", 3.0, (load(0),)))
    assert "during link" in telemetry_lines(Measurements(telemetry=two))[0]
