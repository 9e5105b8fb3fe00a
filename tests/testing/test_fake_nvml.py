"""The fake driver in pynvml's place, as seen by a program that knows nothing of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpudoctor.errors import UserError
from gpudoctor.facts.model.node import Node, to_json
from gpudoctor.facts.nvml.codes import ERROR_WORDS
from gpudoctor.testing import FakeNvml, Fault, load


def names_of(*indices: int) -> list[str]:
    """What a program does."""
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in indices]


def test_pynvml_answers_from_the_node_and_is_itself_again_afterwards() -> None:
    before = dict(vars(pynvml))
    with FakeNvml("hgx-h100-8") as fake:
        assert names_of(0, 7) == ["NVIDIA H100 80GB HBM3"] * 2
        assert pynvml.nvmlDeviceGetCount() == 8
        assert fake.calls["nvmlInit", None] == 1
        assert vars(pynvml) != before
    assert vars(pynvml) == before


def test_pynvml_is_restored_when_the_program_fails_and_fakes_nest() -> None:
    before = dict(vars(pynvml))
    with pytest.raises(ZeroDivisionError), FakeNvml("hgx-h100-8"):  # noqa: PT012 - what happens inside is the point
        with FakeNvml("rtx4090-4"):
            pynvml.nvmlInit()
            assert pynvml.nvmlDeviceGetCount() == 4
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 8
        raise ZeroDivisionError
    assert vars(pynvml) == before


def test_names_that_were_imported_before_are_answered_too_and_are_real_again() -> None:
    names: dict[str, Any] = {}
    exec("from pynvml import *", names)
    with FakeNvml("hgx-h100-8"), FakeNvml("rtx4090-4") as fake:
        names["nvmlInit"]()
        assert names["nvmlDeviceGetCount"]() == 4
        handle = names["nvmlDeviceGetHandleByIndex"](index=2)
        uuid = names["nvmlDeviceGetUUID"](handle)
        assert uuid == fake.node.gpus[2].uuid
        assert names["nvmlDeviceGetHandleByUUID"](uuid) == handle
        assert names["nvmlDeviceGetMemoryInfo"](handle).total == pynvml.nvmlDeviceGetMemoryInfo(handle).total
    with pytest.raises((pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_Uninitialized)):
        names["nvmlDeviceGetCount"]()


def test_installing_twice_is_installing_once() -> None:
    before = dict(vars(pynvml))
    fake = FakeNvml("rtx4090-4").install().install()
    fake.uninstall()
    assert vars(pynvml) == before
    fake.uninstall()
    assert vars(pynvml) == before


@pytest.mark.parametrize("kind", ["name", "node", "file", "path", "capture"])
def test_a_node_may_be_named_in_every_way(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    node = load("rtx4090-4")
    file = tmp_path / "facts.json"
    file.write_bytes(to_json(node))
    count = 4
    sources: dict[str, Node | str | Path] = {"name": "rtx4090-4", "node": node, "file": str(file), "path": file}
    if kind == "capture":
        sources[kind], count = request.getfixturevalue("captures") / "smi-q-8x-h100-sxm.txt", 8
    with FakeNvml(sources[kind]):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == count


def test_functions_that_pynvml_builds_on_others_reach_the_fake_too() -> None:
    node = load("display-plus-a100")
    with FakeNvml(node):
        pynvml.nvmlInit()
        for gpu in node.gpus:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.bus_id)
            assert pynvml.nvmlDeviceGetIndex(handle) == gpu.index
            assert pynvml.nvmlDeviceGetPciInfo(handle).busId.lower().endswith(gpu.bus_id)
            assert pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) == handle
            pids = {process.pid for process in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)}
            assert isinstance(gpu.processes, tuple)
            assert pids == {process.pid for process in gpu.processes if "G" in process.kind}


def test_arguments_may_be_given_by_name() -> None:
    with FakeNvml("hgx-h100-8"):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index=3)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        assert memory.reserved > 0
        assert memory.total >= memory.used + memory.free + memory.reserved - (2 << 20)
        assert not hasattr(pynvml.nvmlDeviceGetMemoryInfo(handle=handle), "reserved")


def test_a_function_that_the_fake_does_not_know_is_that_of_an_old_driver() -> None:
    with FakeNvml("hgx-h100-8") as fake:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceGetFanSpeed(handle)
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml._nvmlGetFunctionPointer("nvmlSomethingOfTomorrow")
        assert fake.unknown == {"nvmlDeviceGetFanSpeed", "nvmlDeviceSetPersistenceMode", "nvmlSomethingOfTomorrow"}


def test_what_the_facts_do_not_hold_is_not_supported() -> None:
    with FakeNvml("dgx1-v100-8"):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetRemappedRows(handle)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_VIDEO)


def test_what_a_facts_file_lacks_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("schema: gpudoctor.facts/1\ngpus: [{index: 0, bus_id: '0000:18:00.0', name: NVIDIA L4}]\n...\n")
    with FakeNvml(path):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA L4"
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)


def test_a_program_that_forgets_nvml_init_is_told_so_as_by_the_library() -> None:
    with FakeNvml("hgx-h100-8"):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 8
        pynvml.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()


def test_a_machine_without_a_driver_has_no_library_and_one_with_a_mismatch_says_so() -> None:
    with FakeNvml("cpu-only"), pytest.raises(pynvml.NVMLError_LibraryNotFound):
        pynvml.nvmlInit()
    with FakeNvml("hgx-h100-8", ["driver-mismatch"]) as fake:
        with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
            pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        assert pynvml.nvmlSystemGetNVMLVersion() == f"12.{fake.node.driver.library_version}"


def test_an_index_beyond_the_count_and_a_gpu_without_a_handle_differ() -> None:
    with FakeNvml("hgx-h100-8", ["gpu-handle-denied@3"]):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 8
        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceGetHandleByIndex(3)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(8)


def test_every_error_has_words_without_a_library() -> None:
    with FakeNvml("hgx-h100-8"):
        for code in ERROR_WORDS:
            if code:
                assert "code" not in str(pynvml.NVMLError(code))


def test_a_scripted_fault_strikes_its_call_its_gpu_and_from_its_time_on() -> None:
    late = Fault("nvmlDeviceGetPowerUsage", gpu=2, from_call=3, code=pynvml.NVML_ERROR_GPU_IS_LOST)
    wrong = Fault("nvmlDeviceGetTemperature", gpu=1, value=255)
    with FakeNvml("hgx-h100-8", [late, wrong, "row-remap-pending@5"]):
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
        for _ in range(2):
            assert pynvml.nvmlDeviceGetPowerUsage(handles[2]) > 0
        for _ in range(2):
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                pynvml.nvmlDeviceGetPowerUsage(handles[2])
        assert [pynvml.nvmlDeviceGetPowerUsage(handles[3]) > 0 for _ in range(4)] == [True] * 4
        assert [pynvml.nvmlDeviceGetTemperature(handle, 0) == 255 for handle in handles[:3]] == [False, True, False]
        assert [pynvml.nvmlDeviceGetRemappedRows(handle)[2] for handle in handles] == [0, 0, 0, 0, 0, 1, 0, 0]


def test_a_field_is_struck_from_its_time_on_and_only_where_its_call_is_meant() -> None:
    faults = [
        Fault("nvmlDeviceGetFieldValues", gpu=1, field=147, code=999, from_call=2),
        Fault("nvmlDeviceGetName", gpu=1, field=94, code=999),
    ]
    with FakeNvml("hgx-h100-8", faults):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(1)
        answers = [[value.nvmlReturn for value in pynvml.nvmlDeviceGetFieldValues(handle, [147, 94])] for _ in range(2)]
    assert answers == [[0, 0], [999, 0]]


def test_a_value_can_be_scripted_for_a_function_that_the_fake_does_not_know() -> None:
    with FakeNvml("hgx-h100-8", [Fault("nvmlDeviceGetFanSpeed", value=30)]) as fake:
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0)) == 30
        assert fake.unknown == set()


def test_a_fault_may_name_a_function_without_its_version() -> None:
    with FakeNvml("hgx-h100-8", [Fault("nvmlDeviceGetComputeRunningProcesses", code=pynvml.NVML_ERROR_TIMEOUT)]):
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))


@pytest.mark.parametrize("faults", [["driver-hang@3"], [Fault("nvmlDeviceGetFieldValues", gpu=3, hang=True)]])
def test_a_hanging_call_hangs_until_the_fake_is_taken_out(faults: list[str | Fault]) -> None:
    ended: list[object] = []
    asking = threading.Event()

    def program() -> None:
        pynvml.nvmlInit()
        other, handle = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (2, 3))
        ended.append(pynvml.nvmlDeviceGetFieldValues(other, [91])[0].value.ullVal)
        asking.set()
        try:
            pynvml.nvmlDeviceGetFieldValues(handle, [91])
        except pynvml.NVMLError as error:
            ended.append(error.value)

    thread = threading.Thread(target=program, daemon=True)
    with FakeNvml("hgx-h100-8", faults):
        thread.start()
        assert asking.wait(30)
        thread.join(0.05)
        assert thread.is_alive()
        assert ended == [18]
    thread.join(30)
    assert ended == [18, pynvml.NVML_ERROR_TIMEOUT]


@pytest.mark.parametrize(
    ("source", "faults", "said"),
    [
        ("hgx-h100-9", [], "did you mean hgx-h100-8"),
        ("hgx-h100-8", ["gpu-lots"], "no fault is called 'gpu-lots'; did you mean gpu-lost"),
        ("hgx-h100-8", "gpu-lots", "no fault is called 'gpu-lots'"),
        ("hgx-h100-8", [15], "a fault is a name of the fault kit, as gpu-lost@2, or a Fault, not 15"),
    ],
)
def test_a_wrong_name_is_one_line_for_the_user(source: str, faults: list[str], said: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]+$") as told:
        FakeNvml(source, faults)
    assert said in str(told.value)


def test_the_callers_environment_does_not_reach_a_simulated_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert load("hgx-h100-8").environment.get("CUDA_VISIBLE_DEVICES") is None
