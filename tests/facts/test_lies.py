"""A lying driver: an impossible value is a failed reading with its words, `unknown` to the checks, never a number."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.captures.leaves import plausible
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from gpudoctor.testing.fake_nvml import ScriptedFault
from tests.facts.nvml_nodes import make_root, of_field, read, with_paths
from tests.narrowed import missing, present

STRUCK = 3
ALL_BITS = (1 << 32) - 1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path, str(load_node("hgx-h100-8", {}).driver.library_version))


def told(root: Path, *faults: ScriptedFault) -> Node:
    """An 8-GPU node as this driver reports it, with bridges and host of the packaged one."""
    true = load_node("hgx-h100-8", {})
    driver, heard, _ = read(root, true, *faults)
    gpus = tuple(with_paths(sorted(heard.gpus.values(), key=lambda gpu: gpu.bus_id), true).values())
    errors = tuple(f"GPU {index}: {words}" for index, words in sorted(heard.handle_errors.items()))
    return replace(true, driver=replace(driver, handle_errors=errors), gpus=gpus)


def struck(node: Node) -> Gpu:
    return next(gpu for gpu in node.gpus if gpu.index == STRUCK)


def statuses(report: Report, check_id: str, gpu: int = STRUCK) -> set[Status]:
    result = next(check for check in report.checks if check.id == check_id)
    return {f.status for f in result.findings if f.subject.gpu == gpu} or {result.status}


def test_without_a_lie_nothing_fails_and_nothing_is_unknown(root: Path) -> None:
    report = judge(told(root))
    assert [c.id for c in report.checks if c.status in (Status.FAIL, Status.UNKNOWN)] == []


def memory(**sizes: int) -> Any:
    return SimpleNamespace(**{"total": 85520809984, "reserved": 577765376, "used": 0, "free": 84943044608, **sizes})


def lie(call: str | int, value: Any) -> ScriptedFault:
    """An answer of a function, or of a field, about the struck GPU."""
    return of_field(call, STRUCK, value=value) if isinstance(call, int) else ScriptedFault(call, STRUCK, value=value)


# the answer that lies, the leaf, the raw reading, the check that needs the leaf
IMPOSSIBLE: list[tuple[ScriptedFault, str, int, str]] = [
    (lie("nvmlDeviceGetTemperature", 255), "thermal.gpu_c", 255, "gpu.temperature"),
    (lie("nvmlDeviceGetTemperature", ALL_BITS), "thermal.gpu_c", ALL_BITS, "gpu.temperature"),
    (lie("nvmlDeviceGetCurrPcieLinkWidth", 0), "pcie.width", 0, "pcie.link-width"),
    (lie("nvmlDeviceGetCurrPcieLinkWidth", ALL_BITS), "pcie.width", ALL_BITS, "pcie.link-width"),
    (lie("nvmlDeviceGetMaxPcieLinkWidth", 0), "pcie.width_max", 0, "pcie.link-width"),
    (lie("nvmlDeviceGetCurrPcieLinkGeneration", 0), "pcie.generation", 0, "pcie.link-speed"),
    (lie("nvmlDeviceGetMaxPcieLinkGeneration", 99), "pcie.generation_max", 99, "pcie.link-speed"),
    (lie(190, 2**32), "power.limit_w", 2**32, "gpu.power-limit"),
    (lie(190, 0), "power.limit_w", 0, "gpu.power-limit"),
    (
        lie("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=200, memory=0)),
        "utilization.gpu_pct",
        200,
        "gpu.in-use",
    ),
    (lie("nvmlDeviceGetMemoryInfo", memory(used=1 << 60)), "memory_used_mib", 1 << 40, "gpu.in-use"),
    (lie("nvmlDeviceGetMaxClockInfo", 0), "clocks.sm_max_mhz", 0, "gpu.clocks"),
]


# leaves beside which the check has other evidence, and that it would only read as one more hint
JUDGED_WITHOUT = ("pcie.width_max", "pcie.generation_max", "utilization.gpu_pct", "clocks.sm_max_mhz")


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("lie", "leaf", "raw", "check"), IMPOSSIBLE, ids=[f"{leaf} {raw}" for _, leaf, raw, _ in IMPOSSIBLE]
)
def test_an_impossible_value_is_unknown_with_the_raw_reading(
    root: Path, lie: ScriptedFault, leaf: str, raw: int, check: str
) -> None:
    # if a field lies, an older getter may return the truth: it must be silent for the lie to be the only answer
    silent = ScriptedFault("nvmlDeviceGet*PowerLimit", STRUCK, value=2**32) if lie.field == 190 else None
    node = told(root, lie, *([silent] if silent else []))
    assert missing(attrgetter(leaf)(struck(node)), "failed", str(raw))
    report, honest = judge(node), judge(told(root))
    assert not report.faults
    if leaf in JUDGED_WITHOUT:
        assert statuses(report, check) == statuses(honest, check)
    else:
        assert statuses(report, check) == {Status.UNKNOWN}
    # the other GPUs are judged as ever
    assert statuses(report, check, gpu=0) == statuses(honest, check, gpu=0)


@pytest.mark.parametrize("code", [15, 16])
@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetTemperature", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetUtilizationRates"]
)
def test_an_error_from_one_call_only_taints_the_gpu_and_no_other(root: Path, code: int, call: str) -> None:
    node = told(root, ScriptedFault(call, STRUCK, code=code))
    assert [(error.call, error.code) for error in struck(node).errors] == [(call, code)]
    assert not isinstance(struck(node).name, Missing)
    report = judge(node)
    assert statuses(report, "gpu.lost") <= {Status.FAIL, Status.UNKNOWN, Status.WARN}
    assert report.verdict in ("fail", "unknown")
    assert all(fault.subject.gpu in (None, STRUCK) for fault in report.faults)
    for gpu in range(8):
        if gpu != STRUCK:
            assert statuses(report, "gpu.lost", gpu) == {Status.PASS}


def test_an_error_that_comes_only_later_is_seen_too(root: Path) -> None:
    node = told(root, ScriptedFault("nvmlDeviceGetClockInfo", STRUCK, from_call=3, code=15))
    assert not isinstance(struck(node).clocks.graphics_mhz, Missing)
    assert isinstance(struck(node).clocks.memory_mhz, Missing)
    assert statuses(judge(node), "gpu.lost") == {Status.FAIL}


@pytest.mark.parametrize("code", [15, 16, 999])
def test_a_count_of_eight_with_seven_handles_is_a_gpu_too_few(root: Path, code: int) -> None:
    node = told(root, ScriptedFault("nvmlDeviceGetHandleByIndex", STRUCK, code=code))
    assert (node.driver.device_count, len(node.gpus)) == (8, 7)
    assert any(f"GPU {STRUCK}" in words and f"({code})" in words for words in node.driver.handle_errors)
    report = judge(node)
    assert report.verdict == "fail"
    assert next(c for c in report.checks if c.id == "gpu.count").status is Status.UNKNOWN
    lost = next(c for c in report.checks if c.id == "gpu.lost")
    assert lost.status is Status.FAIL
    assert any(f"GPU {STRUCK}" in f"{f.subject.label} {f.found}" for f in lost.findings if f.status is Status.FAIL)


@pytest.mark.parametrize("count", [ALL_BITS, 1 << 31, -1])
def test_an_impossible_count_of_gpus_starts_no_threads_and_is_no_pass(root: Path, count: int) -> None:
    driver, heard, _ = read(root, load_node("hgx-h100-8", {}), ScriptedFault("nvmlDeviceGetCount", value=count))
    assert str(count) in missing(driver.device_count).reason
    assert heard.gpus == {}
    report = judge(replace(load_node("hgx-h100-8", {}), driver=driver, gpus=()))
    assert report.verdict in ("fail", "unknown")
    assert next(c for c in report.checks if c.id == "gpu.count").status is not Status.PASS


def test_seventeen_of_eighteen_links_fail_and_name_the_gpu(root: Path) -> None:
    node = told(root, of_field(91, STRUCK, value=17))
    assert len(present(struck(node).nvlinks)) == 17
    assert statuses(judge(node), "nvlink.links") & {Status.FAIL, Status.UNKNOWN}


@pytest.mark.parametrize("count", [ALL_BITS, 37, 255])
def test_an_impossible_count_of_links_is_unknown(root: Path, count: int) -> None:
    node = told(root, of_field(91, STRUCK, value=count))
    assert missing(struck(node).nvlinks, "failed", str(count))
    assert statuses(judge(node), "nvlink.links") == {Status.UNKNOWN}


def test_one_link_that_does_not_answer_is_unknown_and_the_others_are_not(root: Path) -> None:
    state = ScriptedFault("nvmlDeviceGetNvLinkState", STRUCK, from_call=18, code=2)
    links = present(struck(told(root, of_field(165, STRUCK, code=999), state)).nvlinks)
    assert [isinstance(link.state, Missing) for link in links] == [False] * 17 + [True]


# the same in facts and dumps from other sources
LIES: list[tuple[str, Any]] = [
    ("thermal.gpu_c", 255),
    ("thermal.memory_c", 255),
    ("pcie.width", 0),
    ("pcie.generation", 0),
    ("power.draw_w", 4294967.296),
    ("utilization.gpu_pct", 200),
    ("memory_used_mib", 1 << 25),
    ("clocks.sm_mhz", ALL_BITS),
]


@pytest.mark.parametrize(("leaf", "value"), LIES)
def test_a_lie_in_a_file_is_a_failed_reading_too(leaf: str, value: float) -> None:
    from gpudoctor.facts.simulated.load import put

    gpu = put(load_node("hgx-h100-8", {}).gpus[0], leaf, value)
    assert missing(attrgetter(leaf)(plausible(gpu)), "failed", f"{value}")
