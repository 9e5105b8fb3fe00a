"""Reading GPUs through the driver: the facts read, and what one bad answer may cost."""

from __future__ import annotations

import pwd
from collections import Counter
from operator import attrgetter
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import CallError, Gpu, GpuProcess, PcieLink, Thermal
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.nvml import settings
from gpudoctor.facts.nvml.read_node import read_nvml
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault
from tests.facts.nvml_nodes import (
    ABSENT_IN_470,
    ASKED_NOT,
    LAST_FIELD_IN_470,
    Heard,
    make_node,
    of_field,
    read,
    with_gpu,
)
from tests.narrowed import missing, present
from tests.sysfs_tree import write

MIG = "settings.mig_instances"
CARRIED = (
    *("a100-mig-8", "confidential-h100", "container-2-of-8", "dgx-a100-8", "dgx1-v100-8", "gb200-tray-4", "gh200-1"),
    *("h100-nvl-4", "hgx-b200-8", "hgx-h100-8", "l40s-8", "rtx3090-nvlink-2", "rtx4090-4", "t4-cloud-4"),
    "vgpu-guest-1",
)


def comparable(gpu: Gpu, driver: str) -> Gpu:
    """The GPU without what NVML does not report: bridges, a switch's address, why a model lacks a part."""
    links = gpu.nvlinks
    if not isinstance(links, Missing):
        links = tuple(
            replace(link, remote_bus_id=ASKED_NOT) if link.remote_kind == "switch" else link for link in links
        )
    times = gpu.throttle_times
    if tuple(map(int, driver.split("."))) < (575,):
        times = replace(times, hw_thermal_us=UNSUPPORTED, hw_power_brake_us=UNSUPPORTED)
    pcie = replace(gpu.pcie, host_generation_max=UNSUPPORTED, path=PcieLink().path)
    gpu = replace(gpu, nvlinks=links, throttle_times=times, pcie=pcie)
    return msgspec.convert(_one_reason(msgspec.to_builtins(gpu)), Gpu)


def _one_reason(raw: Any) -> Any:
    if isinstance(raw, dict):
        if raw.get("kind") == "unsupported":
            return msgspec.to_builtins(UNSUPPORTED)
        return {key: _one_reason(value) for key, value in raw.items()}
    return raw


def test_every_leaf_comes_back_as_the_driver_told_it(root: Path) -> None:
    node = make_node(2)
    driver, heard, nvml = read(root, node)
    assert heard.gpus == {0: node.gpus[0], 1: node.gpus[1]}
    assert tuple(heard.pairs_by_name.values()) == node.pairs
    assert nvml.unknown == set()
    assert driver.init_code == 0
    assert driver.library_version == driver.module_version == "580.95.05"
    assert (driver.cuda_version, driver.device_count) == ("13.0", 2)


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("name", CARRIED)
def test_a_node_of_each_kind_comes_back_through_the_driver(name: str, root: Path) -> None:
    node = load_node(name)
    version = present(node.driver.library_version)
    _, heard, _ = read(root, node)
    assert len(heard.gpus) == len(node.gpus)
    for gpu in node.gpus:
        assert comparable(heard.gpus[gpu.index], version) == comparable(gpu, version)
    if not isinstance(node.pairs, Missing):
        assert sorted(heard.pairs_by_name.values(), key=lambda pair: (pair.a, pair.b)) == list(node.pairs)


@pytest.mark.parametrize("name", ["hgx-h100-8", "h100-nvl-4", "dgx1-v100-8", "gb200-tray-4", "rtx4090-8"])
def test_a_gpu_costs_at_most_61_driver_calls_besides_its_pairs(name: str, root: Path) -> None:
    node = load_node(name)
    for gpu in node.gpus:
        device = f"/sys/bus/pci/devices/{gpu.bus_id}"
        write(root, {f"{device}/numa_node": "0", f"{device}/local_cpulist": "0-7"})
        minor = "Model: \t\t NVIDIA\nDevice Minor: \t 5"
        write(root, {f"/proc/driver/nvidia/gpus/{gpu.bus_id}/information": minor})
    driver, heard, nvml = read(root, node)
    costs: Counter[int | None] = Counter()
    for (call, gpu_index), count in nvml.calls.items():
        if call not in ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"):
            costs[gpu_index] += count
    assert max(costs.values()) <= 61, costs
    assert driver.calls == sum(nvml.calls.values())
    # and those that /sys and /proc spared were read there
    assert {(gpu.numa_node, gpu.cpu_affinity, gpu.minor_number) for gpu in heard.gpus.values()} == {(0, "0-7", 5)}


def test_a_gpu_without_a_numa_node_in_sysfs_has_none(root: Path) -> None:
    write(root, {"/sys/bus/pci/devices/0000:18:00.0/numa_node": "-1"})
    _, heard, _ = read(root, make_node(1))
    assert heard.gpus[0].numa_node is None


