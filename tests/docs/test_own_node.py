"""The node that docs/simulated-nodes.md shows is read as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pynvml
import pytest

from gpudoctor.testing import FakeNvml
from tests.cli.conftest import Gpudoctor

PAGE = Path(__file__).parents[2] / "docs" / "simulated-nodes.md"


@pytest.fixture
def own_node(tmp_path: Path) -> Path:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_the_check_names_the_file_and_the_fault_in_it(own_node: Path, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--level", "quick", "--node", str(own_node))
    assert outcome.code == 1, outcome.out
    assert outcome.out.startswith("SIMULATED node mine.yaml: made up")
    assert "2 x NVIDIA L4" in outcome.out
    assert "98 C, slowdown point is 95 C" in outcome.out
    assert "1 fault on GPU 1 (1 check failed), 1 passed" in outcome.out


def test_each_check_says_itself_what_the_file_lacks(own_node: Path, gpudoctor: Gpudoctor) -> None:
    own_node.write_text(own_node.read_text().replace(", slowdown_c: 95", ""))
    outcome = gpudoctor("check", "--level", "quick", "--node", str(own_node))
    assert outcome.code == 3, outcome.out
    checks = json.loads(gpudoctor("check", "--json", "--node", str(own_node)).out)["checks"]
    assert {finding["explained_by"] for check in checks for finding in check["findings"]} == {None}
    missing = dict(line.split(maxsplit=1) for line in outcome.out.splitlines() if line.startswith("  gpu."))
    assert missing["gpu.temperature"] == "temperature limits (GPU 0-1)"
    assert missing["gpu.xid"] == "kernel log"
    assert outcome.out.endswith("Next:\n  gpudoctor schema facts\n")
    alone = gpudoctor("check", "gpu.temperature", "--node", str(own_node)).out
    assert "  reason  temperature limits: not in this file\n" in alone


def test_the_fake_answers_from_it(own_node: Path) -> None:
    with FakeNvml(own_node):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 2
        handle = pynvml.nvmlDeviceGetHandleByIndex(1)
        assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == 98
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetPowerUsage(handle)


def test_without_its_last_line_it_may_be_cut_off(own_node: Path, gpudoctor: Gpudoctor) -> None:
    own_node.write_text(own_node.read_text().removesuffix("...\n"))
    outcome = gpudoctor("check", "--node", str(own_node))
    assert outcome.code == 2
    assert "say so in a last line that is YAML's end mark: three dots (...)" in outcome.err


def test_without_its_first_line_the_message_names_that_line(own_node: Path, gpudoctor: Gpudoctor) -> None:
    own_node.write_text(own_node.read_text().partition("\n")[2])
    assert "lack the line `schema: gpudoctor.facts/1`" in gpudoctor("check", "--node", str(own_node)).err
