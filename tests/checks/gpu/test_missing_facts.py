"""Checks of single GPUs: a healthy GPU passes, one whose essential fact is missing never does."""

from __future__ import annotations

import pytest

from gpudoctor.facts.model.missing import Missing
from tests.checks.gpu_nodes import DENIED, FAILED, eight, findings, h100, node, status, text

ABSENT = Missing("not in this capture")


@pytest.mark.parametrize(
    ("check", "essential"),
    [
        ("gpu.ecc", "ecc__uncorrected_volatile"),
        ("gpu.throttle", "clocks__event_reasons"),
        ("gpu.temperature", "thermal__gpu_c"),
        ("gpu.power-limit", "power__limit_w"),
    ],
)
@pytest.mark.parametrize(("missing", "expected"), [(ABSENT, "skip"), (DENIED, "skip"), (FAILED, "unknown")])
def test_without_its_essential_fact_a_check_never_passes(
    check: str, essential: str, missing: Missing, expected: str
) -> None:
    assert status(check, node(h100(**{essential: missing}))) == expected


@pytest.mark.parametrize(
    "check",
    ["gpu.ecc", "gpu.memory-repair", "gpu.throttle", "gpu.temperature", "gpu.power-limit", "gpu.clocks"],
)
def test_every_healthy_gpu_passes_by_name(check: str) -> None:
    found = findings(check, eight())
    assert [(f.subject.gpu, f.status.value) for f in found] == [(i, "pass") for i in range(8)]
    assert all(text(f) for f in found)
