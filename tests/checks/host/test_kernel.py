"""host.kernel."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host, HostEvent, HostEventKind, KernelLog, Node, Source
from tests.checks.one_check import expect, judge, words

UP_S = 30 * 86_400.0
NOW_S = UP_S - 60


def event(kind: HostEventKind, device: str | None = None, count: int = 1, at_s: float | None = NOW_S) -> HostEvent:
    return HostEvent(kind, f"the kernel's line of {kind}", device, count, at_s, at_s)


def check(*events: HostEvent, source: str = "live", **log: Any) -> CheckResult:
    facts = KernelLog(events=(), host_events=events, source="/dev/kmsg", **log)
    host = Host(uptime_s=UP_S if source == "live" else Missing("not in this capture"))
    return judge("host.kernel", Node(source=Source(kind=source), kernel_log=facts, host=host))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["machine-check-fatal", "memory-uncorrected"])
def test_what_could_not_be_corrected_fails_however_long_ago(kind: HostEventKind) -> None:
    assert check(event(kind, "DIMM_A1", at_s=10.0)).status is Status.FAIL
    assert "DIMM_A1" in words(check(event(kind, "DIMM_A1")))


@pytest.mark.parametrize(
    "kind",
    ["machine-check", "soft-lockup", "hard-lockup", "rcu-stall", "hung-task", "oom-kill", "nfs-timeout", "io-error"],
)
def test_what_stops_a_training_warns_for_a_day(kind: HostEventKind) -> None:
    assert check(event(kind)).status is Status.WARN
    assert f"the kernel's line of {kind}" in words(check(event(kind)))
    expect(check(event(kind, at_s=UP_S - 3 * 86_400)), Status.PASS, "3 days ago")
    # a saved log has no age
    assert check(event(kind, at_s=None), source="capture").status is Status.WARN


def test_a_file_system_that_is_read_only_stays_so() -> None:
    assert check(event("read-only", "sda1", at_s=10.0)).status is Status.WARN


def test_a_kernel_that_crashed_in_a_process_warns_until_it_is_booted() -> None:
    assert check(event("oops", at_s=10.0)).status is Status.WARN
    assert check(event("panic", at_s=10.0)).status is Status.FAIL


def test_few_corrected_errors_are_normal() -> None:
    assert check(event("memory-corrected", "DIMM_A1", 9)).status is Status.PASS
    assert check(event("memory-corrected", "DIMM_A1", 10)).status is Status.WARN


def test_corrected_errors_are_counted_by_the_day_and_not_since_boot() -> None:
    since_boot = HostEvent("memory-corrected", "EDAC MC0: 1 CE", "MC0", 29, 10.0, NOW_S)
    assert check(since_boot).status is Status.PASS  # one a day
    burst = HostEvent("memory-corrected", "EDAC MC0: 1 CE", "MC0", 29, 10.0, NOW_S, count_last_day=28)
    assert check(burst).status is Status.WARN


def test_a_file_server_that_answers_again_is_over() -> None:
    silent, back = event("nfs-timeout", "store1", at_s=NOW_S - 50), event("nfs-ok", "store1")
    assert check(silent, back).status is Status.PASS
    assert check(silent, event("nfs-ok", "store2")).status is Status.WARN
    assert check(event("nfs-timeout", "store1"), event("nfs-ok", "store1", at_s=NOW_S - 50)).status is Status.WARN


@pytest.mark.parametrize("device", ["fd0", "sr0", "loop3"])
def test_drives_without_a_medium_are_left_alone(device: str) -> None:
    assert check(event("io-error", device, 50)).status is Status.PASS


@pytest.mark.parametrize("kind", ["nic-power", "nic-link-down", "signature-rejected"])
def test_what_other_checks_judge_is_left_to_them(kind: HostEventKind) -> None:
    assert check(event(kind)).status is Status.PASS


def test_a_log_that_was_not_read_is_no_pass() -> None:
    for kind, expected in (("failed", Status.UNKNOWN), ("denied", Status.SKIP), ("absent", Status.SKIP)):
        log = KernelLog(events=(), host_events=Missing("not read", kind))  # type: ignore[arg-type]
        assert judge("host.kernel", Node(kernel_log=log)).status is expected


def test_a_log_that_does_not_reach_back_a_day_is_no_pass() -> None:
    gap: dict[str, Any] = {"truncated": True, "gap": "overwritten"}
    assert check(starts_s=UP_S - 3600, **gap).status is Status.UNKNOWN
    assert check(starts_s=UP_S - 2 * 86_400, **gap).status is Status.PASS
    assert check(**gap).status is Status.UNKNOWN
    assert check(event("oom-kill"), **gap).status is Status.WARN


def test_a_machine_check_of_memory_names_the_dimm_that_edac_found() -> None:
    dimm = HostEvent(
        "memory-corrected", "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0", "MC1"
    )
    result = check(event("machine-check", at_s=None), dimm, source="capture")
    expect(result, Status.WARN, "CPU_SrcID#1_Ha#0_Chan#0_DIMM#0")