def test_a_470_driver_tells_what_it_has_and_the_rest_is_unsupported(root: Path) -> None:
    node = make_node(2, driver="470.57.02", links=12)
    limits = Thermal(
        gpu_c=41,
        memory_c=52,
        slowdown_c=90,
        shutdown_c=95,
        memory_max_c=105,
        max_operating_c=87,
        margin_c=UNSUPPORTED,
        slowdown_margin_c=UNSUPPORTED,
        shutdown_margin_c=UNSUPPORTED,
        max_operating_margin_c=UNSUPPORTED,
    )
    node = replace(node, gpus=tuple(replace(gpu, thermal=limits) for gpu in node.gpus))
    driver, heard, _ = read(root, node, absent=ABSENT_IN_470, last_field=LAST_FIELD_IN_470)
    gpu, told = heard.gpus[1], node.gpus[1]
    assert driver.init_code == 0
    for leaf in (gpu.module_id, gpu.memory_reserved_mib, gpu.fabric.state, gpu.recovery_action):
        assert leaf == UNSUPPORTED
    assert gpu.settings.confidential_compute == UNSUPPORTED
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (81559, 17)
    assert gpu.thermal == limits
    # the getters that fields replaced later
    assert gpu.power == told.power
    assert gpu.clocks.event_reasons == told.clocks.event_reasons
    assert (gpu.ecc.sram_uncorrected_volatile, gpu.ecc.sram_threshold_exceeded) == (5, UNSUPPORTED)
    assert gpu.processes == ()
    links = present(gpu.nvlinks)
    assert {(link.state, link.version, link.remote_kind) for link in links} == {("active", "4.0", "switch")}
    assert gpu.errors == ()


@pytest.mark.parametrize(
    ("driver", "ids"), [("575.57.08", (251, 252, 253)), ("580.65.06", (251, 252, 253)), ("580.82.07", (269, 270, 271))]
)
def test_throttle_times_follow_the_renumbering_of_their_fields(driver: str, ids: tuple[int, ...], root: Path) -> None:
    faults = [of_field(field, value=field * 1000) for field in (*range(251, 254), *ids)]
    _, heard, _ = read(root, make_node(1, driver=driver), *faults)
    times = heard.gpus[0].throttle_times
    assert (times.sw_thermal_us, times.hw_thermal_us, times.hw_power_brake_us) == ids
    assert (times.sw_power_cap_us, times.sync_boost_us) == (11, 12)


@pytest.mark.parametrize("driver", ["535.247.01", "550.127.05", "570.172.08", "580.76.05"])
def test_fields_that_are_power_smoothings_or_unsure_are_no_throttle_times(driver: str, root: Path) -> None:
    """A B200 on driver 570 reports that power smoothing is on (251) at privilege level 2 (252)."""
    faults = [of_field(field, value=field * 1000) for field in (251, 252, 253)]
    _, heard, _ = read(root, make_node(1, driver=driver), *faults)
    times = heard.gpus[0].throttle_times
    assert (times.sw_thermal_us, times.hw_thermal_us, times.hw_power_brake_us) == (13, UNSUPPORTED, UNSUPPORTED)


@pytest.mark.parametrize(
    ("call", "value", "leaf"),
    [
        ("nvmlDeviceGetTemperature", 255, "thermal.gpu_c"),
        ("nvmlDeviceGetCurrPcieLinkWidth", 0, "pcie.width"),
        ("nvmlDeviceGetCurrPcieLinkGeneration", 0, "pcie.generation"),
        ("nvmlDeviceGetMaxClockInfo", 0xFFFFFFFF, "clocks.sm_max_mhz"),
        ("nvmlDeviceGetPerformanceState", 77, "clocks.performance_state"),
        ("nvmlDeviceGetPersistenceMode", 2, "settings.persistence"),
        ("nvmlDeviceGetComputeMode", 9, "settings.compute_mode"),
    ],
)
def test_an_impossible_answer_is_a_failure_that_quotes_it(call: str, value: int, leaf: str, root: Path) -> None:
    node = make_node(2)
    _, heard, _ = read(root, node, ScriptedFault(call, gpu=1, value=value))
    assert missing(attrgetter(leaf)(heard.gpus[1]), "failed", str(value), call)
    assert heard.gpus[0] == node.gpus[0]


