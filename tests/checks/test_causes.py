"""Why a GPU is slower than its peers: joined from idle facts and from what was sampled under load."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.measured.slowness import causes
from gpudoctor.checks.measured.under_load import load_of
from gpudoctor.facts.model.gpu import Clocks, Gpu, GpuProcess, PcieLink, Power, Thermal
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread, Telemetry
from tests.checks.one_check import gpu, gpus, uuid_of
from tests.narrowed import present

USUAL = {
    "sm_mhz": 1755.0,
    "memory_mhz": 2619.0,
    "temperature_c": 61.0,
    "pcie_generation": 5.0,
    "pcie_width": 16.0,
}
IDLE: dict[str, Any] = {
    "clocks": Clocks(sm_mhz=345, sm_max_mhz=1980, event_reasons=("idle",)),
    "power": Power(limit_w=700.0),
    "thermal": Thermal(gpu_c=35),
    "pcie": PcieLink(width=16),
}


def load(index: int, events: dict[str, float] | None = None, **leaves: Any) -> GpuUnderLoad:
    names = {name: leaves.pop(name, value) for name, value in USUAL.items()}
    readings = {name: Spread(value * 0.9, value, value) for name, value in names.items() if value is not None}
    return GpuUnderLoad(
        index,
        **{
            "uuid": uuid_of(index),
            "samples": 40,
            "readings": readings,
            "event_share": events or {},
            "sampled_s": 8.0,
            **leaves,
        },
    )


PEERS_LOADS = tuple(load(i) for i in range(3))


def why(
    own: GpuUnderLoad | None, *others: GpuUnderLoad, peers: dict[str, Any] | None = None, **facts: Any
) -> list[str]:
    odd = gpu(3, **{**IDLE, **facts})
    return causes(odd, gpus(3, **{**IDLE, **(peers or {})}), own, others or (PEERS_LOADS if own else ()))


def test_equal_gpus_have_no_cause() -> None:
    assert why(load(3)) == []
    assert why(None) == []


@pytest.mark.parametrize(
    ("leaves", "cause"),
    [
        ({"events": {"hw-power-brake": 0.917, "hw-slowdown": 0.92}}, "HW power brake active 92 % of the time"),
        ({"events": {"hw-thermal": 0.5}}, "HW thermal slowdown active 50 % of the time"),
        ({"events": {"sw-thermal": 0.05}}, "SW thermal slowdown active 5 % of the time"),
        ({"events": {"hw-slowdown": 0.3}}, "HW slowdown active 30 % of the time"),
        ({"sm_mhz": 1200.0}, "its clock was 1200 MHz under load, the others' 1755 MHz"),
        ({"memory_mhz": 1593.0}, "its memory clock was 1593 MHz under load, the others' 2619 MHz"),
        ({"temperature_c": 88.0}, "it was at 88 C under load, the others at 61 C"),
        ({"pcie_generation": 1.0}, "its PCIe generation under load was 1, the others' 5"),
        ({"pcie_width": 8.0}, "its PCIe width under load was 8, the others' 16"),
    ],
)
def test_each_cause_under_load_is_told_with_its_figure_and_alone(leaves: dict[str, Any], cause: str) -> None:
    assert why(load(3, **leaves)) == [cause]


def test_the_drivers_timers_show_what_samples_missed() -> None:
    assert why(load(3, event_ms={"hw-thermal": 2000.0})) == ["HW thermal slowdown active 25 % of the time"]


def test_several_causes_come_with_the_surest_first() -> None:
    found = why(load(3, {"hw-thermal": 0.9}, sm_mhz=1200.0, temperature_c=92.0))
    assert [cause.split()[0] for cause in found] == ["HW", "its", "it"]


def test_what_all_gpus_show_is_no_cause_for_one() -> None:
    hot = [load(i, {"sw-thermal": 0.4}, temperature_c=88.0) for i in range(3)]
    assert why(load(3, {"sw-thermal": 0.42}, temperature_c=89.0), *hot) == []
    [more] = why(load(3, {"sw-thermal": 0.9}, temperature_c=89.0), *hot)
    assert more == "SW thermal slowdown active 90 % of the time (the others 40 %)"


@pytest.mark.parametrize(
    "reason", ["idle", "application-clocks", "sw-power-cap", "sync-boost", "display-clocks", "0x200"]
)
def test_benign_reasons_that_the_others_show_too_are_no_cause(reason: str) -> None:
    others = [load(i, {reason: 0.8}) for i in range(3)]
    assert why(load(3, {reason: 1.0}), *others) == []
    assert why(load(3, {reason: 0.3})) == []


def test_a_benign_reason_that_only_this_gpu_shows_is_told() -> None:
    assert why(load(3, {"application-clocks": 0.9})) == [
        "application clocks setting active 90 % of the time, on this GPU only"
    ]
    assert why(load(3, {"idle": 0.9, "0x200": 1.0})) == [], "a GPU that waits is not slowed"


def test_a_power_cap_at_a_lower_limit_is_a_cause_with_the_limits() -> None:
    capped = [load(i, {"sw-power-cap": 0.3}) for i in range(3)]
    own = load(3, {"sw-power-cap": 0.95})
    assert why(own, *capped, power=Power(limit_w=400.0)) == [
        "SW power cap active 95 % of the time",
        "its power limit is 400 W, the others have 700",
    ]
    assert why(own, *capped) == [], "at the same limit, with peers that are capped too"


def test_facts_of_the_idle_gpu_give_way_to_what_was_seen_under_load() -> None:
    idle: dict[str, Any] = {"clocks": Clocks(sm_mhz=210, event_reasons=("hw-slowdown",)), "thermal": Thermal(gpu_c=70)}
    assert why(load(3), **idle, pcie=PcieLink(width=1)) == []
    assert why(None, **idle, pcie=PcieLink(width=1)) == [
        "the hardware slows it down",
        "its clock is 210 MHz, the others have 345",
        "its PCIe width is 1 lanes, the others have 16",
        "it is at 70 C, the others at 35 C",
    ]
    no_samples = GpuUnderLoad(3, uuid_of(3), 0)
    assert "the hardware slows it down" in why(no_samples, *PEERS_LOADS, **idle)


def test_where_events_could_not_be_sampled_those_of_the_idle_gpu_are_told() -> None:
    blind = load(3, unread={"event_reasons": Missing("not supported", "unsupported")})
    assert why(blind, clocks=Clocks(event_reasons=("hw-power-brake",))) == ["the power supply brakes it"]


def test_limits_processes_and_numa_nodes_are_told_beside_the_samples() -> None:
    found = why(
        load(3),
        peers={"numa_node": 0},
        processes=(GpuProcess(4711),),
        clocks=Clocks(sm_max_mhz=1200),
        numa_node=1,
    )
    assert found == [
        "pid 4711 computes on it too",
        "its maximum clock is 1200 MHz, the others have 1980",
        "it is on NUMA node 1, the others on 0",
    ]
    assert why(load(3), peers={"numa_node": 1}, numa_node=1) == []


def test_a_gpu_of_another_model_is_no_yardstick() -> None:
    other = gpus(3, "NVIDIA L4", clocks=Clocks(sm_mhz=2040, sm_max_mhz=2040))
    assert causes(gpu(3, **IDLE), other, load(3, sm_mhz=1200.0), PEERS_LOADS) == []


def test_a_gpu_alone_has_only_causes_of_its_own() -> None:
    alone: Gpu = gpu(3, **IDLE)
    assert causes(alone, (), load(3, {"hw-thermal": 0.2}, sm_mhz=600.0)) == [
        "HW thermal slowdown active 20 % of the time"
    ]


def test_the_load_of_a_gpu_is_found_by_its_uuid_in_the_last_round() -> None:
    node = Node(gpus=gpus(2))
    first = Telemetry("train", 1.0, (load(5, uuid=uuid_of(1), sm_mhz=1.0),))
    last = Telemetry("train", 1.0, (load(5, uuid=uuid_of(1), sm_mhz=2.0), load(1, uuid=uuid_of(0), samples=0)))
    case = Case(node=node, measurements=Measurements(telemetry=(first, last)))
    assert present(load_of(case, node.gpus[1], "train")).readings["sm_mhz"].median == 2.0
    assert load_of(case, node.gpus[0], "train") is None, "no samples are no telemetry"
    assert load_of(case, node.gpus[1], "link") is None
