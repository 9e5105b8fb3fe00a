"""Before the GPUs: the kernel module, nvmlInit and its failures; and besides: the processes on a GPU."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpudoctor.facts.model.gpu import GpuProcess, Settings
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.model.node import Driver, Node, PciBus
from gpudoctor.facts.nvml import client
from gpudoctor.facts.nvml.kernel_module import read_kernel_module
from gpudoctor.facts.nvml.read_node import read_nvml
from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault
from tests.checks.one_check import judge, words
from tests.facts.nvml_nodes import Heard, make_node, make_root, read, with_gpu
from tests.narrowed import missing, present
from tests.sysfs_tree import write


def init_error(root: Path, code: int) -> Driver:
    driver, heard, _ = read(root, make_node(2), ScriptedFault("nvmlInit", code=code))
    assert heard.gpus == {}
    assert driver.device_count == Driver().device_count
    return driver


def test_without_the_kernel_module_the_driver_is_never_called(tmp_path: Path) -> None:
    (tmp_path / "sys/module").mkdir(parents=True)
    heard = Heard()
    nvml = FakeNvml(make_node(1))
    driver = read_nvml(heard.take, nvml, tmp_path)
    assert (driver.module_loaded, driver.init_code, driver.calls) == (False, 9, 0)
    assert driver.init_error == "the kernel module nvidia is not loaded"
    assert not nvml.calls
    assert heard.drivers == [driver]


def test_nouveau_in_the_drivers_place_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"/proc/modules": "nouveau 2310144 4 - Live 0x0\ndrm 1 - - Live 0x0"})
    driver = read_kernel_module(tmp_path)
    assert driver.nouveau_loaded is True
    assert driver.init_error == "the kernel module nvidia is not loaded; nouveau is loaded instead"


def test_a_module_that_is_still_coming_is_not_called_yet(tmp_path: Path) -> None:
    driver = read_kernel_module(write(make_root(tmp_path), {"/sys/module/nvidia/initstate": "coming"}))
    assert (driver.module_loaded, driver.init_error) == (False, "the kernel module is coming")


def test_the_module_version_comes_from_proc_where_sys_has_none(tmp_path: Path) -> None:
    version = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n"
        "GCC version:  gcc version 12.3.0"
    )
    write(tmp_path, {"/proc/driver/nvidia/version": version})
    driver = read_kernel_module(tmp_path)
    assert (driver.module_loaded, driver.module_version) == (True, "570.86.15")


@pytest.mark.parametrize("device", ["dxg", "nvidiactl"])
def test_wsl_and_sandboxes_have_no_module_to_see_and_are_asked(device: str, tmp_path: Path) -> None:
    node = make_node(1)
    driver, heard, _ = read(write(tmp_path, {f"/dev/{device}": ""}), node)
    assert isinstance(driver.module_loaded, Missing)
    assert heard.gpus[0] == node.gpus[0]


def test_a_stale_device_node_does_not_pass_for_a_driver(tmp_path: Path) -> None:
    (tmp_path / "sys/module").mkdir(parents=True)
    assert read_kernel_module(write(tmp_path, {"/dev/nvidiactl": ""})).module_loaded is False


def with_library(root: Path, place: str, *, cached: bool = True) -> Path:
    """A root without the kernel module, with a driver library at that place; the loader's cache may know it."""
    (root / "sys/module").mkdir(parents=True)
    names = b"ld.so-1.7.0\0glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0" + place.encode() + b"\0libz.so.1\0"
    return write(root, {place: "", **({"/etc/ld.so.cache": names} if cached else {})})


DEBIAN = f"/usr/lib/{os.uname().machine}-linux-gnu/libnvidia-ml.so.1"
MOCK = "/opt/nvml-mock/lib/libnvidia-ml.so.1"


