"""network.adapters."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.kernel_log.lines import read_kernel_text
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host, HostEvent, HostEventKind, KernelLog, Network, Node, RdmaPort
from tests.checks.one_check import expect, finds, judge, words

UP_S = 10 * 86_400.0
NOW_S = UP_S - 60
POWER = "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268586): Detected insufficient power on the PCIe slot (27W)."
ABSENT = Missing("not in this capture")
FAILED = Missing("asked in vain", "failed")


def port(number: int, **facts: Any) -> RdmaPort:
    counters = dict.fromkeys(("link_downed", "link_recoveries", "symbol_errors", "receive_errors"), 0)
    given: dict[str, Any] = {"bus_id": f"0000:{0x5C + number:02x}:00.0", **counters, **facts}
    return RdmaPort(f"mlx5_{number}", 1, "ACTIVE", "LinkUp", "InfiniBand", **given)


def ports(**last: Any) -> tuple[RdmaPort, ...]:
    return (*(port(number) for number in range(3)), port(3, **last))


def event(kind: HostEventKind, count: int = 1, *, device: str | None = "0000:5c:00.0", **times: Any) -> HostEvent:
    return HostEvent(kind, POWER if kind == "nic-power" else f"a line of {kind}", device, count, **times)


def check(*events: HostEvent, up_s: float | Missing = UP_S, rdma: Any = None, log: Any = None) -> CheckResult:
    kernel = KernelLog(events=(), host_events=events if log is None else log)
    network = Network(rdma_ports=ports() if rdma is None else rdma)
    return judge("network.adapters", Node(kernel_log=kernel, network=network, host=Host(uptime_s=up_s)))


def test_sound_adapters_pass_with_what_was_looked_at() -> None:
    assert "4 adapters without a fault in counters and kernel log" in words(check())
    assert check().status is Status.PASS


def test_the_limit_that_was_passed_is_named() -> None:
    for count, limit in ((3, "fewer than 3 times in 3 hours"), (6, "fewer than 5 times a day")):
        assert limit in words(check(event("nic-link-down", count)))


def test_links_lost_today_are_not_outweighed_by_one_lost_long_ago() -> None:
    lost: dict[str, Any] = {"first_s": 60.0, "last_s": NOW_S, "device": "0000:5c:00.0"}
    assert check(HostEvent("nic-link-down", "Link down", count=7, **lost)).status is Status.PASS
    assert check(HostEvent("nic-link-down", "Link down", count=7, count_last_day=6, **lost)).status is Status.WARN


def test_too_little_power_warns_by_the_adapters_name_since_boot() -> None:
    result = check(event("nic-power", first_s=12.0, last_s=12.0))
    finds(result.findings, Status.WARN, "insufficient power", name="mlx5_0")
    # a paste of the line alone knows the adapter by its address
    alone = check(event("nic-power"), rdma=ABSENT, up_s=ABSENT)
    assert [(f.status, f.subject.name) for f in alone.findings] == [(Status.WARN, "0000:5c:00.0")]


@pytest.mark.parametrize("kind", ["nic-firmware", "nic-cable", "nic-temperature"])
def test_complaints_of_adapters_warn_for_a_day(kind: HostEventKind) -> None:
    assert check(event(kind, last_s=NOW_S)).status is Status.WARN
    assert check(event(kind, last_s=NOW_S - 2 * 86_400)).status is Status.PASS


@pytest.mark.parametrize(
    ("downs", "first_s", "last_s", "status"),
    [
        (1, NOW_S, NOW_S, Status.PASS),
        (2, NOW_S - 60, NOW_S, Status.PASS),
        (3, NOW_S - 3 * 3600, NOW_S, Status.WARN),
        (3, NOW_S - 4 * 3600, NOW_S, Status.PASS),
        (5, NOW_S - 20 * 3600, NOW_S, Status.WARN),
        (9, NOW_S - 2 * 86_400, NOW_S, Status.PASS),
        (50, 10.0, 3600.0, Status.PASS),
    ],
)
def test_links_that_drop_again_and_again_warn(downs: int, first_s: float, last_s: float, status: Status) -> None:
    event_down = event("nic-link-down", downs, first_s=first_s, last_s=last_s)
    up = event("nic-link-up", downs, first_s=first_s, last_s=last_s)
    assert check(event_down, up).status is status


def test_in_a_text_without_times_three_losses_are_too_many() -> None:
    assert check(event("nic-link-down", 3), event("nic-link-up", 3), rdma=ABSENT, up_s=ABSENT).status is Status.WARN
    assert check(event("nic-link-down", 2), event("nic-link-up", 2), rdma=ABSENT, up_s=ABSENT).status is Status.PASS


def test_a_link_that_does_not_come_back_warns_if_only_the_log_tells() -> None:
    down, up = event("nic-link-down"), event("nic-link-up")
    assert check(down, rdma=ABSENT).status is Status.WARN
    assert check(down, up, rdma=ABSENT).status is Status.PASS
    assert check(down).status is Status.PASS  # network.infiniband reports whether a known port is up


@pytest.mark.parametrize(("lost", "status"), [(4, Status.PASS), (49, Status.PASS), (50, Status.WARN)])
def test_lost_links_are_held_against_the_days(lost: int, status: Status) -> None:
    result = check(rdma=ports(link_downed=lost))
    assert result.status is status
    assert [f.subject.name for f in result.findings if f.status is Status.WARN] == ["mlx5_3"] * (status is Status.WARN)


@pytest.mark.parametrize("name", ["symbol_errors", "receive_errors", "link_recoveries"])
def test_errors_are_held_against_the_hours_and_else_against_the_peers(name: str) -> None:
    assert check(rdma=ports(**{name: 2400})).status is Status.PASS
    assert check(rdma=ports(**{name: 2401})).status is Status.WARN
    assert check(rdma=ports(**{name: 9}), up_s=60.0).status is Status.PASS
    assert check(rdma=ports(**{name: 11}), up_s=ABSENT).status is Status.WARN
    alike = tuple(port(number, **{name: 2401}) for number in range(4))
    assert check(rdma=alike, up_s=ABSENT).status is Status.PASS


def test_what_was_not_read_is_no_pass() -> None:
    assert check(log=FAILED).status is Status.UNKNOWN
    assert check(rdma=FAILED).status is Status.UNKNOWN
    assert check(rdma=ports(symbol_errors=FAILED)).status is Status.UNKNOWN
    assert check(rdma=ABSENT, log=ABSENT).status is Status.SKIP
    assert check(rdma=()).status is Status.SKIP
    blind = tuple(RdmaPort(f"mlx5_{number}", 1, "ACTIVE") for number in range(2))
    assert check(rdma=blind, log=ABSENT).status is Status.SKIP
    assert check(rdma=ports(), log=ABSENT).status is Status.PASS


def test_links_that_only_come_up_in_an_excerpt_were_lost_in_between() -> None:
    def status(*events: HostEvent, up_s: float | Missing = ABSENT) -> Status:
        log = KernelLog(events=(), host_events=events)
        return judge("network.adapters", Node(host=Host(uptime_s=up_s), kernel_log=log)).status

    assert status(event("nic-link-up", 4)) is Status.WARN
    assert status(event("nic-link-up", 3)) is Status.PASS  # as a boot leaves them
    assert status(event("nic-link-up", 4, first_s=10.0, last_s=90_000.0)) is Status.PASS
    assert status(event("nic-link-up", 4), up_s=NOW_S) is Status.PASS  # a whole log has the losses too
    other = (event("nic-link-down", device="0000:5d:00.0"), event("nic-link-up", device="0000:5d:00.0"))
    assert status(event("nic-link-up", 4), *other) is Status.PASS


def test_an_adapter_whose_limits_are_exceeded_is_no_broken_one() -> None:
    line = (
        "mlx5_core 0000:5c:00.0: mlx5_cmd_out_err:800:(pid 0): CREATE_MKEY(0x200) failed, status limits exceeded(0x8)"
    )
    result = check(HostEvent("nic-firmware", line, "0000:5c:00.0", last_s=NOW_S))
    expect(result, Status.WARN, "memory regions")
    assert "mlxfwreset" not in words(result)


def ups(*interfaces: str, at_s: float) -> CheckResult:
    lines = (f"[{at_s + i:.6f}] mlx5_core 0000:5c:00.0 {name}: Link up\n" for i, name in enumerate(interfaces))
    log = read_kernel_text("".join(lines), "dmesg.txt")
    return judge("network.adapters", Node(kernel_log=log))


def test_links_that_come_up_again_and_again_are_counted_for_each_interface_and_after_boot() -> None:
    assert ups(*["eth2"] * 5, at_s=5000).status is Status.WARN
    assert ups("eth2", "rep0", "rep1", "rep2", "rep3", at_s=5000).status is Status.PASS
    assert ups(*["eth2"] * 5, at_s=18).status is Status.PASS, "drivers set their links up several times at boot"
