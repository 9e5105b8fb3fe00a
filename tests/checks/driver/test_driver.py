"""driver.loaded, driver.version-match, driver.responsive."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Host, Node, PciBus, Unanswered
from tests.checks.gpu_nodes import FAILED, bad, eight, findings, h100, node, only, pci, status, text
from tests.checks.one_check import finds
from tests.narrowed import present


def dead(code: int | Missing = 9, **leaves: Any) -> Node:
    """A machine whose driver did not start."""
    driver = Driver(module_loaded=False, init_code=code, init_error="Driver Not Loaded", calls=0)
    return Node(driver=driver, **leaves)


def test_a_driver_that_initialises_is_loaded() -> None:
    finds(findings("driver.loaded", eight()), "pass", found="loaded, driver 570.124.06, CUDA 12.8")


def test_a_machine_without_gpu_and_driver_is_told_so_plainly() -> None:
    finding = only("driver.loaded", dead(pci=PciBus(nvidia_devices=())))
    assert finding.status.value == "fail"
    assert text(finding) == "there is no NVIDIA GPU and no NVIDIA driver on this machine"
    assert finding.likely
    assert any(step.command and "--gpus all" in step.command for step in finding.advice)


def test_gpus_on_the_bus_without_a_driver_are_counted() -> None:
    finding = only("driver.loaded", dead(pci=PciBus(nvidia_devices=(pci(0, None), pci(1, None)))))
    finds([finding], "fail", "2 NVIDIA GPUs on the PCI bus")
    assert any(step.command and "modprobe nvidia" in step.command for step in finding.advice)


def test_an_nvswitch_on_the_bus_is_not_counted_as_a_gpu() -> None:
    bus = PciBus(nvidia_devices=(pci(0, None), pci(1, None, "0x068000")))
    assert "with 1 NVIDIA GPU on the PCI bus" in text(only("driver.loaded", dead(pci=bus)))


@pytest.mark.parametrize("seen_as", ["module", "device"])
def test_nouveau_is_named(seen_as: str) -> None:
    bus = PciBus(nvidia_devices=(pci(0, "nouveau" if seen_as == "device" else None),))
    subject = dead(pci=bus)
    if seen_as == "module":
        subject = Node(driver=Driver(module_loaded=False, nouveau_loaded=True, init_code=9), pci=bus)
    finds(bad("driver.loaded", subject), "fail", "nouveau")


def test_gpus_given_to_virtual_machines_are_not_blamed_on_the_installation() -> None:
    finding = only("driver.loaded", dead(pci=PciBus(nvidia_devices=(pci(0, "vfio-pci"),))))
    assert "handed to virtual machines" in text(finding)


def test_without_a_readable_bus_the_driver_alone_is_missed() -> None:
    finding = only("driver.loaded", dead())
    assert text(finding) == "the NVIDIA driver is not loaded here"


@pytest.mark.parametrize("engine", ["docker", None])
def test_a_missing_library_points_at_the_container_where_there_is_one(engine: str | None) -> None:
    host = Host(container=engine) if engine else Host()
    subject = Node(
        driver=Driver(module_loaded=True, init_code=12, init_error="NVML Shared Library Not Found"), host=host
    )
    finding = only("driver.loaded", subject)
    assert finding.status.value == "fail"
    assert text(finding).startswith("the kernel module is loaded, but libnvidia-ml.so.1")
    assert ("container" in (finding.likely or "")) is (engine is not None)


def test_another_error_of_the_library_is_quoted() -> None:
    subject = Node(driver=Driver(module_loaded=True, init_code=999, init_error="Unknown Error"))
    assert "Unknown Error (999)" in text(only("driver.loaded", subject))


def test_no_permission_is_unknown_and_not_a_broken_driver() -> None:
    subject = Node(driver=Driver(module_loaded=True, init_code=4, init_error="Insufficient Permissions"))
    assert status("driver.loaded", subject) == "unknown"


def test_an_initialisation_that_failed_to_answer_is_unknown_even_with_the_module_there() -> None:
    assert status("driver.loaded", Node(driver=Driver(module_loaded=True, init_code=FAILED))) == "unknown"


def test_equal_versions_match() -> None:
    assert status("driver.version-match", eight()) == "pass"


def test_different_versions_fail_and_name_both() -> None:
    bad_ones = bad("driver.version-match", node(h100(), driver__library_version="575.51.03"))
    finds(bad_ones, "fail", found="kernel module 570.124.06, user library 575.51.03")


def test_the_librarys_own_refusal_is_enough_and_is_told_once() -> None:
    subject = Node(driver=Driver(module_loaded=True, init_code=18, init_error="Driver/library version mismatch"))
    assert only("driver.version-match", subject).status.value == "fail"
    assert status("driver.loaded", subject) == "skip"


@pytest.mark.parametrize("leaf", ["module_version", "library_version"])
def test_one_version_alone_proves_nothing(leaf: str) -> None:
    assert status("driver.version-match", node(h100(), **{f"driver__{leaf}": Missing("not in this capture")})) == "skip"
    assert status("driver.version-match", node(h100(), **{f"driver__{leaf}": FAILED})) == "unknown"


def test_answered_calls_pass_with_the_slowest() -> None:
    [finding] = findings("driver.responsive", eight())
    assert text(finding) == "320 calls answered, the slowest in 0.02 s"


def test_a_hung_call_names_the_call_the_gpu_and_the_seconds() -> None:
    subject = node(h100(0), h100(1), driver__unanswered=(Unanswered("nvmlDeviceGetTemperature", 1, 10.0),))
    finding = only("driver.responsive", subject)
    assert finding.status.value == "fail"
    assert finding.subject.gpu == 1
    assert finding.subject.bus_id == "0000:11:00.0"
    assert text(finding) == "nvmlDeviceGetTemperature on GPU 1 did not return within 10 s"
    assert (present(finding.found).value, present(finding.found).unit) == (10.0, "s")


def test_a_hung_initialisation_is_the_nodes() -> None:
    driver = Driver(module_loaded=True, init_code=FAILED, unanswered=(Unanswered("nvmlInit_v2", None, 10.0),))
    assert only("driver.responsive", Node(driver=driver)).subject.kind == "node"


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_start_that_may_just_be_cold_is_unknown_until_it_has_had_its_time(call: str) -> None:
    def judged(waited_s: float, reason: str = "did not return") -> str:
        return status(
            "driver.responsive", Node(driver=Driver(init_code=0, unanswered=(Unanswered(call, 3, waited_s, reason),)))
        )

    assert judged(10.0) == "unknown"
    assert judged(49.0) == "unknown", "16 GPUs of 3 s each, one after another"
    assert judged(50.0) == "fail"
    assert judged(0.1, "the collector died by SIGSEGV in it") == "fail"


def test_a_collector_that_died_is_told_without_a_deadline() -> None:
    died = Unanswered("nvmlDeviceGetName", 1, 0.003, "ended by SIGSEGV")
    finding = only("driver.responsive", node(h100(0), h100(1), driver__unanswered=(died,)))
    assert text(finding) == "nvmlDeviceGetName on GPU 1 ended by SIGSEGV"


def test_a_hung_gpu_that_was_never_described_keeps_its_index() -> None:
    driver = Driver(init_code=0, unanswered=(Unanswered("nvmlDeviceGetHandleByIndex_v2", 3, 10.0),))
    assert only("driver.responsive", Node(driver=driver)).subject.gpu == 3


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"driver__init_s": 9.0, "driver__slowest_call": "nvmlInit_v2", "driver__slowest_call_s": 9.0}, "pass"),
        ({"driver__init_s": 31.0}, "warn"),
        ({"driver__slowest_call_s": 5.0}, "pass"),
        ({"driver__slowest_call_s": 5.1}, "warn"),
    ],
)
def test_slow_is_a_warning_and_a_start_without_persistence_mode_is_not_slow(
    leaves: dict[str, Any], expected: str
) -> None:
    assert status("driver.responsive", node(h100(), **leaves)) == expected


@pytest.mark.parametrize(
    ("persistence", "start_s", "expected", "told"),
    [
        (False, 14.2, "pass", "persistence mode is off: the driver took 14.2 s to wake"),
        (False, 31.0, "pass", "persistence mode is off: the driver took 31 s to wake"),
        (False, 33.0, "warn", "persistence mode is off: the driver took 33 s to wake"),
        (FAILED, 14.2, "pass", "the driver took 14.2 s to start"),
        (True, 8.0, "pass", "the driver took 8 s to start"),
        (True, 14.2, "warn", "the driver took 14.2 s to start"),
        (False, 0.3, "pass", None),
    ],
)
def test_what_the_driver_took_to_wake_is_told_and_judged_by_the_gpus_that_slept(
    persistence: bool | Missing, start_s: float, expected: str, told: str | None
) -> None:
    gpus = [h100(index, settings__persistence=persistence) for index in range(8)]
    found = findings("driver.responsive", node(*gpus, driver__start_s=start_s, driver__device_count=8))
    assert {finding.status.value for finding in found} == {expected}
    assert [text(f) for f in found if "the driver took" in text(f)] == ([told] if told else [])


def test_a_handle_that_was_slow_is_judged_as_a_start_where_facts_tell_no_start() -> None:
    slow = {"driver__slowest_call": "nvmlDeviceGetHandleByIndex on GPU 7", "driver__slowest_call_s": 14.0}
    gpus = [h100(index, settings__persistence=False) for index in range(8)]
    assert status("driver.responsive", node(*gpus, **slow)) == "pass"
    assert status("driver.responsive", node(h100(settings__persistence=True), **slow)) == "warn"


def test_a_slow_call_is_told_of_its_gpu() -> None:
    slow = {"driver__slowest_call": "nvmlDeviceGetName on GPU 1", "driver__slowest_call_s": 7.0}
    finds(bad("driver.responsive", node(h100(0), h100(1), **slow)), "warn", gpu=1)


def test_no_call_made_is_no_pass() -> None:
    assert status("driver.responsive", dead()) == "skip"


def test_a_call_in_which_the_reader_died_is_said_in_one_way_everywhere() -> None:
    died = Unanswered("nvmlX", 1, 0.3, "the collector died by SIGABRT in nvmlX")
    crashed = node(h100(0), h100(1), driver__unanswered=(died,))
    words = "the collector died by SIGABRT in nvmlX on GPU 1"
    assert [text(f) for f in findings("driver.responsive", crashed)] == [words]
    assert [f.reason for f in findings("gpu.lost", crashed) if f.status.value == "unknown"] == [words]