@pytest.mark.parametrize(
    ("field", "value", "leaf"),
    [
        (190, 0xFFFFFFFF, "power.limit_w"),
        (4, (1 << 64) - 1, "ecc.uncorrected_volatile"),
        (144, 7, "memory_repair.remap_pending"),
        (194, -1000, "thermal.slowdown_margin_c"),
        (94, (1 << 64) - 1, "pcie.replays"),
    ],
)
def test_an_impossible_field_value_is_a_failure(field: int, value: int, leaf: str, root: Path) -> None:
    getter = ScriptedFault("nvmlDevice*", gpu=0, code=3)  # no getter helps out
    calls = ("*EnforcedPowerLimit", "*TotalEccErrors", "*PcieReplayCounter")
    faults = [of_field(field, value=value)]
    faults += [replace(getter, call=call) for call in calls]
    _, heard, _ = read(root, make_node(1), *faults)
    assert missing(attrgetter(leaf)(heard.gpus[0]), "failed", str(value))


@pytest.mark.parametrize(("code", "words"), [(15, "GPU is lost"), (16, "GPU requires reset"), (999, "unknown error")])
def test_a_tainting_error_is_noted_and_costs_only_its_own_leaf(code: int, words: str, root: Path) -> None:
    node = make_node(3)
    _, heard, _ = read(root, node, ScriptedFault("nvmlDeviceGetTemperature", gpu=1, code=code))
    hurt = heard.gpus[1]
    assert hurt.errors == (CallError("nvmlDeviceGetTemperature", code, words),)
    reason = Missing(f"nvmlDeviceGetTemperature: {words} ({code})", "failed")
    assert hurt == replace(node.gpus[1], thermal=replace(node.gpus[1].thermal, gpu_c=reason), errors=hurt.errors)
    assert (heard.gpus[0], heard.gpus[2]) == (node.gpus[0], node.gpus[2])


def test_a_gpu_that_is_lost_midway_keeps_what_was_read_before(root: Path) -> None:
    node = make_node(2)
    _, heard, _ = read(root, node, ScriptedFault("nvmlDeviceGet[!HPUNBA]*", gpu=0, code=15))
    lost = heard.gpus[0]
    assert lost.name == "NVIDIA H100 80GB HBM3"
    assert missing(lost.memory_total_mib).kind == "failed"
    assert {error.code for error in lost.errors} == {15}
    assert len({error.call for error in lost.errors}) == len(lost.errors)
    assert heard.gpus[1] == node.gpus[1]


def test_a_field_that_answers_lost_taints_the_gpu_but_unknown_costs_only_itself(root: Path) -> None:
    lost = of_field(82, 0, code=15)
    odd = of_field(82, 1, code=999)
    _, heard, _ = read(root, make_node(2), lost, odd)
    assert [error.code for error in heard.gpus[0].errors] == [15]
    assert heard.gpus[1].errors == ()
    assert missing(heard.gpus[1].thermal.memory_c).kind == "failed"


def test_when_field_values_fail_as_a_whole_the_getters_still_speak(root: Path) -> None:
    node = make_node(1)
    _, heard, _ = read(root, node, ScriptedFault("nvmlDeviceGetFieldValues", code=10))
    gpu = heard.gpus[0]
    assert gpu.power == node.gpus[0].power
    assert gpu.ecc.uncorrected_volatile == 2
    assert gpu.pcie.replays == 3
    assert missing(gpu.nvlinks, "failed", "timeout (10)")


def test_text_that_is_not_text_is_a_failure_of_that_leaf_alone(root: Path) -> None:
    node = make_node(1)
    nvml = FakeNvml(node)

    class Garbled:
        def __getattr__(self, name: str) -> Any:
            if name == "nvmlDeviceGetSerial":
                return lambda handle: b"\xff\xfe".decode()
            return getattr(nvml, name)

    heard = Heard()
    read_nvml(heard.take, Garbled(), root)
    serial = missing(heard.gpus[0].serial)
    assert serial.kind == "failed"
    assert replace(heard.gpus[0], serial=node.gpus[0].serial) == node.gpus[0]


def test_a_count_of_eight_with_seven_handles_says_which_one_is_missing(root: Path) -> None:
    node = make_node(8)
    driver, heard, _ = read(root, node, ScriptedFault("nvmlDeviceGetHandleByIndex", gpu=3, code=15))
    assert driver.device_count == 8
    assert sorted(heard.gpus) == [0, 1, 2, 4, 5, 6, 7]
    assert heard.handle_errors == {3: "GPU is lost (15)"}
    assert len(heard.pairs_by_name) == 21


def test_parts_of_a_gpu_are_told_as_they_come(root: Path) -> None:
    node = make_node(1)
    _, heard, _ = read(root, node)
    assert (heard.parts[0].bus_id, heard.parts[0].uuid) == ("0000:18:00.0", Gpu(0, "").uuid)
    assert heard.parts[1].uuid == node.gpus[0].uuid
    assert len(heard.parts) > 8


