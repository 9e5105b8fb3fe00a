"""gpu.temperature: the GPU's own limits, margins and peers."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.model.missing import Missing
from tests.checks.gpu_nodes import UNSUPPORTED, eight, h100, node, only, put, status, text

ABSENT = Missing("not in this capture")


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
