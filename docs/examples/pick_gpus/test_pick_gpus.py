"""pick_gpus against healthy and broken nodes. No GPU is needed: gpudoctor and pytest, no more."""

from __future__ import annotations

import pynvml
import pytest
from pick_gpus import pick_gpus

from gpudoctor.testing import Fault


def test_a_healthy_node_gives_all_its_gpus(fake_nvml):
    assert pick_gpus() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.gpu_node("hgx-h100-8", faults=["gpu-lost@2"])
def test_a_gpu_that_fell_off_the_bus_is_left_out():
    assert pick_gpus() == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.gpu_node("hgx-h100-8", faults=["row-remap-pending@1", "row-remap-failed@5"])
def test_gpus_that_need_repair_are_left_out():
    assert pick_gpus() == [0, 2, 3, 4, 6, 7]


@pytest.mark.gpu_node("dgx1-v100-8", faults=["foreign-process@7"])
def test_a_busy_gpu_is_left_out_and_one_without_row_remapping_is_taken():
    assert pick_gpus() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.gpu_node("hgx-h100-8", faults=["driver-not-loaded"])
def test_without_a_driver_there_is_nothing_to_pick():
    assert pick_gpus() == []


@pytest.mark.parametrize("call", ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetRemappedRows"])
def test_a_gpu_that_does_not_answer_a_question_is_left_out(gpu_node, call):
    gpu_node("hgx-h100-8", faults=[Fault(call, gpu=4, code=pynvml.NVML_ERROR_UNKNOWN)])
    assert pick_gpus() == [0, 1, 2, 3, 5, 6, 7]


@pytest.mark.gpu_node(faults=[Fault("nvmlDeviceGetCount", code=pynvml.NVML_ERROR_UNKNOWN)])
def test_the_driver_is_let_go_of_even_after_an_error(fake_nvml):
    with pytest.raises(pynvml.NVMLError_Unknown):
        pick_gpus()
    assert fake_nvml.calls["nvmlShutdown", None] == 1


@pytest.mark.parametrize("name", ["dgx-a100-8", "l40s-8", "hgx-b200-8"])
def test_one_test_for_many_machines(gpu_node, name):
    node = gpu_node(name)
    assert pick_gpus() == [gpu.index for gpu in node.gpus]
