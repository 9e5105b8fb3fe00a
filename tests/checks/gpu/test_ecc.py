"""gpu.ecc: uncorrected and corrected memory errors."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.profiles.profile import GpuModel, Profile
from tests.checks.gpu_nodes import FAILED, UNSUPPORTED, eight, findings, h100, node, only, status, text, texts
from tests.checks.one_check import text_of

ABSENT = Missing("not in this capture")


def test_one_uncorrected_error_fails_the_gpu_that_has_it() -> None:
    finding = only("gpu.ecc", eight(ecc__uncorrected_volatile=1))
    assert (finding.status.value, finding.subject.gpu) == ("fail", 5)
    assert text(finding) == "1 uncorrected memory error since the driver was loaded"
    assert any(step.command and "--gpu-reset" in step.command for step in finding.advice)


def test_an_uncorrected_sram_error_counts_too() -> None:
    assert "3 in SRAM" in text(only("gpu.ecc", eight(ecc__sram_uncorrected_volatile=3)))


def test_only_memory_with_spare_rows_is_repaired_by_a_reset() -> None:
    dram = text_of(only("gpu.ecc", eight(ecc__uncorrected_volatile=1)))
    assert "swaps the row" in dram
    assert "RMA" not in dram
    one = {"ecc__uncorrected_volatile": 1, "ecc__sram_uncorrected_volatile": 1}
    for lifetime, flag, replaced in ((4, UNSUPPORTED, False), (5, UNSUPPORTED, True), (5, False, False)):
        facts = {"ecc__sram_uncorrected_aggregate": lifetime, "ecc__sram_threshold_exceeded": flag}
        said = text_of(only("gpu.ecc", eight(**one, **facts)))
        assert "swaps the row" not in said
        assert ("Reset the GPU: the error is cleared" in said) is not replaced
        assert ("is to be replaced" in said) is replaced


def test_the_sram_threshold_means_replacement() -> None:
    finding = only("gpu.ecc", eight(ecc__sram_threshold_exceeded=True))
    assert finding.status.value == "fail"
    assert any("replaced" in step.text for step in finding.advice)


def test_lifetime_counts_are_said_and_not_judged() -> None:
    found = findings("gpu.ecc", node(h100(ecc__uncorrected_aggregate=12)))
    assert texts(found) == ["no uncorrected errors (12 in its lifetime)"]
    assert found[0].status.value == "pass"


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"ecc__corrected_volatile": 10_000_000}, "pass"),
        ({"ecc__corrected_volatile": 10_000_001}, "warn"),
        ({"ecc__sram_uncorrected_aggregate": 9}, "pass"),
        ({"ecc__sram_uncorrected_aggregate": 4, "ecc__sram_threshold_exceeded": UNSUPPORTED}, "pass"),
        ({"ecc__sram_uncorrected_aggregate": 5, "ecc__sram_threshold_exceeded": UNSUPPORTED}, "fail"),
        ({"ecc__sram_threshold_exceeded": UNSUPPORTED}, "pass"),
        ({"ecc__sram_threshold_exceeded": FAILED}, "unknown"),
        ({"ecc__pending": False}, "warn"),
        ({"ecc__pending": False, "ecc__uncorrected_volatile": 1}, "fail"),
        ({"ecc__enabled": False, "ecc__pending": False}, "skip"),
        ({"ecc__enabled": UNSUPPORTED, "ecc__uncorrected_volatile": UNSUPPORTED}, "skip"),
    ],
)
def test_wear_warns_and_what_is_off_is_skipped(leaves: dict[str, Any], expected: str) -> None:
    assert status("gpu.ecc", node(h100(**leaves))) == expected


def test_a_model_without_ecc_gives_the_modes_reason() -> None:
    no_ecc = Missing("this model has no ECC", "unsupported")
    [finding] = findings("gpu.ecc", node(h100(ecc__enabled=no_ecc, ecc__uncorrected_volatile=ABSENT)))
    assert finding.reason == "uncorrected memory errors: this model has no ECC"


@pytest.mark.parametrize(("uncertain", "expected"), [((), "warn"), (("ecc",), "skip")])
def test_ecc_off_on_a_model_that_always_has_it_warns(uncertain: tuple[str, ...], expected: str) -> None:
    model = GpuModel("h100", ("h100",), ecc="yes", uncertain=uncertain)
    profile = Profile("hgx-h100-8", "GPU name", gpu=model)
    subject = node(h100(ecc__enabled=False, ecc__pending=False))
    assert status("gpu.ecc", subject, profile=profile) == expected