@pytest.mark.parametrize(
    ("place", "cached", "uid", "device", "modprobe", "asked"),
    [
        (MOCK, True, 0, False, None, True),  # NVIDIA's nvml-mock
        ("/usr/lib64/libnvidia-ml.so.1", False, 0, True, None, True),  # a container runtime without /sys/module/nvidia
        (DEBIAN, True, 1000, False, None, True),  # a user can load no module
        (DEBIAN, True, 0, False, None, False),  # root on a node whose driver is not loaded
        (DEBIAN, True, 0, True, 0o755, False),  # rmmod nvidia leaves the device node: nvmlInit would load it again
        (DEBIAN, True, 1000, True, 0o4755, False),  # nvidia-modprobe does it for users, too
        (DEBIAN, True, 1000, True, 0o755, True),
        (MOCK, True, 0, False, 0o755, False),
        ("/nowhere/libnvidia-ml.so.1", False, 1000, True, None, False),  # no library that a loader would find
    ],
)
def test_a_library_that_may_know_of_a_driver_without_a_module_is_asked_where_that_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    cached: bool,
    uid: int,
    device: bool,
    modprobe: int | None,
    asked: bool,
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    root = with_library(tmp_path, place, cached=cached)
    if device:
        write(root, {"/dev/nvidiactl": ""})
    if modprobe is not None:
        write(root, {"/usr/bin/nvidia-modprobe": ""})
        (root / "usr/bin/nvidia-modprobe").chmod(modprobe)
    nvml = FakeNvml(make_node(1))
    driver = read_nvml(Heard().take, nvml, root)
    assert bool(nvml.calls) is asked
    assert isinstance(driver.module_loaded, Missing) is asked
    assert asked or driver.module_loaded is False


def test_a_library_named_by_the_environment_is_asked_and_its_gpus_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f":relative:{Path(MOCK).parent}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    driver, heard, _ = read(with_library(tmp_path, MOCK, cached=False), make_node(2))
    node = Node(driver=driver, gpus=tuple(heard.gpus.values()), pci=PciBus(nvidia_devices=()))
    told = {check: judge(check, node).status.value for check in ("driver.loaded", "driver.version-match", "gpu.count")}
    assert told == {"driver.loaded": "pass", "driver.version-match": "skip", "gpu.count": "pass"}


def test_the_distributions_own_folder_in_another_spelling_is_still_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", DEBIAN.replace("/lib/", "//lib/./").rpartition("/")[0])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    nvml = FakeNvml(make_node(1))
    assert read_nvml(Heard().take, nvml, with_library(tmp_path, DEBIAN, cached=False)).module_loaded is False
    assert not nvml.calls


def test_a_library_that_finds_no_driver_is_a_driver_that_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    driver = init_error(with_library(tmp_path, DEBIAN), 9)
    result = judge("driver.loaded", Node(driver=driver, pci=PciBus(nvidia_devices=())))
    assert "there is no NVIDIA GPU and no NVIDIA driver on this machine" in words(result)


def test_a_version_mismatch_tells_both_versions(tmp_path: Path) -> None:
    root = make_root(tmp_path, version="535.104.05")
    driver = init_error(root, 18)
    assert (driver.init_code, driver.init_error) == (18, "driver/library version mismatch")
    assert (driver.module_version, driver.library_version) == ("535.104.05", "580.95.05")


def test_a_library_that_cannot_be_loaded_tells_the_loaders_words(tmp_path: Path) -> None:
    driver = init_error(make_root(tmp_path), 12)
    assert driver.init_code == 12
    assert present(driver.init_error).startswith("NVML shared library not found: libnvidia-ml.so.1")


def test_a_count_that_fails_leaves_no_gpus_and_says_why(tmp_path: Path) -> None:
    driver, heard, _ = read(make_root(tmp_path), make_node(2), ScriptedFault("nvmlDeviceGetCount", code=999))
    assert driver.device_count == Missing("nvmlDeviceGetCount: unknown error (999)", "failed")
    assert heard.gpus == {}


def test_the_slowest_call_is_named_with_its_gpu(tmp_path: Path) -> None:
    slow = ScriptedFault("nvmlDeviceGetName", gpu=1, delay_s=0.9)  # longer than a busy machine stalls any other
    driver, _, _ = read(make_root(tmp_path), make_node(2), slow)
    assert driver.slowest_call == "nvmlDeviceGetName on GPU 1"
    assert present(driver.slowest_call_s) >= 0.05


