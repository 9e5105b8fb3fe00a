"""gpu.identical: the odd one out, and ties."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.case import Expect
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Environment, Variable
from gpudoctor.report.judge import judge as report_of
from tests.checks.gpu_nodes import FAILED, UNSUPPORTED, bad, eight, findings, h100, node, only, put, status, text
from tests.checks.one_check import finds, judge
from tests.narrowed import present


def test_eight_alike_pass_each() -> None:
    found = findings("gpu.identical", eight())
    assert [f.status.value for f in found] == ["pass"] * 8


@pytest.mark.parametrize(
    ("leaf", "value", "expected"),
    [
        ("memory_total_mib", 40000, "fail"),
        ("memory_total_mib", 80000, "pass"),
        ("vbios", "96.00.74.00.09", "warn"),
        ("pci_subsystem_id", "165810DE", "warn"),
        ("pci_device_id", "233110DE", "warn"),
        ("power__default_limit_w", 650.0, "warn"),
        ("clocks__sm_max_mhz", 1755, "warn"),
        ("clocks__memory_max_mhz", 1593, "warn"),
    ],
)
def test_the_odd_one_out_is_named_by_majority(leaf: str, value: object, expected: str) -> None:
    subject = eight(**{leaf: value})
    assert status("gpu.identical", subject) == expected
    if expected != "pass":
        finding = only("gpu.identical", subject)
        assert finding.subject.gpu == 5
        assert str(value) in text(finding)
        assert present(finding.expected).source == "majority of the peers"


def test_another_model_is_one_difference_and_not_eight() -> None:
    odd = h100(2, name="NVIDIA GeForce RTX 4080", memory_total_mib=16376, vbios="1", clocks__sm_max_mhz=2505)
    finding = only("gpu.identical", node(h100(0), h100(1), odd))
    assert text(finding) == "different models: NVIDIA H100 80GB HBM3 (GPUs 0, 1); NVIDIA GeForce RTX 4080 (GPU 2)"
    assert (finding.status.value, finding.subject.gpu) == ("warn", 2)


def test_a_tie_names_both_sides_once() -> None:
    subject = node(h100(0, name="NVIDIA A100-PCIE-40GB", memory_total_mib=40960), h100(1, name="NVIDIA RTX A6000"))
    finding = only("gpu.identical", subject)
    assert finding.status.value == "warn", "both work"
    assert finding.subject.kind == "node"
    assert "NVIDIA A100-PCIE-40GB (GPU 0)" in text(finding)
    assert "NVIDIA RTX A6000 (GPU 1)" in text(finding)


def test_two_against_two_names_the_gpus_of_each_side() -> None:
    subject = node(*(h100(i, vbios="1" if i < 2 else "2") for i in range(4)))
    finds(bad("gpu.identical", subject), "warn", "1 (GPUs 0, 1)")


def test_memory_that_ecc_took_is_a_warning() -> None:
    subject = node(*(h100(i) for i in range(3)), h100(3, memory_total_mib=76000, ecc__enabled=False))
    finding = only("gpu.identical", subject)
    assert finding.status.value == "warn"
    assert "ECC" in (finding.likely or "")


def test_a_small_gpu_that_drives_the_display_is_left_out() -> None:
    t400 = h100(2, name="NVIDIA T400 4GB", memory_total_mib=4096, settings__display_active=True)
    assert status("gpu.identical", node(h100(0), h100(1), t400)) == "pass"


def test_one_gpu_has_nothing_to_compare() -> None:
    finds(findings("gpu.identical", node(h100())), "skip", found="one GPU: nothing to compare")


def test_an_attribute_that_peers_show_is_unknown() -> None:
    assert status("gpu.identical", eight(vbios=UNSUPPORTED)) == "unknown"  # its peers show theirs
    finds(bad("gpu.identical", eight(vbios=FAILED)), "unknown", gpu=5)


def test_a_gpu_without_a_name_is_no_pass() -> None:
    assert status("gpu.identical", node(h100(0, name=FAILED), h100(1, name=FAILED))) == "unknown"
    assert status("gpu.identical", node(h100(0, name=UNSUPPORTED), h100(1, name=UNSUPPORTED))) == "skip"


def test_the_memory_tolerance_can_be_configured() -> None:
    override = {("gpu.identical", "memory_pct", ""): 0.5}
    assert status("gpu.identical", eight(memory_total_mib=80000), limit_overrides=override) == "fail"


def test_gpus_that_the_driver_counts_and_that_told_nothing_are_no_pass() -> None:
    node = put(eight(), driver__device_count=9, pci__nvidia_devices=Missing("not in this capture"))
    assert text(only("gpu.count", node)) == "the driver counts 9 GPUs, and only 8 of them told anything"
    one_denied = put(node, driver__handle_errors=("GPU 8: no permission (4)",))
    assert status("gpu.count", one_denied) == "pass"


def test_a_bus_that_was_read_in_vain_leaves_the_count_open_unless_it_is_configured() -> None:
    node = put(eight(), pci__nvidia_devices=FAILED)
    assert status("gpu.count", node) == "unknown"
    assert status("gpu.count", node, expect=Expect(gpus=8)) == "pass"


@pytest.mark.parametrize(("wanted", "expected"), [("h100", "pass"), ("NVIDIA H100 80GB", "pass"), ("H200", "fail")])
def test_gpus_all_alike_fail_if_the_configuration_names_another_model(wanted: str, expected: str) -> None:
    result = judge("gpu.identical", eight(), expect=Expect(gpu_name=wanted))
    assert result.status.value == expected
    named = {f.subject.gpu for f in result.findings if f.status.value == "fail"}
    assert named == (set(range(8)) if expected == "fail" else set())


def test_one_gpu_of_the_model_that_the_configuration_names_passes() -> None:
    result = judge("gpu.identical", node(h100(0)), expect=Expect(gpu_name="H100"))
    assert [(f.status.value, f.expected and f.expected.source) for f in result.findings] == [("pass", "configuration")]


def test_the_advice_for_a_mixed_node_is_a_command_after_which_it_passes() -> None:
    mixed = node(h100(0), h100(1), h100(2, name="NVIDIA GeForce RTX 4080", memory_total_mib=16376), h100(3))
    [command] = [step.command for step in only("gpu.identical", mixed).advice if step.command]
    assert command == "export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1,3"
    variables = dict(word.split("=") for word in command.split()[1:])
    follows = put(mixed, environment=Environment(tuple(Variable(name, value) for name, value in variables.items())))
    report = report_of(follows)
    assert [fault.check for fault in report.faults] == []
    tie = node(h100(0), h100(1, name="NVIDIA GeForce RTX 4080"))
    assert any("CUDA_VISIBLE_DEVICES=..." in (step.command or "") for step in only("gpu.identical", tie).advice)


@pytest.mark.parametrize("leaf", ["settings__display_active", "memory_total_mib"])
def test_a_card_that_may_only_drive_a_display_is_not_failed(leaf: str) -> None:
    """With both values read it is left out; without one of them nobody knows whether it is."""
    small = h100(1, name="NVIDIA T400 4GB", memory_total_mib=4096, settings__display_active=True)
    assert status("gpu.identical", node(h100(0), put(small, **{leaf: FAILED}), h100(2))) == "unknown"
    shown = node(h100(0), put(small, settings__display_active=False), h100(2))
    assert status("gpu.identical", shown) == "warn"
