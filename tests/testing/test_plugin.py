"""The pytest plugin in the hands of another project."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.subprocesses import completed
from tests.testing.user_project import PLUGIN, ROOT, project, run_pytest

USES = """
import pynvml
import pytest
from gpudoctor.facts.model.node import Node

own = pynvml.nvmlDeviceGetCount


def count():
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetCount()


def test_healthy(fake_nvml):
    assert count() == 8
    assert fake_nvml.node.source.name == "hgx-h100-8"
    assert fake_nvml.node.source.faults == ()


def test_nothing_stays():
    assert pynvml.nvmlDeviceGetCount is own


@pytest.mark.gpu_node("h100-nvl-2")
class TestMarked:
    def test_marked(self):
        assert count() == 2

    @pytest.mark.gpu_node("rtx4090-4", faults=["gpu-missing@1"])
    def test_nearest_marker_wins(self, fake_nvml):
        assert count() == len(fake_nvml.node.gpus) == 3


@pytest.mark.gpu_node(faults="gpu-lost@2")
def test_lost():
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetTemperature(handle, 0)


def test_factory(gpu_node):
    node = gpu_node("l40s-8", faults=["row-remap-pending@3"])
    assert isinstance(node, Node)
    pynvml.nvmlInit()
    rows = [pynvml.nvmlDeviceGetRemappedRows(pynvml.nvmlDeviceGetHandleByIndex(gpu.index)) for gpu in node.gpus]
    assert [pending for _, _, pending, _ in rows] == [0, 0, 0, 1, 0, 0, 0, 0]
    gpu_node("rtx4090-4")
    assert count() == 4


def test_nothing_stays_here_either():
    assert pynvml.nvmlDeviceGetCount is own
"""


def test_fixtures_and_marker_put_a_node_behind_pynvml_for_one_test_only(tmp_path: Path) -> None:
    code, output = run_pytest(project(tmp_path, USES))
    assert code == 0, output
    assert re.search(r"\b7 passed in", output), output


@pytest.mark.wide(every=12)
@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ('"hgx-h100-9"', "no simulated node of that name; did you mean hgx-h100-8"),
        ('faults=["gpu-lots@2"]', "no fault is called 'gpu-lots'; did you mean gpu-lost"),
        ('faults=["gpu-lost@9"]', "gpu-lost@9: there is no GPU '9'; this node has GPU 0, 1, 2, 3, 4, 5, 6, 7"),
        ('"rtx4090-4", faults=["fabric-degraded"]', "fabric-degraded cannot happen on rtx4090-4"),
        ('"hgx-h100-8", fault=["gpu-lost@2"]', "gpu_node takes a node and faults=[...]"),
        ('faults=[("gpu-lost", 2)]', "gpu_node: a fault is a name of the fault kit"),
        ('"l40s-8", ["gpu-lots@2"]', "no fault is called 'gpu-lots'"),
        ('"l40s-8", [], faults=[]', "gpu_node takes a node and faults=[...], not ('l40s-8', [], faults=[])"),
        (
            'faults=[Fault("nvmlDeviceGetTmperature", code=15)]',
            "no such function; did you mean nvmlDeviceGetTemperature",
        ),
        ('faults=[Fault("nvmlDeviceGetName", gpu=8, code=15)]', "gpu=8): the node has 8 GPUs, counted from 0"),
        ('faults=[Fault("nvmlDeviceGetName")]', "it says nothing of what goes wrong: code="),
        ('faults=[Fault("*", field=165, hang=True)]', "a field is struck by code= or value="),
    ],
)
def test_a_wrong_node_or_fault_is_one_clear_line(tmp_path: Path, marker: str, said: str) -> None:
    imports = "import pytest\nfrom gpudoctor.testing import Fault\n"
    tests = f"{imports}\n@pytest.mark.gpu_node({marker})\ndef test_it():\n    pass\n"
    code, output = run_pytest(project(tmp_path, tests), "--tb=short")
    assert code == 1
    told = output.partition("ERROR at setup of test_it")[2].partition("short test summary")[0].splitlines()[1:-1]
    assert len(told) == 1, output
    assert said in told[0]


def test_the_factory_reports_a_wrong_fault_in_one_line_too(tmp_path: Path) -> None:
    code, output = run_pytest(project(tmp_path, "def test_it(gpu_node):\n    gpu_node('l40s-8', faults=['nope'])\n"))
    assert code == 1
    assert "gpu_node: no fault is called 'nope'" in output
    assert "Traceback" not in output
    assert "fake_nvml.py" not in output


def test_the_marker_is_known_to_pytest(tmp_path: Path) -> None:
    code, output = run_pytest(project(tmp_path, ""), "--markers")
    assert code == 0
    assert "@pytest.mark.gpu_node(source='hgx-h100-8', faults=())" in output


def test_the_plugin_costs_a_project_that_does_not_use_it_no_import() -> None:
    told = completed(
        [
            sys.executable,
            "-c",
            f"import sys, pytest; old = {{*sys.modules}}; import {PLUGIN}; print(*{{*sys.modules}} - old)",
        ],
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert sorted(told.stdout.split()) == ["gpudoctor", "gpudoctor.testing", PLUGIN]


def test_pytest_finds_the_plugin_by_the_entry_point() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\ngpudoctor = "{PLUGIN}"\n' in text
