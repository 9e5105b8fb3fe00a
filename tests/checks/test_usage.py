"""gpu.settings and gpu.in-use."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.case import Case
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import NumaNode
from tests.checks.gpu_nodes import FAILED, UNSUPPORTED, bad, eight, findings, h100, node, only, put, status, text, texts

# gpu.settings


def test_settings_are_said() -> None:
    found = findings("gpu.settings", eight())
    assert texts(found) == ["compute mode default, persistence on, MIG off"] * 8


@pytest.mark.parametrize(
    ("mode", "expected"), [("prohibited", "fail"), ("exclusive-process", "pass"), ("exclusive-thread", "pass")]
)
def test_only_a_prohibited_compute_mode_stops_training(mode: str, expected: str) -> None:
    assert status("gpu.settings", node(*(h100(i, settings__compute_mode=mode) for i in range(8)))) == expected


def test_one_exclusive_gpu_among_seven_is_named() -> None:
    finding = only("gpu.settings", eight(settings__compute_mode="exclusive-process"))
    assert (finding.status.value, finding.subject.gpu) == ("warn", 5)
    assert text(finding) == "compute mode is exclusive-process, and default on most of the others"


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
        ({}, {"host__numa_nodes": (NumaNode(0), NumaNode(4, is_gpu_memory=True))}),
    ],
)
def test_persistence_off_says_nothing_in_guests_on_desktops_and_on_grace(
    gpu: dict[str, Any], host: dict[str, Any]
) -> None:
    assert bad("gpu.settings", node(h100(**OFF, **gpu), **host)) == ()


def test_mig_on_some_gpus_only_fails_the_odd_ones() -> None:
    mig = {"settings__mig_enabled": True, "settings__mig_pending": True}
    finding = only("gpu.settings", eight(**mig))
    assert (finding.status.value, finding.subject.gpu) == ("fail", 5)
    assert text(finding) == "MIG is on, and off on the other GPUs"


def test_mig_on_all_gpus_is_fine() -> None:
    mig = {"settings__mig_enabled": True, "settings__mig_pending": True}
    assert status("gpu.settings", node(*(h100(i, **mig) for i in range(4)))) == "pass"


def test_a_tie_of_modes_is_one_finding_that_names_both_sides() -> None:
    finding = only("gpu.settings", node(h100(0), h100(1, settings__mig_enabled=True, settings__mig_pending=True)))
    assert (finding.status.value, finding.subject.kind) == ("fail", "node")
    assert text(finding) == "MIG on: GPU 1; MIG off: GPU 0"


def test_a_different_ecc_mode_warns() -> None:
    finding = only("gpu.settings", eight(ecc__enabled=False))
    assert (finding.status.value, finding.subject.gpu) == ("warn", 5)


def test_a_mig_change_that_waits_for_a_reset_warns() -> None:
    assert "MIG is off, and will be on" in text(only("gpu.settings", eight(settings__mig_pending=True)))


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


# gpu.in-use


def process(name: str = "python3", kind: str = "C", own: bool = False) -> GpuProcess:
    return GpuProcess(pid=4711, name=name, kind=kind, memory_mib=20480, user="ada", is_own=own)


def test_a_strangers_process_is_named_with_pid_user_and_memory() -> None:
    finding = only("gpu.in-use", eight(processes=(process(),), memory_used_mib=20500))
    assert (finding.status.value, finding.subject.gpu) == ("warn", 5)
    assert text(finding) == "in use by python3 (pid 4711, ada, 20480 MiB)"


@pytest.mark.parametrize(
    "harmless",
    [
        process(own=True),
        process("/usr/lib/xorg/Xorg", "G"),
        process("/usr/bin/gnome-shell", "C+G"),
        process("some-game", "G"),
        process("nvidia-cuda-mps-server", "M"),
    ],
)
def test_own_display_and_mps_processes_are_not_stray(harmless: GpuProcess) -> None:
    assert status("gpu.in-use", node(h100(processes=(harmless,), memory_used_mib=9000))) == "pass"


def test_a_process_without_a_name_is_still_told() -> None:
    nameless = GpuProcess(pid=12)
    assert text(only("gpu.in-use", node(h100(processes=(nameless,))))) == "in use by a process (pid 12)"


@pytest.mark.parametrize(("used_mib", "expected"), [(500, "pass"), (501, "warn")])
def test_memory_without_an_owner_warns(used_mib: int, expected: str) -> None:
    assert status("gpu.in-use", eight(memory_used_mib=used_mib)) == expected


@pytest.mark.parametrize(("used_mib", "expected"), [(900, "pass"), (1600, "warn")])
def test_old_drivers_count_their_reserve_as_used(used_mib: int, expected: str) -> None:
    assert status("gpu.in-use", node(h100(memory_reserved_mib=UNSUPPORTED, memory_used_mib=used_mib))) == expected


@pytest.mark.parametrize(
    ("gpu", "host"),
    [
        ({}, {"host__container": "docker"}),
        ({"settings__mig_enabled": True}, {}),
        ({"settings__virtualization": "vgpu"}, {}),
        ({"name": "NVIDIA GB10"}, {}),
        ({"settings__addressing_mode": "ATS"}, {}),
    ],
)
def test_an_empty_process_list_proves_nothing_where_processes_are_hidden(
    gpu: dict[str, Any], host: dict[str, Any]
) -> None:
    assert status("gpu.in-use", node(h100(memory_used_mib=30_000, **gpu), **host)) == "skip"


@pytest.mark.parametrize(("missing", "expected"), [(UNSUPPORTED, "skip"), (FAILED, "unknown")])
def test_an_unread_process_list_is_no_pass(missing: Missing, expected: str) -> None:
    assert status("gpu.in-use", node(h100(processes=missing))) == expected


def test_unknown_memory_does_not_hide_that_no_process_is_there() -> None:
    assert texts(findings("gpu.in-use", node(h100(memory_used_mib=UNSUPPORTED)))) == ["no other process"]


def test_the_limit_for_leaks_can_be_configured_per_model() -> None:
    override = {("gpu.in-use", "leaked_mib", "h100"): 2000.0}
    subject = put(eight(memory_used_mib=900))
    assert status("gpu.in-use", Case(node=subject, limit_overrides=override)) == "pass"
