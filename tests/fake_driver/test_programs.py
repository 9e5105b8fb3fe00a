"""nvitop, gpustat and gpudoctor's own reader see the simulated node, each through its own calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, from_json, to_json
from gpudoctor.facts.nvml.read_node import version_numbers
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.testing.run_program import FLAGS, LIBRARY, SOURCES, find_compiler
from gpudoctor.testing.table_node import answers_of
from tests.fake_driver.conftest import Run
from tests.needs import find, needs
from tests.subprocesses import completed

GPUDOCTOR = (sys.executable, "-m", "gpudoctor")
NVITOP = """
import json
from nvitop import Device
shown = []
for d in Device.all():
    shown.append({
        "index": d.index, "uuid": d.uuid(), "name": d.name(), "bus_id": d.bus_id(), "total": d.memory_total(),
        "used": d.memory_used(), "free": d.memory_free(), "temperature": d.temperature(), "power_mw": d.power_usage(),
        "limit_mw": d.power_limit(), "busy": d.gpu_utilization(), "sm_mhz": d.sm_clock(),
        "state": d.performance_state(),
        "persistence": d.persistence_mode(), "compute": d.compute_mode(), "mig": d.mig_mode(),
        "ecc": d.total_volatile_uncorrected_ecc_errors(), "capability": d.cuda_compute_capability(),
        "processes": sorted(d.processes()), "fan": d.fan_speed(), "display": d.display_active(),
    })
