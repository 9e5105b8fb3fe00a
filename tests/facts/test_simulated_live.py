"""Live values of nodes that are not here: plausible, repeatable, and true to the facts and their faults."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.live import ticks_of
from gpudoctor.facts.simulated.load import apply_faults, load_node, node_names
from gpudoctor.facts.stream.messages import WATCHED, GpuTick, Tick
from tests.conftest import ROOT
from tests.narrowed import present

AT_S = 1_800_000_000.0
WARM = 80  # ticks after which the job has settled, before its first checkpoint


def node_of(name: str, *faults: str) -> Node:
    return apply_faults(load_node(name), faults)


def tick_at(node: Node, number: int) -> Tick:
    return ticks_of(node, number, AT_S + number)


def of_gpu(tick: Tick, index: int) -> GpuTick:
    return next(each for each in tick.gpus if each.gpu == index)


def reading(node: Node, number: int, gpu: int, name: str) -> float:
    return of_gpu(tick_at(node, number), gpu).readings[name]


@pytest.mark.parametrize("name", node_names())
def test_every_node_is_told_within_what_can_be(name: str) -> None:
    node = load_node(name)
    facts = {gpu.index: gpu for gpu in node.gpus}
    for number in (0, 1, 4, 60, 86, 90, 500):
        tick = tick_at(node, number)
        assert tick.silence is None
        assert [each.gpu for each in tick.gpus] == [gpu.index for gpu in node.gpus]
        assert tick.host is not None
        for each in tick.gpus:
            gpu = facts[each.gpu]
            assert set(each.readings) <= set(WATCHED)
            assert not set(each.readings) & set(each.unread)
            assert all(value >= 0 for value in each.readings.values())
            assert each.readings.get("utilization_pct", 0) <= 100
            if "power_w" in each.readings and not isinstance(gpu.power.limit_w, Missing):
                assert each.readings["power_w"] <= 1.02 * gpu.power.limit_w
            if "memory_used_mib" in each.readings and not isinstance(gpu.memory_total_mib, Missing):
                assert each.readings["memory_used_mib"] <= gpu.memory_total_mib
            if "temperature_c" in each.readings and not isinstance(gpu.thermal.margin_c, Missing):
                assert each.readings["temperature_c"] < present(gpu.thermal.gpu_c) + gpu.thermal.margin_c
            if "sm_mhz" in each.readings and not isinstance(gpu.clocks.sm_max_mhz, Missing):
                assert each.readings["sm_mhz"] <= gpu.clocks.sm_max_mhz
            if not isinstance(gpu.nvlinks, Missing) and "nvlink_rx_gb_s" in each.readings:
                line_rate = sum(link.speed_gb_s for link in gpu.nvlinks if isinstance(link.speed_gb_s, float))
                assert each.readings["nvlink_rx_gb_s"] <= line_rate


def test_the_same_tick_is_made_twice() -> None:
    node = load_node("hgx-h100-8")
    assert msgspec.json.encode(tick_at(node, 17)) == msgspec.json.encode(tick_at(load_node("hgx-h100-8"), 17))
    assert tick_at(node, 17) != tick_at(node, 18)


def test_a_simulated_node_plays_a_training_job() -> None:
    node = load_node("hgx-h100-8")
    for gpu in range(8):
        assert 90 <= reading(node, WARM, gpu, "utilization_pct") <= 99
        assert all(550 < reading(node, n, gpu, "power_w") < 650 for n in range(12)), "it has run for long"
        assert all(55 <= reading(node, n, gpu, "temperature_c") <= 75 for n in (0, 5, 20, WARM))
        cooled = reading(node, 84, gpu, "temperature_c") - reading(node, 89, gpu, "temperature_c")
        assert 0 < cooled < 15, "temperature follows slowly"
        assert reading(node, WARM, gpu, "nvlink_rx_gb_s") > 90
    tick = tick_at(node, 0)
    assert [(each.gpu, each.rank, each.job, each.user) for each in present(tick.processes)] == [
        (gpu, gpu, "torchrun", "simulated") for gpu in range(8)
    ]
    assert all("simulated" in (each.command or "") for each in present(tick.processes))
    assert all(of_gpu(tick, gpu).events == () for gpu in range(8)), "at work, so not idle"


def test_a_checkpoint_is_seen() -> None:
    node = load_node("hgx-h100-8")
    assert reading(node, 86, 0, "utilization_pct") < 30
    assert reading(node, 86, 0, "nvlink_tx_gb_s") == 0
    assert reading(node, 89, 0, "power_w") < reading(node, 84, 0, "power_w") / 2
    assert reading(node, 95, 0, "utilization_pct") >= 90


def test_what_is_read_seldom_comes_seldom() -> None:
    ticks = [tick_at(load_node("hgx-h100-8"), number) for number in range(61)]
    assert [n for n, tick in enumerate(ticks) if tick.processes is not None] == list(range(0, 61, 5))
    assert [n for n, tick in enumerate(ticks) if of_gpu(tick, 0).links is not None] == [0, 60]
    assert [n for n, tick in enumerate(ticks[:9]) if "pcie_width" in of_gpu(tick, 0).readings] == [0, 4, 8]
    assert [n for n, tick in enumerate(ticks[:11]) if of_gpu(tick, 0).counters] == [0, 5, 10]


def test_what_a_gpu_does_not_have_is_told_in_the_first_tick_only() -> None:
    node = load_node("rtx4090-4")
    unread = of_gpu(tick_at(node, 0), 0).unread
    assert unread["nvlink_rx_gb_s"].kind == "unsupported"
    assert of_gpu(tick_at(node, 1), 0).unread == {}
    assert "nvlink_rx_gb_s" not in of_gpu(tick_at(node, 1), 0).readings


def test_without_nvlink_gradients_go_over_pcie_as_fast_as_the_narrowest_link() -> None:
    whole, narrow = load_node("rtx4090-4"), node_of("rtx4090-4", "pcie-width-x4@2")
    assert reading(narrow, 0, 2, "pcie_width") == 4
    assert reading(narrow, 0, 1, "pcie_width") == 16
    assert reading(whole, 0, 1, "pcie_generation") == 4, "the link woke up"
    assert reading(narrow, 0, 1, "pcie_tx_gb_s") < reading(whole, 0, 1, "pcie_tx_gb_s") / 2
    assert 0 < reading(narrow, 0, 2, "pcie_rx_gb_s") < 7.9
    stuck = node_of("rtx4090-4", "pcie-gen1-busy@1")
    assert reading(stuck, 0, 1, "pcie_generation") == 1
    assert reading(stuck, 0, 0, "pcie_generation") == 4


def test_a_throttled_gpu_shows_it_and_holds_up_the_others() -> None:
    well, hot = load_node("hgx-h100-8"), node_of("hgx-h100-8", "thermal@2")
    assert set(of_gpu(tick_at(hot, WARM), 2).events or ()) == {"hw-slowdown", "sw-thermal", "hw-thermal"}
    assert reading(hot, WARM, 2, "sm_mhz") < 1100 < 1800 < reading(hot, WARM, 3, "sm_mhz")
    assert reading(hot, WARM, 2, "temperature_c") > 85
    assert reading(hot, WARM, 3, "power_w") < 0.8 * reading(well, WARM, 3, "power_w"), "it waits"
    assert reading(hot, WARM, 3, "nvlink_rx_gb_s") < 0.8 * reading(well, WARM, 3, "nvlink_rx_gb_s")


def test_a_power_cap_shows() -> None:
    node = node_of("hgx-h100-8", "power-cap@1")
    assert "sw-power-cap" in (of_gpu(tick_at(node, WARM), 1).events or ())
    assert reading(node, WARM, 1, "power_w") < 430
    assert reading(node, WARM, 1, "sm_mhz") < 0.9 * reading(node, WARM, 0, "sm_mhz")


def test_a_hot_gpu_is_hotter_than_the_others() -> None:
    node = node_of("hgx-h100-8", "hot-gpu@4")
    assert reading(node, WARM, 4, "temperature_c") - reading(node, WARM, 3, "temperature_c") >= 8


def test_a_lost_gpu_is_not_told_and_the_job_stalls() -> None:
    node = node_of("hgx-h100-8", "gpu-lost@3")
    tick = tick_at(node, WARM)
    assert [each.gpu for each in tick.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert 3 not in {each.gpu for each in present(tick.processes)}
    assert of_gpu(tick, 0).readings["utilization_pct"] == 100
    assert of_gpu(tick, 0).readings["power_w"] < 350, "it waits in a collective for ever"
    assert of_gpu(tick, 0).readings["nvlink_rx_gb_s"] == 0


def test_a_driver_call_that_hangs_is_a_silence() -> None:
    node = node_of("hgx-h100-8", "driver-hang@3")
    first, later = tick_at(node, 0), tick_at(node, 30)
    assert (first.gpus, first.processes) == ((), None)
    assert present(later.silence).since_s == present(first.silence).since_s == AT_S - 10
    assert present(later.silence).why == "nvmlDeviceGetFieldValues on GPU 3 has not returned for 40 s"
    assert later.host is not None


@pytest.mark.parametrize("fault", ["driver-not-loaded", "nvml-library-missing", "driver-mismatch"])
def test_without_a_driver_there_are_no_gpus_and_no_silence(fault: str) -> None:
    tick = tick_at(node_of("hgx-h100-8", fault), 5)
    assert (tick.gpus, tick.processes, tick.silence) == ((), None, None)
    assert tick.host is not None


def test_a_counter_that_storms_grows_and_others_stay() -> None:
    node = node_of("hgx-h100-8", "pcie-replays@2")
    counts = [of_gpu(tick_at(node, number), 2).counters["pcie_replays"] for number in (0, 50)]
    assert 181_344 == counts[0] < counts[1]
    assert of_gpu(tick_at(node, 50), 1).counters["pcie_replays"] == 0


def test_links_that_are_down_are_counted() -> None:
    node = node_of("hgx-h100-8", "nvlink-all-down@4")
    tick = of_gpu(tick_at(node, 0), 4)
    assert tick.links == 18
    assert tick.links_up == 0
    assert of_gpu(tick_at(node, 0), 3).links_up == 18


def test_somebody_elses_program_is_listed_beside_the_job() -> None:
    node = node_of("hgx-h100-8", "foreign-process@1")
    tick = tick_at(node, 0)
    strangers = [each for each in present(tick.processes) if each.user != "simulated"]
    assert [(each.gpu, each.name, each.user) for each in strangers] == [(1, "/opt/miner/bin/xmr", "nobody")]


def test_gpus_that_no_program_may_use_as_a_whole_stay_idle() -> None:
    for node in (load_node("a100-mig-8"), load_node("cpu-only")):
        tick = tick_at(node, 0)
        assert tick.processes in ((), None)
    shown = tick_at(load_node("display-plus-a100"), 0)
    ranks_on = {each.gpu for each in present(shown.processes) if each.user == "simulated"}
    assert ranks_on == {1, 2}, "the small one is for the monitor"


def test_a_capture_stays_as_it_was_taken() -> None:
    dumps = sorted((ROOT / "tests/facts/dumps").glob("*.xml"))
    assert dumps, "no dumps to read"
    for dump in dumps:
        node = load_source(str(dump)).node
        assert node.source.kind == "capture"
        first, later = tick_at(node, 0), tick_at(node, 60)
        for gpu, one, other in zip(node.gpus, first.gpus, later.gpus, strict=True):
            assert one.readings == other.readings
            for name, leaf in (("power_w", gpu.power.draw_w), ("temperature_c", gpu.thermal.gpu_c)):
                assert one.readings.get(name) == (None if isinstance(leaf, Missing) else leaf)
            assert "pcie_rx_gb_s" in one.unread
            assert "pcie_rx_gb_s" not in one.readings
        assert all(each.user != "simulated" for each in first.processes or ())


def test_processes_that_a_capture_does_not_hold_are_not_told_as_none_there(captures: Path) -> None:
    links_only = load_source(str(captures / "hgx-h100-dump" / "nvlink-status.txt")).node
    assert tick_at(links_only, 0).processes is None
    assert tick_at(load_source(str(captures / "qx-h100.xml")).node, 0).processes == ()
