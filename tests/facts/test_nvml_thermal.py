"""Temperatures and their limits, as drivers of different ages report them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.missing import UNSUPPORTED
from gpudoctor.report.judge import judge
from gpudoctor.testing.fake_nvml import ScriptedFault
from tests.facts.nvml_nodes import make_node, read


@pytest.mark.parametrize("driver", ["535.247.01", "550.127.05", "565.57.01"])
def test_a_gpu_at_96_c_whose_driver_tells_limits_but_not_what_is_left_is_too_hot(driver: str, root: Path) -> None:
    """H100, L4 and RTX 4090 on drivers 535 to 565: fields 193-196 are there, nvmlDeviceGetMarginTemperature is not."""
    node = make_node(1, driver=driver)
    limits = {"gpu_c": 96, "slowdown_c": 95, "shutdown_c": 98, "max_operating_c": 87, "memory_max_c": 95}
    hot = replace(node.gpus[0], thermal=replace(node.gpus[0].thermal, **limits, margin_c=UNSUPPORTED))
    driver_facts, heard, _ = read(root, replace(node, gpus=(hot,)), absent=("nvmlDeviceGetMarginTemperature",))
    assert heard.gpus[0].thermal == hot.thermal
    report = judge(replace(node, driver=driver_facts, gpus=(heard.gpus[0],)))
    assert "gpu.temperature" in {fault.check for fault in report.faults}


def test_a_margin_that_could_not_be_read_is_no_pass_beside_limits_that_are_not_there(root: Path) -> None:
    node, silent = make_node(1), ScriptedFault("nvmlDeviceGetMarginTemperature", code=999)
    _, heard, _ = read(root, node, silent)
    report = judge(replace(node, gpus=(heard.gpus[0],)))
    assert {c.status for c in report.checks if c.id == "gpu.temperature"} == {Status.UNKNOWN}