print(json.dumps([Device.driver_version(), Device.cuda_driver_version(), shown], default=str))
"""


def mib(leaf: int | Missing) -> Any:
    return "N/A" if isinstance(leaf, Missing) else leaf << 20


def as_nvitop_says(gpu: Gpu) -> dict[str, Any]:
    def told(leaf: Any, value: Any) -> Any:
        return "N/A" if isinstance(leaf, Missing) else value

    switch = {True: "Enabled", False: "Disabled"}
    settings, power = gpu.settings, gpu.power
    capability = str(gpu.compute_capability).split(".")
    state = gpu.clocks.performance_state
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "bus_id": f"0000{gpu.bus_id}".upper(),
        "total": mib(gpu.memory_total_mib),
        "used": mib(gpu.memory_used_mib),
        "free": mib(gpu.memory_free_mib),
        "temperature": told(gpu.thermal.gpu_c, gpu.thermal.gpu_c),
        "power_mw": told(
            power.draw_w, power.draw_w if isinstance(power.draw_w, Missing) else round(power.draw_w * 1e3)
        ),
        "limit_mw": told(power.requested_limit_w, round(float(str(power.requested_limit_w)) * 1e3)),
        "busy": told(gpu.utilization.gpu_pct, gpu.utilization.gpu_pct),
        "sm_mhz": told(gpu.clocks.sm_mhz, gpu.clocks.sm_mhz),
        "state": told(state, f"P{state}"),
        "persistence": switch[settings.persistence is True],
        "compute": "Default",
        "mig": told(settings.mig_enabled, switch[settings.mig_enabled is True]),
        "ecc": told(gpu.ecc.uncorrected_volatile, gpu.ecc.uncorrected_volatile),
        "capability": [int(part) for part in capability],
        "processes": sorted(process.pid for process in gpu.processes) if isinstance(gpu.processes, tuple) else [],
        "fan": "N/A",
        "display": "Disabled",
    }


@pytest.mark.wide(but=["hgx-h100-8"])
@needs("nvitop")
@pytest.mark.parametrize("name", ["hgx-h100-8", "t4-cloud-4", "dgx-a100-8"])
def test_nvitop_shows_what_the_node_file_says(run: Run, name: str) -> None:
    done = run(name, sys.executable, "-c", NVITOP)
    assert done.returncode == 0, done.stderr
    driver, cuda, shown = json.loads(done.stdout)
    node = load_node(name, {})
    assert (driver, cuda) == (node.driver.library_version, node.driver.cuda_version)
    assert shown == [as_nvitop_says(gpu) for gpu in sorted(node.gpus, key=lambda gpu: gpu.index)]
    # every function that nvitop called is known to the library
    assert "FunctionNotFound" not in done.stderr


@pytest.mark.wide
@needs("nvitop")
def test_nvitop_shows_a_lost_gpu_without_values_beside_seven_with(run: Run) -> None:
    done = run("hgx-h100-8", sys.executable, "-c", NVITOP, faults=("gpu-lost@2",))
    shown = json.loads(done.stdout)[2]
    assert [gpu["temperature"] == "N/A" for gpu in shown] == [index == 2 for index in range(8)]
    assert [gpu["used"] == "N/A" for gpu in shown] == [index == 2 for index in range(8)]


@pytest.mark.wide
@needs("nvitop")
def test_nvitop_itself_runs_once_and_ends(run: Run) -> None:
    done = run("hgx-h100-8", sys.executable, "-m", "nvitop", "-1", faults=("gpu-lost@2",))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("H100 80GB HBM3") == 8
    assert "570.172.08" in done.stdout


@pytest.mark.wide
@needs("gpustat")
def test_gpustat_shows_what_the_node_file_says(run: Run) -> None:
    done = run("hgx-h100-8", str(find("gpustat")), "--json", faults=("gpu-lost@2",))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    node = load_node("hgx-h100-8", {})
    assert told["driver_version"] == node.driver.library_version
    for shown, gpu in zip(told["gpus"], node.gpus, strict=True):
        lost = gpu.index == 2
        assert (shown["index"], shown["uuid"], shown["name"]) == (gpu.index, gpu.uuid, gpu.name)
        assert shown["temperature.gpu"] == (None if lost else gpu.thermal.gpu_c)
        if not lost:
            assert shown["memory.total"] == gpu.memory_total_mib
            assert shown["utilization.gpu"] == gpu.utilization.gpu_pct


def comparable(gpu: Gpu, driver: tuple[int, ...]) -> Gpu:
    """Without the address of a switch, which our reader does not ask for, and counters that NVML has from 575 on."""
    hidden = Missing("not compared")
    if driver < (575,):
        times = replace(gpu.throttle_times, hw_thermal_us=hidden, hw_power_brake_us=hidden)
        gpu = replace(gpu, throttle_times=times)
    if isinstance(gpu.nvlinks, Missing):
        return gpu
    return replace(gpu, nvlinks=tuple(replace(link, remote_bus_id=hidden) for link in gpu.nvlinks))


@pytest.mark.wide(but=["hgx-h100-8"])
@pytest.mark.parametrize("name", ["hgx-h100-8", "t4-cloud-4", "a10g-cloud-1", "rtx3090-nvlink-2", "wsl2-1"])
def test_our_own_reader_gives_back_the_node_file(run: Run, name: str) -> None:
    done = run(name, *GPUDOCTOR, "facts")
    assert done.returncode == 0, done.stderr
    read, node = from_json(done.stdout), load_node(name, {})
    driver = version_numbers(node.driver.library_version)
    assert [comparable(gpu, driver) for gpu in read.gpus] == [comparable(gpu, driver) for gpu in node.gpus]
    assert read.pairs == node.pairs
    assert read.driver.module_version == node.driver.module_version
    assert (read.pci, read.kernel_log, read.host) == (node.pci, node.kernel_log, node.host)
    assert isinstance(read.driver.calls, int)
    assert read.driver.calls > len(node.gpus) * 20  # the driver was called


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"]}


@pytest.mark.wide(every=5)
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a100-mig-8", None),
        ("cpu-only", None),
        ("hgx-h100-8", "gpu-lost@2"),
        ("hgx-h100-8", "gpu-handle-denied@3"),
        ("hgx-h100-8", "row-remap-pending@1"),
    ],
)
def test_the_verdict_is_that_of_the_simulated_node_and_simulated(run: Run, name: str, fault: str | None) -> None:
    from contextlib import redirect_stdout
    from io import StringIO

    from gpudoctor.cli.main import main

    asked = () if fault is None else (fault,)
    out = StringIO()
    with redirect_stdout(out):
        code = main(["check", "--level", "quick", "--json", "--node", name, *(f"--fault={one}" for one in asked)])
    done = run(name, *GPUDOCTOR, "check", "--level", "quick", "--json", faults=asked)
    report = json.loads(done.stdout)
    assert (report["simulated"], report["run"]["source"]["kind"]) == (True, "simulated")
    assert done.returncode == code
    assert statuses(report) == statuses(json.loads(out.getvalue()))


@pytest.mark.wide(but=["json"])
@pytest.mark.parametrize("form", ["text", "json", "nagios", "junit", "html", "prometheus"])
def test_every_output_under_the_fake_driver_says_simulated(run: Run, form: str) -> None:
    done = run("t4-cloud-4", *GPUDOCTOR, "check", "--level", "quick", "--format", form)
    assert "simulated" in done.stdout.lower()
    assert '"live"' not in done.stdout


def test_a_call_that_hangs_is_named_and_the_other_gpus_are_judged(run: Run) -> None:
    words = ("check", "--level", "quick", "--json", "--include-facts")
    done = run("hgx-h100-8", *GPUDOCTOR, *words, faults=("driver-hang@3",))
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (1, "fail")
    checks = {check["id"]: check for check in report["checks"]}
    responsive = checks["driver.responsive"]
    assert responsive["status"] == "fail"
    assert "nvmlDeviceGetFieldValues on GPU 3 did not return" in json.dumps(responsive)
    read = {gpu["index"]: isinstance(gpu["memory_total_mib"], int) for gpu in report["facts"]["gpus"]}
    assert read == {index: index != 3 for index in range(8)}
    assert report["run"]["duration_s"] < 60.0


def test_gpus_without_persistence_mode_wake_one_after_the_other_and_the_node_passes(run: Run, tmp_path: Path) -> None:
    # as `fake-driver --node cold-start-8`, whose GPUs take 2 s each
    node = load_node("cold-start-8")
    file = tmp_path / "node.json"
    file.write_bytes(to_json(replace(node, driver=replace(node.driver, start_s=1.6))))
    done = run(str(file), *GPUDOCTOR, "check", "--level", "quick")
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())
    told = re.search(r"PASS driver [^:]* persistence mode is off: the driver took ([0-9.]+) s to wake", shown)
    assert told is not None
    assert float(told[1]) >= 1.6
    assert "PASS nothing wrong" in shown


@pytest.mark.wide
def test_a_driver_that_stalls_once_costs_nothing_and_is_told(run: Run) -> None:
    words = ("check", "--level", "quick", "--json", "--include-facts")
    # one GPU: beside the start of another one, which may wait behind the stall, nobody can tell whose time it is
    done = run("gh200-1", *GPUDOCTOR, *words, faults=("driver-stall@0:1.2s",))
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (0, "pass")
    driver = report["facts"]["driver"]
    assert driver["slowest_call"] == "nvmlDeviceGetFieldValues on GPU 0"
    assert "unanswered" not in driver


@pytest.mark.wide
def test_a_mock_driver_on_a_machine_without_the_kernel_module_is_read(environ: dict[str, str], tmp_path: Path) -> None:
    # as NVIDIA's nvml-mock: a library on LD_LIBRARY_PATH, and nothing in /sys. gpudoctor does not know that it is ours
    if Path("/sys/module/nvidia").exists() or Path("/usr/bin/nvidia-modprobe").exists():
        pytest.skip("this machine has a driver of its own")
    node = load_node("hgx-h100-8", {})
    (tmp_path / "answers").write_bytes(answers_of(node))
    source = tmp_path / "mock.c"
    found = f'setenv("GPUDOCTOR_FAKE_DRIVER", "{tmp_path}", 1);'
    own = f"#include <stdlib.h>\n__attribute__((constructor)) static void know_the_answers(void) {{ {found} }}\n"
    source.write_text(f'{own}#include "{SOURCES[0]}"\n', encoding="utf-8")
    library = str(tmp_path / LIBRARY)
    subprocess.run([*find_compiler(os.environ), *FLAGS, "-o", library, str(source)], check=True, timeout=60)
    done = completed(
        [*GPUDOCTOR, "check", "driver", "gpu.count", "gpu.lost", "--json", "--include-facts"],
        env={**environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )
    report = json.loads(done.stdout)
    told = {check["id"]: check["status"] for check in report["checks"]}
    assert told == {
        "driver.loaded": "pass",
        "driver.version-match": "skip",
        "driver.responsive": "pass",
        "driver.fabric-manager": told["driver.fabric-manager"],  # of the machine that the test runs on
        "gpu.count": "pass",
        "gpu.lost": "pass",
    }
    assert (done.returncode, len(report["facts"]["gpus"]), report["run"]["source"]["kind"]) == (0, 8, "live")


def test_a_capture_becomes_simulated_when_its_driver_is_played(run: Run, tmp_path: Path) -> None:
    node = load_node("t4-cloud-4", {})
    file = tmp_path / "node.json"
    file.write_bytes(to_json(replace(node, source=replace(node.source, kind="capture", name="rack 7"))))
    read: Node = from_json(run(str(file), *GPUDOCTOR, "facts").stdout)
    assert read.source.kind == "simulated"


def test_a_folder_that_is_gone_is_an_error_and_never_this_machine(environ: dict[str, str]) -> None:
    env = {**environ, "GPUDOCTOR_FAKE_DRIVER": "/no/such/folder"}
    done = completed([*GPUDOCTOR, "check", "--level", "quick"], env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no fake driver is there" in done.stderr


@pytest.mark.wide
def test_links_that_a_capture_does_not_tell_are_no_fault_when_its_driver_is_played(run: Run, captures: Path) -> None:
    done = run(str(captures / "qx-h100.xml"), *GPUDOCTOR, "check", "--level", "quick", "--json")
    told = statuses(json.loads(done.stdout))
    assert (done.returncode, told["nvlink.topology"]) == (0, "skip")
