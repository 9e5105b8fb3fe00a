"""gpu.in-use: other processes, and memory that no process owns."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.missing import Missing
from tests.checks.gpu_nodes import FAILED, UNSUPPORTED, bad, eight, findings, h100, node, only, put, status, text, texts
from tests.checks.one_check import finds


def process(name: str = "python3", kind: str = "C", own: bool = False) -> GpuProcess:
    return GpuProcess(pid=4711, name=name, kind=kind, memory_mib=20480, user="ada", is_own=own)


def test_a_strangers_process_is_named_with_pid_user_and_memory() -> None:
    bad_ones = bad("gpu.in-use", eight(processes=(process(),), memory_used_mib=20500))
    finds(bad_ones, "warn", gpu=5, found="in use by python3 (pid 4711, ada, 20480 MiB)")


def test_a_busy_gpu_in_exclusive_process_mode_is_held_by_somebody_who_is_not_listed() -> None:
    unlisted = Missing("not in this text")
    busy = {"settings__compute_mode": "exclusive-process", "utilization__gpu_pct": 97}
    finding = only("gpu.in-use", node(h100(5, processes=unlisted, power__draw_w=610.0, **busy)))
    assert (finding.status.value, finding.subject.gpu) == ("warn", 5)
    assert "97 % busy in exclusive-process mode" in text(finding)
    # utilisation that has stayed after a process died: an idle GPU draws no power
    assert status("gpu.in-use", node(h100(5, processes=unlisted, power__draw_w=70.0, **busy))) == "skip"
    # a list that could not be read is unknown, whatever else is seen
    unread = Missing("no permission", "failed")
    assert status("gpu.in-use", node(h100(5, processes=unread, power__draw_w=610.0, **busy))) == "unknown"


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
    assert status("gpu.in-use", subject, limit_overrides=override) == "pass"
