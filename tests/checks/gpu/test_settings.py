"""gpu.settings: compute mode, persistence, MIG and ECC mode."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.model.node import NumaNode
from tests.checks.gpu_nodes import FAILED, UNSUPPORTED, bad, eight, findings, h100, node, only, status, text, texts
from tests.checks.one_check import finds


def test_settings_are_said() -> None:
    found = findings("gpu.settings", eight())
    assert texts(found) == ["compute mode default, persistence on, MIG off"] * 8


@pytest.mark.parametrize(
    ("mode", "expected"), [("prohibited", "fail"), ("exclusive-process", "pass"), ("exclusive-thread", "pass")]
)
def test_only_a_prohibited_compute_mode_stops_training(mode: str, expected: str) -> None:
    assert status("gpu.settings", node(*(h100(i, settings__compute_mode=mode) for i in range(8)))) == expected


def test_one_exclusive_gpu_among_seven_is_named() -> None:
    bad_ones = bad("gpu.settings", eight(settings__compute_mode="exclusive-process"))
    finds(bad_ones, "warn", gpu=5, found="compute mode is exclusive-process, and default on most of the others")


def test_two_halves_of_different_compute_modes_are_one_finding_and_a_prohibited_one_is_no_mixture() -> None:
    halves = node(*(h100(i, settings__compute_mode="default" if i < 2 else "exclusive-process") for i in range(4)))
    finding = only("gpu.settings", halves)
    assert (finding.status.value, finding.subject.kind) == ("warn", "node")
    assert text(finding) == "default: GPU 0, 1; exclusive-process: GPU 2, 3"
    [finding] = bad("gpu.settings", eight(settings__compute_mode="prohibited"))
    assert (finding.status.value, finding.subject.gpu) == ("fail", 5)


OFF = {"settings__persistence": False}


def test_persistence_off_warns_on_bare_metal() -> None:
    finding = only("gpu.settings", eight(**OFF))
    assert (finding.status.value, finding.subject.gpu) == ("warn", 5)
    assert any(step.command and "nvidia-smi -pm 1" in step.command for step in finding.advice)


@pytest.mark.parametrize(
    ("gpu", "host"),
    [
        ({}, {"host__container": "docker"}),
        ({}, {"host__virtualization": "container"}),
        ({}, {"host__virtualization": "vm"}),
        ({"settings__virtualization": "passthrough"}, {}),
        ({"settings__virtualization": "vgpu"}, {}),
        ({"settings__display_active": True}, {}),
        ({"settings__addressing_mode": "ATS"}, {}),
        ({"name": "NVIDIA GB10"}, {}),
        ({"name": "NVIDIA GeForce RTX 4070 Laptop GPU"}, {}),
        ({}, {"host__numa_nodes": (NumaNode(0), NumaNode(4, is_gpu_memory=True))}),
    ],
)
def test_persistence_off_says_nothing_in_guests_on_desktops_and_on_grace(
    gpu: dict[str, Any], host: dict[str, Any]
) -> None:
    assert bad("gpu.settings", node(h100(**OFF, **gpu), **host)) == ()


def test_mig_on_some_gpus_only_fails_the_odd_ones() -> None:
    mig = {"settings__mig_enabled": True, "settings__mig_pending": True}
    finds(bad("gpu.settings", eight(**mig)), "fail", gpu=5, found="MIG is on, and off on the other GPUs")


def test_mig_on_all_gpus_is_fine() -> None:
    mig = {"settings__mig_enabled": True, "settings__mig_pending": True}
    assert status("gpu.settings", node(*(h100(i, **mig) for i in range(4)))) == "pass"


def test_a_tie_of_modes_is_one_finding_that_names_both_sides() -> None:
    bad_ones = bad("gpu.settings", node(h100(0), h100(1, settings__mig_enabled=True, settings__mig_pending=True)))
    finds(bad_ones, "fail", kind="node", found="MIG on: GPU 1; MIG off: GPU 0")


def test_a_different_ecc_mode_warns() -> None:
    finds(bad("gpu.settings", eight(ecc__enabled=False)), "warn", gpu=5)


def test_a_mig_change_that_waits_for_a_reset_warns() -> None:
    finding = only("gpu.settings", eight(settings__mig_pending=True))
    assert "MIG is off, and will be on" in text(finding)
    assert finding.evidence[0].value == "off, pending on"


def test_mig_without_an_instance_warns() -> None:
    empty = {"settings__mig_enabled": True, "settings__mig_pending": True, "settings__mig_instances": ()}
    assert status("gpu.settings", node(h100(**empty))) == "warn"
    assert status("gpu.settings", node(h100(**{**empty, "settings__mig_instances": UNSUPPORTED}))) == "pass"


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"settings__compute_mode": UNSUPPORTED}, "skip"),
        ({"settings__compute_mode": FAILED}, "unknown"),
        ({"settings__persistence": FAILED}, "unknown"),
        ({"settings__mig_enabled": UNSUPPORTED, "settings__mig_pending": UNSUPPORTED}, "pass"),
    ],
)
def test_without_the_compute_mode_there_is_no_pass(leaves: dict[str, Any], expected: str) -> None:
    assert status("gpu.settings", node(h100(**leaves))) == expected
