"""Older pynvml and drivers that word their answers otherwise: the same facts, or a reason, never a wrong number."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pynvml

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import UNSUPPORTED
from gpudoctor.facts.nvml import links as nvml_fabric
from gpudoctor.facts.nvml.read_node import read_nvml
from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault
from tests.facts.nvml_nodes import Heard, make_gpu, make_node, of_field, read
from tests.narrowed import missing

# what nvidia-ml-py 12.535 lacks of what is used here
NOT_IN_12_535 = {
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    "c_nvmlEccSramErrorStatus_v1_t",
}


class OldBinding:
    """pynvml of 12.535 over a driver of today: names are absent, structs have another layout."""

    def __init__(self, nvml: FakeNvml) -> None:
        self._nvml = nvml

    def __getattr__(self, name: str) -> Any:
        if name in NOT_IN_12_535:
            raise AttributeError(name)
        assert not name.startswith("c_nvmlGpuFabric"), "the binding's own structs are of a wrong size"
        return getattr(self._nvml, name)


def read_old(root: Path) -> Gpu:
    heard = Heard()
    read_nvml(heard.take, OldBinding(FakeNvml(make_node(1))), root)
    return heard.gpus[0]


def test_a_binding_of_535_costs_only_what_it_has_no_function_for(root: Path) -> None:
    gpu, told = read_old(root), make_gpu(0)
    assert (gpu.module_id, gpu.uuid, gpu.power, gpu.clocks) == (told.module_id, told.uuid, told.power, told.clocks)
    assert (gpu.fabric.state, gpu.fabric.clique_id) == (told.fabric.state, told.fabric.clique_id)
    assert (gpu.settings.addressing_mode, gpu.memory_repair.unrepairable, gpu.thermal.margin_c) == (UNSUPPORTED,) * 3
    assert gpu.errors == ()


def test_the_fabric_structs_are_those_of_the_newest_binding() -> None:
    for ours, theirs in (
        (nvml_fabric._FabricInfo, pynvml.c_nvmlGpuFabricInfo_t),
        (nvml_fabric._FabricInfoV2, pynvml.c_nvmlGpuFabricInfo_v2_t),
        (nvml_fabric._FabricInfoV3, pynvml.c_nvmlGpuFabricInfo_v3_t),
    ):
        assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
        for name, *_ in theirs._fields_:
            assert getattr(ours, name).offset == getattr(theirs, name).offset
    versions = [version for *_, version in nvml_fabric._FORMS]
    assert versions == [pynvml.nvmlGpuFabricInfo_v3, pynvml.nvmlGpuFabricInfo_v2, 0]


def test_a_module_id_that_a_lost_gpu_refuses_taints_it(root: Path) -> None:
    _, heard, _ = read(root, make_node(1), ScriptedFault("nvmlDeviceGetModuleId", value=15))
    assert [error.code for error in heard.gpus[0].errors] == [15]


def test_every_recovery_action_of_the_header_has_a_word(root: Path) -> None:
    names = [name for name in vars(pynvml) if name.startswith("NVML_GPU_RECOVERY_ACTION_")]
    for name in names:
        _, heard, _ = read(root, make_node(1), of_field(230, value=getattr(pynvml, name)))
        word = name.removeprefix("NVML_GPU_RECOVERY_ACTION_").lower().replace("_", "-")
        assert heard.gpus[0].recovery_action == word


def test_a_count_that_is_told_as_a_fraction_is_a_whole_number_or_a_failure(root: Path) -> None:
    """The value type is the driver's to choose; what comes of it must fit the facts."""

    class Doubles(FakeNvml):
        def _fields(self, handle: Any, wanted: list[tuple[int, int]]) -> Any:
            values = super()._fields(handle, wanted)
            for value in values:
                if value.fieldId in (94, 95):
                    value.valueType, value.nvmlReturn = pynvml.NVML_VALUE_TYPE_DOUBLE, 0
                    value.value.dVal = 7.0 if value.fieldId == 94 else float("nan")
            return values

    heard = Heard()
    read_nvml(heard.take, Doubles(make_node(1)), root)
    pcie = heard.gpus[0].pcie
    assert (pcie.replays, type(pcie.replays)) == (7, int)
    assert missing(pcie.replay_rollovers).kind == "failed"
