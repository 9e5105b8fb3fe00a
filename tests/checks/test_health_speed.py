"""gpu.throttle, gpu.temperature, gpu.power-limit and gpu.clocks."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.case import Case
from gpudoctor.facts.model.missing import Missing
from gpudoctor.profiles.profile import GpuModel, Profile
from tests.checks.gpu_nodes import (
    FAILED,
    UNSUPPORTED,
    bad,
    eight,
    findings,
    h100,
    node,
    only,
    put,
    status,
    text,
)

ABSENT = Missing("not in this capture")


# gpu.throttle


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (("hw-slowdown",), "fail"),
        (("hw-thermal", "hw-slowdown"), "fail"),
        (("hw-power-brake", "sw-power-cap"), "fail"),
        (("sw-thermal",), "warn"),
        (("idle",), "pass"),
        (("sw-power-cap",), "pass"),
        (("application-clocks", "sync-boost", "display-clocks"), "pass"),
        (("0x200",), "pass"),
        ((), "pass"),
    ],
)
def test_harmful_bits_are_told_from_benign_ones(reasons: tuple[str, ...], expected: str) -> None:
    subject = eight(clocks__event_reasons=reasons)
    assert status("gpu.throttle", subject) == expected
    if expected != "pass":
        assert only("gpu.throttle", subject).subject.gpu == 5


def test_the_narrower_bit_names_the_cause() -> None:
    finding = only("gpu.throttle", eight(clocks__event_reasons=("hw-slowdown", "hw-power-brake")))
    assert text(finding) == "the power supply's brake signal slows it (hw-power-brake)"
    assert "PSU" in (finding.likely or "")


@pytest.mark.parametrize(("slowed_s", "expected"), [(864, "pass"), (900, "warn")])
def test_time_slowed_in_the_past_warns_from_one_percent(slowed_s: int, expected: str) -> None:
    assert status("gpu.throttle", node(h100(throttle_times__hw_thermal_us=slowed_s * 1_000_000))) == expected


def test_counters_of_microseconds_or_of_power_capping_are_noise() -> None:
    times = {"throttle_times__hw_power_brake_us": 37, "throttle_times__sw_power_cap_us": 7_015_662_857}
    assert status("gpu.throttle", node(h100(**times))) == "pass"


# gpu.temperature

ABSOLUTE = {
    "thermal__margin_c": UNSUPPORTED,
    "thermal__slowdown_c": 95,
    "thermal__max_operating_c": 88,
    "thermal__memory_max_c": 95,
}


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"thermal__margin_c": 0}, "pass"),
        ({"thermal__margin_c": -1}, "warn"),
        ({"thermal__margin_c": -2}, "fail"),
        ({**ABSOLUTE, "thermal__gpu_c": 88}, "pass"),
        ({**ABSOLUTE, "thermal__gpu_c": 89}, "warn"),
        ({**ABSOLUTE, "thermal__gpu_c": 95}, "fail"),
        ({**ABSOLUTE, "thermal__memory_c": 96}, "warn"),
        ({**ABSOLUTE, "thermal__memory_c": 95}, "pass"),
    ],
)
def test_the_gpus_own_limits_judge(leaves: dict[str, Any], expected: str) -> None:
    assert status("gpu.temperature", node(h100(**leaves))) == expected


def test_margins_that_make_no_sense_are_not_used() -> None:
    mock = {"thermal__margin_c": 0, "thermal__slowdown_margin_c": 0, "thermal__max_operating_margin_c": 4}
    assert status("gpu.temperature", node(h100(**mock))) == "skip"
    assert status("gpu.temperature", node(*(h100(i, **mock) for i in range(3)))) == "pass"


@pytest.mark.parametrize(("degrees", "expected"), [(40, "pass"), (41, "warn")])
def test_a_gpu_hotter_than_its_peers_at_equal_load_is_named(degrees: int, expected: str) -> None:
    subject = eight(thermal__gpu_c=degrees)
    assert status("gpu.temperature", subject) == expected
    if expected == "warn":
        finding = only("gpu.temperature", subject)
        assert finding.subject.gpu == 5
        assert text(finding) == "41 C, 11 C hotter than its peers at equal load"


def test_a_busy_gpu_is_not_compared_with_idle_ones() -> None:
    assert status("gpu.temperature", eight(thermal__gpu_c=70, power__draw_w=650.0)) == "pass"


def test_where_power_is_not_known_only_idle_gpus_are_compared() -> None:
    idle = [h100(i, power__draw_w=UNSUPPORTED, thermal__gpu_c=60 if i == 2 else 30) for i in range(4)]
    assert status("gpu.temperature", node(*idle)) == "warn"
    busy = [put(g, clocks__event_reasons=()) for g in idle]
    assert status("gpu.temperature", node(*busy)) == "pass"


def test_two_gpus_cannot_tell_which_is_the_odd_one() -> None:
    assert status("gpu.temperature", node(h100(0, thermal__gpu_c=60), h100(1))) == "pass"


def test_no_limits_and_no_peers_is_no_pass() -> None:
    unlimited = {"thermal__margin_c": ABSENT, "thermal__slowdown_margin_c": ABSENT}
    assert status("gpu.temperature", node(h100(**unlimited))) == "skip"
    assert status("gpu.temperature", node(h100(**unlimited, thermal__slowdown_c=0))) == "skip"


# gpu.power-limit


@pytest.mark.parametrize(("limit_w", "expected"), [(700.0, "pass"), (695.0, "pass"), (690.0, "warn"), (750.0, "pass")])
def test_a_cap_below_default_warns_and_never_fails(limit_w: float, expected: str) -> None:
    assert status("gpu.power-limit", node(h100(power__limit_w=limit_w))) == expected


def test_a_cap_says_what_it_costs_and_how_to_undo_it() -> None:
    finding = only("gpu.power-limit", eight(power__limit_w=350.0))
    assert finding.subject.gpu == 5
    assert text(finding) == "capped at 350 W, 50 % below the GPU's own default"
    assert any(step.command and "-pl 700" in step.command for step in finding.advice)


def test_peers_judge_where_the_default_is_not_known() -> None:
    subject = node(
        *(h100(i, power__default_limit_w=UNSUPPORTED, power__limit_w=300.0 if i == 1 else 400.0) for i in range(4))
    )
    finding = only("gpu.power-limit", subject)
    assert finding.subject.gpu == 1
    assert finding.expected is not None
    assert finding.expected.source == "majority of the peers"


def test_peers_of_another_model_do_not_judge() -> None:
    small = h100(2, name="NVIDIA L4", power__limit_w=72.0, power__default_limit_w=72.0)
    assert status("gpu.power-limit", node(h100(0), h100(1), small)) == "pass"


def test_neither_default_nor_peers_is_no_pass_unless_the_profile_tells() -> None:
    subject = node(h100(power__default_limit_w=UNSUPPORTED, power__limit_w=350.0))
    assert status("gpu.power-limit", subject) == "skip"
    model = GpuModel("h100", ("h100",), power_limit_w=700.0)
    assert status("gpu.power-limit", Case(node=subject, profile=Profile("h", "name", gpu=model))) == "warn"
    doubtful = GpuModel("h100", ("h100",), power_limit_w=700.0, uncertain=("power_limit_w",))
    assert status("gpu.power-limit", Case(node=subject, profile=Profile("h", "name", gpu=doubtful))) == "skip"


# gpu.clocks

BUSY = {"clocks__event_reasons": (), "utilization__gpu_pct": 98, "clocks__sm_mhz": 1980}
LOCKED = {**BUSY, "clocks__sm_mhz": 345}


def test_a_busy_gpu_locked_low_fails_and_its_peers_do_not() -> None:
    subject = node(*(h100(i, **(LOCKED if i == 3 else BUSY)) for i in range(4)))
    finding = only("gpu.clocks", subject)
    assert (finding.status.value, finding.subject.gpu) == ("fail", 3)
    assert text(finding) == "runs at 345 of 1980 MHz with no reason to slow down"


def test_a_low_clock_of_a_moment_on_a_gpu_that_may_not_be_working_only_warns() -> None:
    assert status("gpu.clocks", eight(**{**LOCKED, "utilization__gpu_pct": 10})) == "warn"
    assert status("gpu.clocks", eight(**{**LOCKED, "utilization__gpu_pct": UNSUPPORTED})) == "warn"


def test_clocks_that_all_gpus_share_are_not_a_lock_down_of_one() -> None:
    assert bad("gpu.clocks", node(*(h100(i, **LOCKED) for i in range(4)))) == ()


@pytest.mark.parametrize("reason", ["idle", "sw-power-cap", "hw-thermal", "sw-thermal", "hw-power-brake"])
def test_a_low_clock_with_a_reason_is_left_to_the_check_of_that_reason(reason: str) -> None:
    assert bad("gpu.clocks", eight(**{**LOCKED, "clocks__event_reasons": (reason,)})) == ()


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
    [finding] = findings("gpu.clocks", node(h100(**NO_SETTINGS)))
    assert (finding.status.value, finding.reason) == ("skip", "clocks say nothing now: it is idle")


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
    mixed = Case(node=node(h100(0, **bare), h100(1, **bare), other), profile=Profile("h100", "name", gpu=model))
    assert bad("gpu.power-limit", mixed) == ()
    assert bad("gpu.ecc", mixed) == ()