@pytest.mark.parametrize(
    ("odd", "leaf", "value"),
    [
        (ScriptedFault("nvmlDeviceGetPerformanceState", value=32), "clocks.performance_state", UNSUPPORTED),
        # a board without that sensor
        (of_field(82, value=0), "thermal.memory_c", UNSUPPORTED),
        (of_field(230, value=9), "recovery_action", "value 9"),
        # negative, told as an unsigned number
        (of_field(193, value=(1 << 32) - 8), "thermal.shutdown_margin_c", -8),
        (of_field(193, value=(1 << 64) - 8), "thermal.shutdown_margin_c", -8),
    ],
)
def test_an_odd_answer_of_a_healthy_gpu_is_no_failure(root: Path, odd: ScriptedFault, leaf: str, value: Any) -> None:
    _, heard, _ = read(root, make_node(1), odd)
    assert attrgetter(leaf)(heard.gpus[0]) == value


@pytest.mark.parametrize(
    ("faults", "leaf", "kind", "words"),
    [
        ([ScriptedFault("nvmlDeviceGetUtilizationRates", code=4)], "utilization.gpu_pct", "denied", "permissions (4)"),
        ([ScriptedFault("nvmlDeviceGetModuleId", value=2)], "module_id", "failed", "invalid argument (2)"),
        ([ScriptedFault("nvmlDeviceGetMaxMigDeviceCount", code=10)], MIG, "failed", "timeout (10)"),
        ([ScriptedFault("nvmlDeviceGetMigDeviceHandleByIndex", code=4)], MIG, "denied", "permissions (4)"),
        ([ScriptedFault("nvmlDeviceGetMigDeviceHandleByIndex", code=10)], MIG, "failed", "timeout (10)"),
        ([of_field(91, code=3), ScriptedFault("*NvLinkState", code=10)], "nvlinks", "failed", "timeout (10)"),
    ],
)
def test_what_is_refused_is_neither_unsupported_nor_an_empty_list(
    root: Path, faults: list[ScriptedFault], leaf: str, kind: str, words: str
) -> None:
    _, heard, _ = read(root, load_node("a100-mig-8"), *faults)
    assert missing(attrgetter(leaf)(heard.gpus[0]), kind, words)
    assert heard.gpus[0].errors == ()


def test_ecc_of_a_gpu_without_it_asks_for_nothing_more(root: Path) -> None:
    faults = (of_field(1, code=3), ScriptedFault("nvmlDeviceGetEccMode", code=3))
    _, heard, nvml = read(root, make_node(1), *faults)
    assert set(msgspec.structs.astuple(heard.gpus[0].ecc)) == {UNSUPPORTED}
    assert ("nvmlDeviceGetSramEccErrorStatus", 0) not in nvml.calls


def test_a_function_that_the_driver_lacks_is_asked_for_once(root: Path) -> None:
    node = make_node(1)
    _, heard, nvml = read(root, node, absent=("nvmlDeviceGetUnrepairableMemoryFlag_v1",))
    assert heard.gpus[0].memory_repair.unrepairable == UNSUPPORTED
    _, heard, nvml = read(root, node, absent=("nvmlDeviceGetClockInfo",))
    assert heard.gpus[0].clocks.memory_mhz == UNSUPPORTED
    assert nvml.calls["nvmlDeviceGetClockInfo", 0] == 1


@pytest.mark.parametrize("version", ["470.57.02", "535.43.02", "535.86.10", "535.98", "570.172.08"])
def test_processes_are_read_from_every_size_of_the_drivers_struct(root: Path, version: str) -> None:
    pids = (4242, 4243, 4244)
    node = make_node(1, driver=version)
    running = tuple(GpuProcess(pid, kind="C", memory_mib=5) for pid in pids)
    node = with_gpu(node, 0, processes=running)
    absent = ABSENT_IN_470 if version.startswith("470") else ()
    found = present(read(root, node, absent=absent)[1].gpus[0].processes)
    assert tuple((process.pid, process.memory_mib) for process in found) == tuple((pid, 5) for pid in pids)


def test_the_inforom_is_not_read_beside_a_job(root: Path) -> None:
    job = (GpuProcess(4242, kind="C", memory_mib=5),)
    _, heard, nvml = read(root, with_gpu(make_node(2), 1, processes=job))
    assert (nvml.calls["nvmlDeviceValidateInforom", 0], nvml.calls["nvmlDeviceValidateInforom", 1]) == (1, 0)
    assert "while a process uses the GPU" in missing(heard.gpus[1].inforom_corrupted).reason


def test_a_directory_of_users_that_does_not_answer_costs_only_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Event()
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=f"found after {answer.wait()}"))
    monkeypatch.setattr(settings, "_NAME_LOOKUP_S", 0.01)
    assert settings._user_name(4_000_000_001) == "4000000001"
    answer.set()
