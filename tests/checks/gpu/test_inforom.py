"""gpu.inforom."""

from __future__ import annotations

from tests.checks.gpu_nodes import DENIED, FAILED, UNSUPPORTED, bad, eight, findings, status
from tests.checks.one_check import finds


def test_a_corrupted_inforom_warns_and_names_the_gpu() -> None:
    finds(bad("gpu.inforom", eight(inforom_corrupted=True)), "warn", gpu=5, found="its infoROM is corrupted")


def test_what_was_not_told_is_no_pass() -> None:
    for missing, expected in ((FAILED, "unknown"), (DENIED, "skip"), (UNSUPPORTED, "skip")):
        told = [f.status.value for f in findings("gpu.inforom", eight(inforom_corrupted=missing)) if f.subject.gpu == 5]
        assert told == [expected]
    assert status("gpu.inforom", eight()) == "skip"


def test_a_valid_one_passes() -> None:
    told = [f.status.value for f in findings("gpu.inforom", eight(inforom_corrupted=False)) if f.subject.gpu == 5]
    assert told == ["pass"]
