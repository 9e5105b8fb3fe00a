"""host.swap: swap in use beyond what idle services leave there."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host, Node
from tests.checks.one_check import judge, words

FAILED = Missing("read error", "failed")


def swap(total: Any, free: Any, ram_gib: Any = 64, **case: Any) -> CheckResult:
    ram = ram_gib if isinstance(ram_gib, Missing) else ram_gib * 1024
    return judge("host.swap", Node(host=Host(swap_mib=total, swap_free_mib=free, ram_mib=ram)), **case)


@pytest.mark.parametrize(
    ("total_mib", "free_mib", "ram_gib", "status"),
    [
        (0, 0, 64, Status.PASS),
        (8192, 8192, 64, Status.PASS),
        (8192, 7168, 64, Status.PASS),  # 1 GiB: idle services
        (8192, 7167, 64, Status.WARN),
        (65536, 65536 - 20000, 2048, Status.PASS),  # below 1 % of 2 TiB
        (65536, 65536 - 21000, 2048, Status.WARN),
    ],
)
def test_swap_in_use_warns_above_both_limits(total_mib: int, free_mib: int, ram_gib: int, status: Status) -> None:
    assert swap(total_mib, free_mib, ram_gib).status is status


def test_the_warning_says_how_much_and_how_to_look_further() -> None:
    said = words(swap(16384, 8192))
    assert "8 GiB of 16 GiB swap in use" in said
    assert "at most 1 GiB" in said
    assert "vmstat" in said


@pytest.mark.parametrize(
    ("total", "free", "ram", "status"),
    [
        (FAILED, 0, 64, Status.UNKNOWN),
        (8192, FAILED, 64, Status.UNKNOWN),
        (Missing("not in this capture"), 0, 64, Status.SKIP),
        (8192, Missing("not in this capture"), 64, Status.SKIP),
        (8192, 0, FAILED, Status.UNKNOWN),  # 8 GiB in use: much or little of the RAM
        (8192, 8192, FAILED, Status.PASS),
        (8192, 9000, 64, Status.UNKNOWN),  # more free than there is
        (0, FAILED, 64, Status.PASS),
    ],
)
def test_what_was_not_read_never_passes_as_no_swap(total: Any, free: Any, ram: Any, status: Status) -> None:
    assert swap(total, free, ram).status is status


def test_a_configured_limit_is_in_force() -> None:
    assert swap(8192, 0, limit_overrides={("host.swap", "used_mib", ""): 9000}).status is Status.PASS
