"""Suppressions: set aside until a day, never a pass."""

from __future__ import annotations

import datetime

from gpudoctor.checks.core.finding import Status, fail, ok, unknown
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import Subject
from gpudoctor.checks.core.suppressions import Suppression, apply_suppressions

TODAY = datetime.date(2026, 5, 1)
GPU5 = Subject("gpu", gpu=5, uuid="GPU-abc", bus_id="0000:bb:00.0")
GPU6 = Subject("gpu", gpu=6, uuid="GPU-def", bus_id="0000:cc:00.0")
RESULT = CheckResult(
    "pcie.link-width", "", "quick", Status.FAIL, 0.0, (fail(GPU5, "x8", "x16"), ok(GPU6, "x16"), unknown(GPU6, "?"))
)


def rule(check: str = "pcie.link-width", gpu: str | int | None = None, until: datetime.date = TODAY) -> Suppression:
    return Suppression(check, "riser is ordered", until, gpu)


def test_a_suppressed_finding_is_skipped_with_the_reason_the_day_and_what_it_was() -> None:
    ([result], notes) = apply_suppressions([RESULT], [rule(gpu="0000:BB:00.0")], TODAY)
    assert [f.status for f in result.findings] == [Status.SKIP, Status.PASS, Status.UNKNOWN]
    assert result.findings[0].reason == "suppressed until 2026-05-01 (riser is ordered); was fail: x8"
    assert result.status is Status.UNKNOWN
    assert notes == (f"pcie.link-width, GPU 5 (0000:bb:00.0): {result.findings[0].reason}",)


def test_the_day_after_its_last_it_no_longer_holds_and_says_so() -> None:
    ([result], [note]) = apply_suppressions([RESULT], [rule(until=datetime.date(2026, 4, 30))], TODAY)
    assert result == RESULT
    assert "2026-04-30" in note
    assert "riser is ordered" in note


def test_a_gpu_is_named_by_index_uuid_or_bus_id_and_only_that_one_is_set_aside() -> None:
    for name in (5, "5", "GPU-abc", "0000:bb:00.0", "00000000:BB:00.0", "bb:00.0"):
        ([result], _) = apply_suppressions([RESULT], [rule(gpu=name)], TODAY)
        assert result.findings[0].status is Status.SKIP
        assert result.findings[2].status is Status.UNKNOWN


def test_a_domain_or_glob_names_checks_and_others_are_left_alone() -> None:
    for name in ("pcie", "pcie.*", "*.link-width"):
        ([result], _) = apply_suppressions([RESULT], [rule(name)], TODAY)
        assert result.status is Status.PASS
    ([result], _) = apply_suppressions([RESULT], [rule("nvlink")], TODAY)
    assert result == RESULT
