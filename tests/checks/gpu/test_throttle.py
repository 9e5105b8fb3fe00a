"""gpu.throttle: clock event reasons and time slowed."""

from __future__ import annotations

import pytest

from tests.checks.gpu_nodes import eight, h100, node, only, status, text


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
    assert finding.advice[-1].command == "gpudoctor check gpu.throttle compute --level full"  # idle, it proves nothing
    assert "PSU" in (finding.likely or "")


@pytest.mark.parametrize(("slowed_s", "expected"), [(864, "pass"), (900, "warn")])
def test_time_slowed_in_the_past_warns_from_one_percent(slowed_s: int, expected: str) -> None:
    assert status("gpu.throttle", node(h100(throttle_times__hw_thermal_us=slowed_s * 1_000_000))) == expected


def test_more_time_slowed_than_there_was_is_no_reading() -> None:
    subject = node(h100(throttle_times__hw_thermal_us=10**15))
    assert status("gpu.throttle", subject) == "unknown"
    assert "make" in (only("gpu.throttle", subject).reason or "")


def test_counters_of_microseconds_or_of_power_capping_are_noise() -> None:
    times = {"throttle_times__hw_power_brake_us": 37, "throttle_times__sw_power_cap_us": 7_015_662_857}
    assert status("gpu.throttle", node(h100(**times))) == "pass"
