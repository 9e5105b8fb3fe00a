"""gpu.clocks: locked and lowered clocks."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.missing import Missing
from gpudoctor.profiles.profile import GpuModel, Profile
from tests.checks.gpu_nodes import FAILED, UNSUPPORTED, bad, eight, findings, h100, node, only, status, text
from tests.checks.one_check import finds

ABSENT = Missing("not in this capture")


BUSY = {"clocks__event_reasons": (), "utilization__gpu_pct": 98, "clocks__sm_mhz": 1980}
LOCKED = {**BUSY, "clocks__sm_mhz": 345}


def test_a_busy_gpu_locked_low_fails_and_its_peers_do_not() -> None:
    subject = node(*(h100(i, **(LOCKED if i == 3 else BUSY)) for i in range(4)))
    finds(bad("gpu.clocks", subject), "fail", gpu=3, found="runs at 345 of 1980 MHz with no reason to slow down")


def test_a_low_clock_of_a_moment_on_a_gpu_that_may_not_be_working_only_warns() -> None:
    assert status("gpu.clocks", eight(**{**LOCKED, "utilization__gpu_pct": 10})) == "warn"
    assert status("gpu.clocks", eight(**{**LOCKED, "utilization__gpu_pct": UNSUPPORTED})) == "warn"


def test_clocks_that_all_gpus_share_are_not_a_lock_down_of_one() -> None:
    assert bad("gpu.clocks", node(*(h100(i, **LOCKED) for i in range(4)))) == ()


@pytest.mark.parametrize("reason", ["idle", "sw-power-cap", "hw-thermal", "sw-thermal", "hw-power-brake"])
def test_a_low_clock_with_a_reason_is_left_to_the_check_of_that_reason(reason: str) -> None:
    assert bad("gpu.clocks", eight(**{**LOCKED, "clocks__event_reasons": (reason,)})) == ()


def test_a_low_clock_with_a_reason_that_a_newer_driver_invented_is_unknown() -> None:
    new = {**LOCKED, "clocks__event_reasons": ("0x400",), "utilization__gpu_pct": 90}
    (finding,) = bad("gpu.clocks", eight(**new))
    assert (finding.status, "0x400" in (finding.reason or "")) == (Status.UNKNOWN, True)


@pytest.mark.parametrize(("mhz", "expected"), [(1980, "pass"), (1900, "pass"), (1410, "warn")])
def test_application_clocks_below_default_warn_even_when_idle(mhz: int, expected: str) -> None:
    assert status("gpu.clocks", eight(clocks__application_graphics_mhz=mhz)) == expected


def test_a_lowered_memory_clock_is_seen_too() -> None:
    assert "memory clock" in text(only("gpu.clocks", eight(clocks__application_memory_mhz=1593)))


NO_SETTINGS = {"clocks__application_graphics_mhz": UNSUPPORTED, "clocks__application_memory_mhz": UNSUPPORTED}


def test_application_clocks_of_0_are_none() -> None:
    nothing = dict.fromkeys(("clocks__application_graphics_mhz", "clocks__default_graphics_mhz"), 0)
    assert status("gpu.clocks", node(h100(**nothing))) == "skip"


def test_an_idle_gpu_without_clock_settings_is_skipped() -> None:
    finds(findings("gpu.clocks", node(h100(**NO_SETTINGS))), "skip", found="clocks say nothing now: it is idle")


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"clocks__sm_mhz": FAILED}, "unknown"),
        ({"clocks__sm_mhz": ABSENT}, "skip"),
        ({"clocks__event_reasons": UNSUPPORTED}, "skip"),
        (BUSY, "pass"),
    ],
)
def test_without_settings_the_clock_of_now_is_the_essential_fact(leaves: dict[str, Any], expected: str) -> None:
    assert status("gpu.clocks", node(h100(**{**NO_SETTINGS, **leaves}))) == expected


def test_gpus_whose_models_are_not_known_are_nobodys_peers() -> None:
    unnamed = {"name": Missing("blotted out"), "power__default_limit_w": Missing("not supported", "unsupported")}
    three = [h100(i, **unnamed) for i in range(2)] + [h100(2, **unnamed, power__limit_w=350.0, thermal__gpu_c=60)]
    assert status("gpu.power-limit", node(*three)) == "skip"
    assert status("gpu.temperature", node(*three)) == "pass"


def test_the_profile_of_the_majority_says_nothing_of_another_model_beside_it() -> None:
    model = GpuModel(name="H100", patterns=("H100 80GB HBM3",), power_limit_w=700, ecc="yes")
    bare = {"power__default_limit_w": Missing("not supported", "unsupported")}
    other = h100(2, name="NVIDIA L4", **bare, power__limit_w=72.0, ecc__enabled=False, ecc__pending=False)
    mixed, profile = node(h100(0, **bare), h100(1, **bare), other), Profile("h100", "name", gpu=model)
    assert bad("gpu.power-limit", mixed, profile=profile) == ()
    assert bad("gpu.ecc", mixed, profile=profile) == ()
