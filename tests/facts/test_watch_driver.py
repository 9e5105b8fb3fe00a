"""The driver calls of `gpudoctor watch`: how many, and how often."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.stream import driver_child as nvml_watcher
from gpudoctor.facts.stream.driver_child import Watcher
from gpudoctor.facts.stream.messages import GpuTick, OnGpu, ReaderAnswer
from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault
from tests.facts.nvml_nodes import ABSENT_IN_470, LAST_FIELD_IN_470, make_node, of_field, with_gpu


def named(node: Node) -> tuple[tuple[int, str | None], ...]:
    return tuple((gpu.index, str(gpu.uuid)) for gpu in node.gpus)


def watching(node: Node, *faults: ScriptedFault, interval_s: float = 1.0, **options: Any) -> tuple[Watcher, FakeNvml]:
    nvml = FakeNvml(node, faults, **options)
    return Watcher(nvml, named(node), interval_s), nvml


def of_gpu(answer: ReaderAnswer, index: int) -> GpuTick:
    return next(tick for tick in answer.gpus if tick.gpu == index)


# the answers of one GPU, and what they cost


def test_the_first_answer_tells_all() -> None:
    node = with_gpu(make_node(2), 1, processes=(GpuProcess(4711, memory_mib=1024), GpuProcess(4712, kind="C+G")))
    watcher, nvml = watching(node)
    answer = watcher.answer()
    first = of_gpu(answer, 1)
    assert first.readings == {
        "utilization_pct": 97,
        "memory_used_mib": 17,
        "temperature_c": 41,
        "power_w": 120.2,
        "sm_mhz": 1005,
        "memory_mhz": 2619,
        "pcie_generation": 4,
        "pcie_width": 8,
        "pcie_tx_gb_s": 1.25,
        "pcie_rx_gb_s": 2.5,
    }
    assert first.events == ("sw-power-cap", "0x200")
    assert first.counters == {"pcie_replays": 3, "ecc_corrected": 1, "ecc_uncorrected": 2}
    assert (first.links_up, first.links) == (18, 18)
    assert first.unread == {}
    assert answer.processes == (OnGpu(1, 4711, "C", 1024), OnGpu(1, 4712, "C+G", None))
    assert nvml.unknown == set()


def test_what_is_dear_is_read_seldom() -> None:
    watcher, _ = watching(make_node(2))
    answers = [watcher.answer() for _ in range(121)]
    pcie = [[n for n, a in enumerate(answers[:20]) if "pcie_rx_gb_s" in of_gpu(a, gpu).readings] for gpu in (0, 1)]
    assert pcie == [[0, 4, 8, 12, 16], [0, 1, 5, 9, 13, 17]], "every 4th, in turns"
    assert [n for n, a in enumerate(answers[:20]) if a.processes is not None] == [0, 5, 10, 15]
    assert [n for n, a in enumerate(answers[:20]) if of_gpu(a, 1).counters] == [0, 5, 10, 15]
    assert [n for n, a in enumerate(answers[:20]) if "memory_mhz" in of_gpu(a, 0).readings] == [0, 5, 10, 15]
    assert [n for n, a in enumerate(answers) if of_gpu(a, 0).links is not None] == [0, 60, 120]
    cheap = {"utilization_pct", "memory_used_mib", "temperature_c", "power_w", "sm_mhz"}
    assert all(cheap <= of_gpu(a, 1).readings.keys() and of_gpu(a, 1).events is not None for a in answers)


@pytest.mark.parametrize(("interval_s", "every"), [(0.2, 25), (2.0, 3), (60.0, 1)])
def test_what_is_dear_goes_by_time_not_by_ticks(interval_s: float, every: int) -> None:
    watcher, _ = watching(make_node(1), interval_s=interval_s)
    told = [n for n in range(51) if watcher.answer().processes is not None]
    assert told == list(range(0, 51, every))


def test_a_cheap_tick_costs_few_calls_and_no_dear_one() -> None:
    watcher, nvml = watching(make_node(3))
    for _ in range(3):
        watcher.answer()
    before = nvml.calls.copy()
    answer = watcher.answer()  # number 3: nothing is due
    calls = nvml.calls - before
    assert len(answer.gpus) == 3
    assert all(sum(n for (_, gpu), n in calls.items() if gpu == index) <= 8 for index in range(3))
    assert not [name for name, _ in calls if "Pcie" in name or "Processes" in name or "NvLink" in name]


def test_no_tick_costs_many_calls() -> None:
    watcher, nvml = watching(make_node(1))
    for _ in range(61):
        before = sum(nvml.calls.values())
        watcher.answer()
        assert sum(nvml.calls.values()) - before <= 24


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 1 << 34), st.integers(0, 1 << 34)), min_size=1, max_size=6),
    st.integers(0, 1 << 60),
)
def test_what_the_links_carried_becomes_a_rate(steps: list[tuple[float, int, int]], start_kib: int) -> None:
    now_s = [1000.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvml_watcher, "monotonic", lambda: now_s[0])
        watcher, nvml = watching(make_node(1))
        nvml.answers.nvlink_kib = {(0, 138): start_kib, (0, 139): start_kib}
        assert "nvlink_tx_gb_s" not in of_gpu(watcher.answer(), 0).readings, "one reading is no rate"
        for took_s, sent_kib, received_kib in steps:
            now_s[0] += took_s
            nvml.answers.nvlink_kib[0, 138] += sent_kib
            nvml.answers.nvlink_kib[0, 139] += received_kib
            readings = of_gpu(watcher.answer(), 0).readings
            assert readings["nvlink_tx_gb_s"] == pytest.approx(sent_kib * 1024 / 1e9 / took_s, abs=1e-3, rel=1e-6)
            assert readings["nvlink_rx_gb_s"] == pytest.approx(received_kib * 1024 / 1e9 / took_s, abs=1e-3, rel=1e-6)


def test_a_counter_that_was_reset_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(s) for s in range(10_000))
    monkeypatch.setattr(nvml_watcher, "monotonic", lambda: next(clock))
    watcher, nvml = watching(make_node(1))
    rates = []
    for kib in (1000, 2000, 50, 1050):
        nvml.answers.nvlink_kib = {(0, 138): kib}
        rates.append(of_gpu(watcher.answer(), 0).readings.get("nvlink_tx_gb_s"))
    assert [rate is None for rate in rates] == [True, False, True, False]


def test_what_a_gpu_does_not_have_is_told_once_and_not_asked_again() -> None:
    refused = (
        ScriptedFault("nvmlDeviceGetUtilizationRates", code=3),
        ScriptedFault("nvmlDeviceGetTemperature", code=4),
        ScriptedFault("nvmlDeviceGetPcieThroughput", code=3),
        ScriptedFault("nvmlDeviceGetComputeRunningProcesses*", code=4),
        ScriptedFault("nvmlDeviceGetGraphicsRunningProcesses*", code=3),
    )
    watcher, nvml = watching(make_node(1, links=0), *refused)
    answers = [watcher.answer() for _ in range(70)]
    unread = of_gpu(answers[0], 0).unread
    assert {name: why.kind for name, why in unread.items()} == {
        "utilization_pct": "unsupported",
        "temperature_c": "denied",
        "nvlink_rx_gb_s": "unsupported",
        "nvlink_tx_gb_s": "unsupported",
        "pcie_rx_gb_s": "unsupported",
        "pcie_tx_gb_s": "unsupported",
        "processes": "denied",
        "nvlinks": "unsupported",
    }
    assert all(of_gpu(answer, 0).unread == {} for answer in answers[1:])
    assert all(answer.processes is None for answer in answers)
    for name in ("UtilizationRates", "Temperature", "ComputeRunningProcesses_v3"):
        assert nvml.calls[f"nvmlDeviceGet{name}", 0] == 1
    assert nvml.calls["nvmlDeviceGetPcieThroughput", 0] == 2, "once each way"


def test_graphics_that_are_refused_do_not_hide_compute() -> None:
    node = with_gpu(make_node(1), 0, processes=(GpuProcess(pid=4711, memory_mib=10),))
    refused = ScriptedFault("nvmlDeviceGetGraphicsRunningProcesses*", code=3)
    watcher, nvml = watching(node, refused, interval_s=60.0)
    assert [watcher.answer().processes for _ in range(2)] == [(OnGpu(0, 4711, "C", 10),)] * 2
    assert nvml.calls["nvmlDeviceGetGraphicsRunningProcesses_v3", 0] == 1


def test_clients_are_asked_for_where_an_mps_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    node = with_gpu(make_node(1), 0, processes=(GpuProcess(11), GpuProcess(12, kind="M", memory_mib=7)))
    monkeypatch.setattr(nvml_watcher, "process_name", lambda root, pid: "nvidia-cuda-mps-server" if pid == 11 else "x")
    assert watching(node)[0].answer().processes == (OnGpu(0, 11, "C"), OnGpu(0, 12, "M", 7))


def test_links_whose_state_cannot_be_read_are_not_counted_as_down() -> None:
    watcher, _ = watching(make_node(1), of_field(165, code=999), ScriptedFault("nvmlDeviceGetNvLinkState", code=999))
    tick = of_gpu(watcher.answer(), 0)
    assert (tick.links_up, tick.links) == (None, None)
    assert tick.unread["nvlinks"].kind == "failed"


def test_an_old_driver_tells_what_it_can() -> None:
    node = make_node(1, driver="470.82.01")
    watcher, _ = watching(node, absent=ABSENT_IN_470, last_field=LAST_FIELD_IN_470)
    first, second = watcher.answer(), watcher.answer()
    assert of_gpu(first, 0).readings["power_w"] == of_gpu(second, 0).readings["power_w"] == 120.2
    assert of_gpu(first, 0).readings["memory_used_mib"] == 17
    assert (of_gpu(first, 0).links_up, of_gpu(first, 0).links) == (18, 18)
    assert of_gpu(first, 0).unread == {}


def test_a_gpu_that_is_lost_leaves_the_ticks_and_the_others_stay() -> None:
    watcher, _ = watching(make_node(2), ScriptedFault("nvmlDeviceGet*", gpu=1, from_call=40, code=15))
    shown = [[tick.gpu for tick in watcher.answer().gpus] for _ in range(6)]
    assert shown[0] == [0, 1]
    assert shown[-1] == [0]


def test_a_gpu_that_gives_no_handle_is_asked_for_again_each_minute() -> None:
    # calls on the system, not on a GPU: the first two belong to the first answer
    watcher, nvml = watching(make_node(2), ScriptedFault("nvmlDeviceGetHandleByUUID", code=15))
    assert watcher.answer().gpus == ()
    nvml._faults = ()
    assert [len(watcher.answer().gpus) for _ in range(61)] == [0] * 59 + [2, 2]


def test_without_facts_every_gpu_that_the_driver_counts_is_read() -> None:
    assert [tick.gpu for tick in Watcher(FakeNvml(make_node(3))).answer().gpus] == [0, 1, 2]