@pytest.mark.parametrize(("without_cpu_s", "slowest_s"), [(0.0, 6.0), (5.5, 0.5), (9.0, 0.3)])
def test_a_call_is_not_slow_for_the_time_in_which_its_thread_had_no_cpu(
    monkeypatch: pytest.MonkeyPatch, without_cpu_s: float, slowest_s: float
) -> None:
    now_s = {"clock": 100.0, "queued": 70.0}
    monkeypatch.setattr(client, "monotonic", lambda: now_s["clock"])
    monkeypatch.setattr(client, "queued_s", lambda: now_s["queued"])

    def takes(clock_s: float, queued_s: float) -> None:
        now_s["clock"] += clock_s
        now_s["queued"] += queued_s

    asked = client.NvmlClient(SimpleNamespace(call=takes, NVMLError=RuntimeError))
    asked.call("call", 0.3, 0.2)  # what an earlier call waited is not this one's time
    asked.call("call", 6.0, without_cpu_s)
    assert asked.slowest_s == pytest.approx(slowest_s)


def test_a_call_that_starts_a_gpu_is_not_the_slowest_call_nor_is_one_that_waits_behind_it(tmp_path: Path) -> None:
    slow = ScriptedFault("nvmlDeviceGetHandleByIndex", gpu=1, delay_s=1.0)
    driver, _, _ = read(make_root(tmp_path), make_node(2), slow, ScriptedFault("nvmlDeviceGetName", gpu=0, delay_s=0.5))
    assert "Handle" not in str(driver.slowest_call)
    assert present(driver.start_s) >= 1.0


def test_confidential_computing_is_the_same_for_every_gpu(tmp_path: Path) -> None:
    node = make_node(2)
    for index in (0, 1):
        node = with_gpu(node, index, settings=Settings(confidential_compute=True))
    _, heard, _ = read(make_root(tmp_path), node)
    assert [gpu.settings.confidential_compute for gpu in heard.gpus.values()] == [True, True]


def add_process(root: Path, pid: int, name: str, parent: int = 1, command: str = "") -> None:
    folder, comm = f"/proc/{pid}", name[:15]
    status = f"Name:\t{comm}\nPPid:\t{parent}"
    write(root, {f"{folder}/comm": comm, f"{folder}/cmdline": f"{command or name}\0-x\0", f"{folder}/status": status})


def processes(root: Path, *given: GpuProcess, own_pid: int = 0) -> tuple[GpuProcess, ...]:
    heard = Heard()
    read_nvml(heard.take, FakeNvml(with_gpu(make_node(1), 0, processes=given)), root, own_pid)
    return present(heard.gpus[0].processes)


def test_processes_have_names_users_kinds_and_memory(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    me = pwd.getpwuid(os.getuid()).pw_name
    add_process(root, 41, "python3")
    add_process(root, 42, "Xorg")
    add_process(root, 43, "very-long-trainer-name", command="/opt/very-long-trainer-name")
    told = (
        GpuProcess(41, "python3", "C", 512, me),
        GpuProcess(42, "Xorg", "C+G", 18, me),
        GpuProcess(43, "very-long-trainer-name", "G", UNSUPPORTED, me),
    )
    assert processes(root, *told) == told


def test_a_process_of_another_namespace_has_no_name_but_is_there(tmp_path: Path) -> None:
    (found,) = processes(make_root(tmp_path), GpuProcess(4711, memory_mib=100))
    assert found.pid == 4711
    assert "4711" in missing(found.name).reason
    assert isinstance(found.user, Missing)
    assert found.memory_mib == 100


def test_clients_of_an_mps_server_are_listed(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    add_process(root, 50, "nvidia-cuda-mps-server")
    add_process(root, 51, "python3")
    found = processes(root, GpuProcess(50, kind="C", memory_mib=30), GpuProcess(51, kind="M", memory_mib=900))
    assert [(process.pid, process.kind) for process in found] == [(50, "C"), (51, "M")]


def test_what_descends_from_gpudoctor_is_its_own(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    for pid, parent in ((60, 1), (61, 60), (62, 61), (63, 1)):
        add_process(root, pid, "python3", parent=parent)
    found = processes(root, *(GpuProcess(pid, memory_mib=1) for pid in (62, 63)), own_pid=60)
    assert [(process.pid, process.is_own) for process in found] == [(62, True), (63, False)]
