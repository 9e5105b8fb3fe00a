"""burn.*: what minutes of load show, judged on figures known beforehand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import CallError, GpuProcess, PcieLink
from gpudoctor.facts.model.measurements import Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelLog, Node
from gpudoctor.facts.model.telemetry import Burn, GpuCounters, GpuUnderLoad, Series, Spread, Telemetry
from tests.checks.gpu_nodes import xid
from tests.checks.measured import launched
from tests.checks.one_check import blames, expect, gpu, gpus, judge, uuid_of, words

DRIFT, COUNTERS = "burn.drift", "burn.counters"
HGX = Node(gpus=gpus(8), kernel_log=KernelLog(events=(), source="/dev/kmsg"))


def flat(value: float) -> Spread:
    return Spread(value, value, value)


def series(metric: str, unit: str, early: float, late: float, rank: int | None = 0) -> Series:
    return Series(metric, unit, rank, 20, flat(early), flat(late))


def gemms(*late: float) -> tuple[Series, ...]:
    """What each rank makes at last of 700 TFLOP/s at first."""
    return tuple(series("gemm bf16 8192", "TFLOP/s", 700.0, value, rank) for rank, value in enumerate(late))


def burnt(*what: Series, **burn: Any) -> Burn:
    fields: dict[str, Any] = {"asked_s": 600.0, "duration_s": 610.0, "rounds": 20, "series": what, **burn}
    return Burn(**fields)


def measured(burn: Burn, ranks: int = 8, **more: Any) -> Measurements:
    return Measurements(launch=launched(Node(gpus=gpus(ranks))), burn=burn, **more)


def on_cpus(burn: Burn) -> Measurements:
    return Measurements(launch=launched(Node()), burn=burn)


def named(result: CheckResult, status: Status) -> list[int | None]:
    return [f.subject.gpu for f in result.findings if f.status is status]


STEADY = gemms(*[695.0] * 8)


def test_a_burn_without_drift_passes_and_says_what_changed_most() -> None:
    result = judge(DRIFT, HGX, measured(burnt(*gemms(*[695.0] * 7, 680.0))))
    expect(result, Status.PASS, "rank 7 gemm bf16 8192 3 % slower (700 to 680 TFLOP/s)")


@pytest.mark.parametrize(
    ("late", "status"), [(664.9, Status.WARN), (665.1, Status.PASS), (629.9, Status.FAIL), (630.1, Status.WARN)]
)
def test_one_gpu_that_loses_speed_is_named_at_5_and_fails_at_10_percent(late: float, status: Status) -> None:
    result = judge(DRIFT, HGX, measured(burnt(*gemms(*[695.0] * 5, late, 695.0, 695.0))))
    blames(result, status, gpu=5)


def test_all_gpus_alike_are_a_warning_however_much_they_lose() -> None:
    result = judge(DRIFT, HGX, measured(burnt(*gemms(*[500.0] * 8))))
    assert result.status is Status.WARN
    assert [f.subject.kind for f in result.findings] == ["node"]


def test_two_of_eight_are_each_named() -> None:
    result = judge(DRIFT, HGX, measured(burnt(*gemms(*[695.0] * 6, 560.0, 560.0))))
    assert named(result, Status.FAIL) == [6, 7]


def test_a_gpu_alone_of_its_model_has_nobody_to_stand_out_from() -> None:
    expect(judge(DRIFT, Node(gpus=gpus(1)), measured(burnt(*gemms(500.0)), ranks=1)), Status.WARN)
    mixed = Node(gpus=(gpu(0), gpu(1, name="NVIDIA A100-SXM4-80GB")))
    assert judge(DRIFT, mixed, measured(burnt(*gemms(500.0, 700.0)), ranks=2)).status is Status.WARN


def test_a_time_drifts_upwards_and_a_rate_downwards() -> None:
    slow = [series("train compute a sample", "us", 10.0, 12.0 if rank == 3 else 10.0, rank) for rank in range(8)]
    assert named(judge(DRIFT, HGX, measured(burnt(*slow))), Status.FAIL) == [3]
    quick = [series("train compute a sample", "us", 10.0, 8.0 if rank == 3 else 10.0, rank) for rank in range(8)]
    assert judge(DRIFT, HGX, measured(burnt(*quick))).status is Status.PASS


@pytest.mark.parametrize(
    ("metric", "unit", "rank", "early", "late"),
    [
        ("host to device", "GB/s", 5, 50.0, 40.0),
        ("device to host", "GB/s", 5, 50.0, 40.0),
        ("train step a sample", "us", 5, 10.0, 15.0),
        ("all_reduce 64 MiB float32", "GB/s", None, 400.0, 300.0),
    ],
)
def test_what_host_or_other_gpus_take_part_in_warns_only(
    metric: str, unit: str, rank: int | None, early: float, late: float
) -> None:
    others = [series(metric, unit, early, early, r) for r in range(8) if rank is not None and r != rank]
    expect(judge(DRIFT, HGX, measured(burnt(*others, series(metric, unit, early, late, rank)))), Status.WARN, metric)


def test_a_gpu_that_somebody_else_uses_is_not_failed() -> None:
    shared = Node(gpus=(*gpus(7), gpu(7, processes=(GpuProcess(4711, "python"),))))
    expect(judge(DRIFT, shared, measured(burnt(*gemms(*[695.0] * 7, 400.0)))), Status.WARN, "pid 4711")


def test_values_that_overlap_are_too_noisy_and_no_pass() -> None:
    noisy = Series("gemm bf16 8192", "TFLOP/s", 2, 20, Spread(600, 700, 710), Spread(590, 620, 690))
    result = judge(DRIFT, HGX, measured(burnt(noisy, *gemms(695.0, 695.0))))
    assert (result.status, named(result, Status.UNKNOWN)) == (Status.UNKNOWN, [2])
    assert "too noisy" in words(result)
    assert not named(result, Status.PASS)


def test_heat_under_load_is_told_as_the_cause() -> None:
    def load(index: int, hottest: float) -> GpuUnderLoad:
        heat = {"temperature_c": Spread(61.0, (61.0 + hottest) / 2, hottest)}
        return GpuUnderLoad(index, uuid_of(index), 600, heat, sampled_s=600.0)

    sampled = tuple(Telemetry(d, 600.0, tuple(load(i, 88.0 if i == 5 else 65.0) for i in range(8))) for d in ("burn",))
    result = judge(DRIFT, HGX, measured(burnt(*gemms(*[695.0] * 5, 600.0, 695.0, 695.0)), telemetry=sampled))
    [finding] = [f for f in result.findings if f.status is Status.FAIL]
    assert "temperature rose from 61 to 88 C" in (finding.likely or "")


@pytest.mark.parametrize(
    ("burn", "status"),
    [
        ({"asked_s": 60.0, "duration_s": 65.0, "rounds": 2}, Status.SKIP),
        ({"rounds": 1}, Status.UNKNOWN),
        ({"duration_s": 80.0}, Status.UNKNOWN),
        ({"series": ()}, Status.UNKNOWN),
    ],
)
def test_too_little_load_is_never_a_pass(burn: dict[str, Any], status: Status) -> None:
    expect(judge(DRIFT, HGX, measured(msgspec.structs.replace(burnt(*STEADY), **burn))), status)


def test_a_burn_that_broke_off_is_no_pass_and_its_drift_is_still_told() -> None:
    died = ProbeProblem("train", "crash", "rank 2 died in train step 12", 2)
    broken_off = judge(DRIFT, HGX, measured(burnt(*STEADY), problems=(died,)))
    assert [f.status for f in broken_off.findings] == [Status.UNKNOWN]
    drifting = judge(DRIFT, HGX, measured(burnt(*gemms(*[695.0] * 7, 500.0)), problems=(died,)))
    expect(drifting, Status.FAIL, "rank 2 died")
    refused = ProbeProblem("launch", "refused", "rank 1 failed in ask torch: the GPU does not accept a process", 1)
    only_refused = judge(DRIFT, HGX, measured(burnt(rounds=0, duration_s=0.0), problems=(refused,)))
    assert only_refused.findings[0].status is Status.UNKNOWN


def test_cpu_ranks_are_printed_and_never_judged() -> None:
    result = judge(DRIFT, HGX, on_cpus(burnt(series("train compute a sample", "us", 10.0, 20.0, 1))))
    expect(result, Status.SKIP, "2 CPU ranks (gloo)", "50 %")


def counted(index: int, unread: Any = None, **growth: int) -> GpuCounters:
    still = {"pcie_replays": 0, "ecc_corrected": 0, "ecc_uncorrected": 0}
    left_out = unread or {}
    grown = {name: growth.get(name, count) for name, count in still.items() if name not in left_out}
    return GpuCounters(index, uuid_of(index), f"0000:{0x10 + index:02x}:00.0", grown, left_out)


def counts(*changed: GpuCounters, seconds: float = 600.0, events: Any = (), **burn: Any) -> Burn:
    by_index = {c.index: c for c in (*(counted(i) for i in range(8)), *changed)}
    return burnt(counters=tuple(by_index.values()), counted_s=seconds, kernel_events=events, **burn)


def test_counters_that_did_not_grow_pass_on_every_gpu_under_load() -> None:
    result = judge(COUNTERS, HGX, measured(counts(), ranks=4))
    assert (result.status, named(result, Status.PASS)) == (Status.PASS, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("growth", "status"),
    [
        ({"ecc_uncorrected": 1}, Status.FAIL),
        ({"ecc_corrected": 1}, Status.WARN),
        ({"pcie_replays": 320}, Status.WARN),
        ({"pcie_replays": 300}, Status.PASS),
    ],
)
def test_what_a_counter_says_by_its_growth(growth: dict[str, int], status: Status) -> None:
    """Gen5 x16: 31 replays a minute are one wrong bit in 10^12."""
    result = judge(COUNTERS, HGX, measured(counts(counted(3, **growth))))
    assert result.status is status
    assert 3 in named(result, status)
    assert (3 in named(result, Status.PASS)) is (status is Status.PASS)


def test_replays_are_judged_by_the_link_they_came_on() -> None:
    narrow = PcieLink(generation_max=3, width=8)  # 8 GT/s x 8 lanes: 3.84 bits a minute
    node = msgspec.structs.replace(HGX, gpus=(*gpus(3), gpu(3, pcie=narrow), *HGX.gpus[4:]))
    assert judge(COUNTERS, node, measured(counts(counted(3, pcie_replays=41)))).status is Status.WARN
    assert judge(COUNTERS, node, measured(counts(counted(3, pcie_replays=40)))).status is Status.PASS


def test_a_few_replays_in_a_few_seconds_are_no_high_rate() -> None:
    assert judge(COUNTERS, HGX, measured(counts(counted(3, pcie_replays=25), seconds=12.0))).status is Status.PASS


@pytest.mark.parametrize(
    ("kind", "status"), [("failed", Status.UNKNOWN), ("unsupported", Status.PASS), ("denied", Status.PASS)]
)
def test_a_counter_that_was_not_read_is_said_and_no_pass_of_its_own(kind: Any, status: Status) -> None:
    lacking = counted(3, {"ecc_uncorrected": Missing("N/A", kind), "ecc_corrected": Missing("N/A", kind)})
    result = judge(COUNTERS, HGX, measured(counts(lacking)))
    assert result.status is status
    skipped = [f for f in result.findings if f.subject.gpu == 3 and f.status in (Status.SKIP, Status.UNKNOWN)]
    assert len(skipped) == 2
    assert (3 in named(result, Status.PASS)) is (kind != "failed")
    nothing = counted(3, dict.fromkeys(lacking.growth | lacking.unread, Missing("N/A", kind)))
    assert 3 not in named(judge(COUNTERS, HGX, measured(counts(nothing))), Status.PASS)


def test_a_gpu_that_was_not_counted_is_unknown() -> None:
    burn = burnt(counters=(counted(0),), kernel_events=(), counted_s=600.0)
    result = judge(COUNTERS, HGX, measured(burn, ranks=2))
    assert named(result, Status.UNKNOWN) == [1]


@pytest.mark.parametrize(
    ("code", "status"), [(79, Status.FAIL), (48, Status.FAIL), (92, Status.WARN), (999, Status.WARN), (13, Status.PASS)]
)
def test_an_xid_under_load_is_judged_by_its_bucket(code: int, status: Status) -> None:
    """A GPU that needed no reset before the load may still need one for what happened during it."""
    fit = tuple(gpu(i, recovery_action="none") for i in range(8))
    result = judge(COUNTERS, msgspec.structs.replace(HGX, gpus=fit), measured(counts(events=(xid(code, 5),))))
    assert result.status is status
    if status is not Status.PASS:
        assert named(result, status) == [5]
        assert "under load: " in words(result)
        assert 5 not in named(result, Status.PASS)


def test_an_unreadable_kernel_log_is_said_and_the_counters_are_judged_all_the_same() -> None:
    denied = judge(COUNTERS, HGX, measured(counts(events=Missing("no permission", "denied"))))
    expect(denied, Status.PASS, "kernel log of the load: no permission")
    assert "Xid" not in words(denied)
    failed = judge(COUNTERS, HGX, measured(counts(events=Missing("journalctl hung", "failed"))))
    assert (failed.status, named(failed, Status.PASS)) == (Status.UNKNOWN, [])


def test_a_gpu_that_is_lost_after_the_load_fails() -> None:
    lost = msgspec.structs.replace(counted(3), errors=(CallError("nvmlDeviceGetName", 15, "GPU is lost"),))
    result = judge(COUNTERS, HGX, measured(counts(lost)))
    assert named(result, Status.FAIL) == [3]
    assert "GPU is lost" in words(result)


def test_counters_after_a_burn_that_broke_off_are_no_pass() -> None:
    died = ProbeProblem("train", "crash", "rank 2 died in train step 12", 2)
    result = judge(COUNTERS, HGX, measured(counts(), problems=(died,)))
    assert (result.status, named(result, Status.PASS)) == (Status.UNKNOWN, [])


def test_counters_that_were_not_read_again_are_unknown_and_on_cpu_ranks_skipped() -> None:
    assert judge(COUNTERS, HGX, measured(burnt(*STEADY))).status is Status.UNKNOWN
    none = Missing("CPU ranks put no load on a GPU")
    expect(judge(COUNTERS, HGX, on_cpus(burnt(counters=none, kernel_events=none))), Status.SKIP, "CPU ranks")
