"""The library itself: what pynvml gets for faults, MIG, old drivers, and hostile facts."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import msgspec
import pynvml
import pytest
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, GpuProcess, MigInstance
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Node, Unanswered, to_json
from gpudoctor.testing.run_program import FLAGS, SOURCES, find_compiler
from tests.fake_driver.conftest import COMMAND, Ask
from tests.subprocesses import completed

CODES = """
def code(call):
    try:
        call()
    except N.NVMLError as error:
        return error.value
    return 0
"""


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("branch", [470, 535, 580])
def test_the_source_builds_without_a_warning(cache: Path, tmp_path: Path, branch: int) -> None:
    library = tmp_path / "made.so"
    strict = ("-Wall", "-Wextra", "-Werror")
    words = [*find_compiler({"PATH": "/usr/bin:/bin"}), *FLAGS, *strict, f"-DDRIVER={branch}", "-o", str(library)]
    done = completed([*words, str(SOURCES[0])])
    assert (done.returncode, done.stderr) == (0, "")
    made = ctypes.CDLL(str(library))
    # a driver of that age has no such functions
    assert hasattr(made, "nvmlDeviceGetMemoryInfo_v2") is (branch >= 510)
    assert hasattr(made, "nvmlDeviceGetRepairStatus") is (branch >= 565)
    assert hasattr(made, "nvmlDeviceGetUUID")


def test_our_structs_are_as_large_as_those_of_the_binding() -> None:
    assert ctypes.sizeof(pynvml.nvmlPciInfo_t) == 68
    assert ctypes.sizeof(pynvml.c_nvmlMemory_v2_t) == 40
    assert ctypes.sizeof(pynvml.c_nvmlProcessInfo_v3_t) == 24
    assert ctypes.sizeof(pynvml.c_nvmlFieldValue_t) == 40
    assert ctypes.sizeof(pynvml.c_nvmlEccSramErrorStatus_v1_t) == 104


def test_a_lost_gpu_answers_that_it_is_lost_and_the_others_do_not(ask: Ask) -> None:
    code = (
        f"{CODES}"
        "def codes(h): return [code(lambda: N.nvmlDeviceGetTemperature(h, 0)),"
        " code(lambda: N.nvmlDeviceGetMemoryInfo(h)), code(lambda: N.nvmlDeviceGetFanSpeed(h))]\n"
        "print(json.dumps([codes(g(1)), codes(g(2))]))"
    )
    told = ask("hgx-h100-8", code, ("gpu-lost@2",))
    assert told == [[0, 0, 3], [15, 15, 15]]


def test_handles_are_found_by_uuid_and_by_bus_id_in_any_form(ask: Ask) -> None:
    told = ask(
        "hgx-h100-8",
        "u = N.nvmlDeviceGetUUID(g(5))\n"
        "by = [N.nvmlDeviceGetHandleByUUID(u)]\n"
        "by += [N.nvmlDeviceGetHandleByPciBusId(b) for b in ('0000:AB:00.0', '00000000:ab:00.0', 'AB:00.0')]\n"
        "print(json.dumps([N.nvmlDeviceGetIndex(h) for h in by]))",
    )
    assert told == [5, 5, 5, 5]


def test_wrong_arguments_get_the_codes_of_the_real_library(ask: Ask) -> None:
    told = ask(
        "t4-cloud-4",
        f"{CODES}"
        "print(json.dumps([code(lambda: g(9)), code(lambda: N.nvmlDeviceGetHandleByUUID('GPU-no')),"
        " code(lambda: N.nvmlDeviceGetName(N.c_nvmlDevice_t())), code(lambda: N.nvmlDeviceGetClockInfo(g(0), 99)),"
        " code(lambda: N.nvmlDeviceGetMemoryInfo(g(0), 7)), code(N.nvmlShutdown),"
        " code(N.nvmlDeviceGetCount)]))",
    )
    assert told == [2, 6, 2, 3, 25, 0, 1]


@pytest.mark.wide
def test_mig_instances_have_handles_of_their_own(ask: Ask) -> None:
    told = ask(
        "a100-mig-8",
        "m = N.nvmlDeviceGetMigDeviceHandleByIndex(g(0), 0)\n"
        "up = N.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)\n"
        "print(json.dumps([N.nvmlDeviceGetName(m), N.nvmlDeviceIsMigDeviceHandle(m).value, N.nvmlDeviceGetIndex(up)]))",
    )
    assert " MIG " in told[0]
    assert told[1:] == [1, 0]


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("code", [9, 18])
def test_a_driver_that_does_not_start_says_why(ask: Ask, tmp_path: Path, code: int) -> None:
    node = Node(driver=Driver(module_loaded=True, init_code=code))
    with pytest.raises(AssertionError, match={9: "DriverNotLoaded", 18: "LibRmVersionMismatch"}[code]):
        ask(_file(tmp_path, node), "")


def test_processes_are_told_to_each_form_of_the_call(ask: Ask, tmp_path: Path) -> None:
    processes = (GpuProcess(7, kind="C+G", memory_mib=5), GpuProcess(8, kind="C", memory_mib=Missing("no", "denied")))
    node = Node(driver=Driver(init_code=0), gpus=(Gpu(0, "0000:01:00.0", processes=processes),))
    told = ask(
        _file(tmp_path, node),
        "def of(name): return [[p.pid, p.usedGpuMemory] for p in getattr(N, name)(g(0))]\n"
        "print(json.dumps([of(f'nvmlDeviceGet{k}RunningProcesses_v{v}') for k in ('Compute', 'Graphics')"
        " for v in (2, 3)]))",
    )
    both, one = [[7, 5 << 20], [8, None]], [[7, 5 << 20]]
    assert told == [both, both, one, one]


def test_a_driver_of_the_larger_process_struct_confuses_a_binding_that_does_not_know_it(
    ask: Ask, tmp_path: Path
) -> None:
    processes = tuple(GpuProcess(pid, kind="C", memory_mib=5) for pid in (7, 8))
    driver = Driver(init_code=0, library_version="535.54.03")
    told = ask(
        _file(tmp_path, Node(driver=driver, gpus=(Gpu(0, "0000:01:00.0", processes=processes),))),
        "def of(v): return [p.pid for p in getattr(N, f'nvmlDeviceGetComputeRunningProcesses_v{v}')(g(0))]\n"
        "print(json.dumps([of(2), of(3)]))",
    )
    assert told == [[7, 8], [7, 0]]


def test_the_total_of_its_memory_is_enough_of_a_gpu_that_somebody_wrote(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "schema: gpudoctor.facts/1\nsource: {kind: simulated}\ndriver: {init_code: 0, device_count: 3}\ngpus:\n"
        "- {index: 0, bus_id: '0000:18:00.0', memory_total_mib: 1000}\n"
        "- {index: 1, bus_id: '0000:19:00.0', memory_total_mib: 1000, memory_used_mib: 300}\n"
        "- {index: 2, bus_id: '0000:1a:00.0'}\n...\n"
    )
    told = ask(
        str(file),
        f"{CODES}"
        "def of(m): return [m.total >> 20, m.used >> 20, m.free >> 20]\n"
        "print(json.dumps([of(N.nvmlDeviceGetMemoryInfo(g(0))), of(N.nvmlDeviceGetMemoryInfo(g(1))),"
        " of(N.nvmlDeviceGetMemoryInfo(g(0), N.nvmlMemory_v2)), code(lambda: N.nvmlDeviceGetMemoryInfo(g(2)))]))",
    )
    assert told == [[1000, 0, 1000], [1000, 300, 700], [1000, 0, 1000], 3]


@pytest.mark.wide
def test_facts_of_any_kind_give_answers_or_error_codes(ask: Ask, tmp_path: Path) -> None:
    big = 1 << 62
    hostile = Gpu(
        3,
        "ffff\n|:\x1b[0m",
        uuid="a|b\tc\n" + "x" * 5000,
        name="\x1b]0;title\x07",
        memory_total_mib=big,
        memory_used_mib=-big,
        memory_free_mib=0,
        compute_capability="nine",
        settings=msgspec.convert({"mig_instances": [{"uuid": "\n"}]}, type(Gpu(0, "").settings)),
        numa_node=big,
        cpu_affinity="x",
        brand="value 1e9",
    )
    assert hostile.settings.mig_instances == (MigInstance(uuid="\n"),)
    node = Node(driver=Driver(init_code=0, library_version="x.y", cuda_version="z", device_count=9), gpus=(hostile,))
    line = Unanswered("nvmlDeviceGetIndex|3\t0\t" + "ff" * 4096, 3, 2.0)
    node = replace(node, driver=replace(node.driver, unanswered=(line,)))
    told = ask(
        _file(tmp_path, node),
        f"{CODES}"
        "h = g(3)\n"
        "print(json.dumps([N.nvmlDeviceGetCount(), code(lambda: g(0)), code(lambda: N.nvmlDeviceGetMemoryInfo(h)),"
        " code(lambda: N.nvmlDeviceGetUUID(h)), N.nvmlDeviceGetName(h), code(lambda: N.nvmlDeviceGetBrand(h)),"
        " code(lambda: N.nvmlDeviceGetCudaComputeCapability(h)), code(lambda: N.nvmlDeviceGetPciInfo(h)),"
        " N.nvmlDeviceGetIndex(h)]))",
    )
    assert told == [9, 999, 10, 7, "\x1b]0;title\x07", 3, 3, 0, 3]


def _file(folder: Path, node: Node) -> str:
    file = folder / "node.json"
    file.write_bytes(to_json(replace(node, source=replace(node.source, name="made here"))))
    return str(file)


def test_each_call_takes_the_latency_asked_for_and_many_fields_are_one_call(environ: dict[str, str]) -> None:
    program = (
        "import time, pynvml as N\n"
        "def took(call, *args):\n"
        "    began = time.monotonic()\n"
        "    call(*args)\n"
        "    return time.monotonic() - began\n"
        "waits = [took(N.nvmlInit), took(N.nvmlDeviceGetCount), took(N.nvmlDeviceGetHandleByIndex, 0)]\n"
        "gpu = N.nvmlDeviceGetHandleByIndex(0)\n"
        "waits.append(took(N.nvmlDeviceGetName, gpu))\n"
        "fields = [N.NVML_FI_DEV_ECC_CURRENT, N.NVML_FI_DEV_MEMORY_TEMP] * 10\n"
        "many = took(N.nvmlDeviceGetFieldValues, gpu, fields)\n"
        "assert all(wait >= 0.05 for wait in [*waits, many]), waits\n"
        "apart = sum(took(N.nvmlDeviceGetFieldValues, gpu, [field]) for field in fields)\n"
        "assert many < apart, 'many fields are one call'\n"
    )
    command = [*COMMAND, "--node", "hgx-h100-8", "--call-latency", "50", "--", sys.executable, "-c", program]
    done = completed(command, env=environ)
    assert done.returncode == 0, done.stderr
