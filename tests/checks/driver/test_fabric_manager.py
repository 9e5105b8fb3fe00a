"""driver.fabric-manager."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, FabricManager, Node
from gpudoctor.facts.simulated.load import apply_faults
from gpudoctor.report.judge import judge as report_on
from tests.checks.gpu_nodes import put
from tests.checks.one_check import expect, judge
from tests.checks.simulated_nodes import packaged

CHECK = "driver.fabric-manager"
NOTHING = "fabric manager: NV_WARN_NOTHING_TO_DO"


def node(name: str = "hgx-h100-8", **facts: Any) -> CheckResult:
    return judge(CHECK, replace(packaged(name), fabric_manager=FabricManager(**facts)))


def bare(**facts: Any) -> CheckResult:
    """The pasted status of the service alone."""
    return judge(CHECK, Node(fabric_manager=FabricManager(**facts)))


def broken(**facts: Any) -> Node:
    return replace(apply_faults(packaged("hgx-h100-8"), ["fabric-not-started"]), fabric_manager=FabricManager(**facts))


@pytest.mark.parametrize("service", ["failed", "inactive", "not-found"])
def test_a_service_that_does_not_run_fails_unless_the_gpus_are_in_the_fabric(service: str) -> None:
    assert judge(CHECK, broken(service=service)).status is Status.FAIL
    expect(node(service=service), Status.WARN, "in the fabric since it last ran")


def test_a_service_that_starts_is_waited_for() -> None:
    assert judge(CHECK, broken(service="activating")).status is Status.WARN


def test_another_version_than_the_drivers_fails_with_both_named() -> None:
    result = node(service="active", version="535.129.03")
    expect(result, Status.FAIL, "fabric manager 535.129.03, driver 570.172.08")
    line = "fabric manager NVIDIA GPU driver interface version 535.129.03 don't match with driver version 550.54.15."
    expect(bare(errors=(line,)), Status.FAIL, "fabric manager 535.129.03, driver 550.54.15")
    assert len(bare(errors=(line,), service="failed", result="exit-code").findings) == 1


def test_errors_of_its_log_warn() -> None:
    assert node(service="active", version="570.172.08", errors=("[ERROR] NVSwitch fatal error",)).status is Status.WARN


@pytest.mark.parametrize(
    "name", ["rtx4090-4", "gb200-tray-4", "hgx-h100-vm-8", "dgx1-v100-8", "h100-nvl-4", "hgx-a100-4"]
)
def test_nodes_without_nvswitches_of_their_own_need_none(name: str) -> None:
    for service in ("failed", "inactive", "not-found"):
        assert node(name, service=service, errors=(NOTHING,)).status is Status.SKIP


def test_switches_that_show_no_pci_function_need_it_too() -> None:
    started = packaged("hgx-b200-8")
    down = replace(started, gpus=tuple(put(gpu, fabric__state="not-started") for gpu in started.gpus))
    assert judge(CHECK, replace(down, fabric_manager=FabricManager(service="inactive"))).status is Status.FAIL


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"service": "failed", "result": "exit-code"}, Status.FAIL),
        ({"service": "failed", "errors": (NOTHING,)}, Status.UNKNOWN),
        ({"service": "inactive"}, Status.WARN),
        ({"service": "not-found"}, Status.WARN),
        ({"service": "active"}, Status.PASS),
        ({}, Status.SKIP),
    ],
)
def test_a_paste_of_the_service_alone_is_judged_as_far_as_it_goes(facts: dict[str, Any], status: Status) -> None:
    assert bare(**facts).status is status


def test_a_state_that_was_not_read_is_no_pass() -> None:
    assert node(service=Missing("asked in vain", "failed")).status is Status.UNKNOWN
    assert node(service=Missing("a container")).status is Status.SKIP
    assert node(service=Missing("asked in vain", "failed"), version="570.172.08").status is Status.UNKNOWN


def test_it_explains_the_gpus_that_are_not_in_the_fabric() -> None:
    report = report_on(broken(service="failed", result="exit-code"))
    assert [fault.check for fault in report.faults] == [CHECK]
    assert any(line.startswith("nvlink.fabric") for line in report.faults[0].explains)


def test_a_driver_of_two_versions_is_told_once() -> None:
    mixed = broken(service="failed")
    driver = Driver(module_version="570.172.08", library_version="580.1", init_code=18)
    report = report_on(replace(mixed, driver=driver, gpus=()))
    assert [fault.check for fault in report.faults] == ["driver.version-match"]
