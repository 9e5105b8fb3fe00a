"""A little of `make soak` in every run of the tests; that a wrong verdict is seen is tested too."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpudoctor.facts.simulated import faults
from tests import soak


def test_a_short_soak_finds_no_wrong_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.soak(60, seed=7) == 0
    assert capsys.readouterr().out.endswith("60 checks, 0 wrong\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [({"status": "warn"}, "says fail, not warn"), ({"check": "gpu.ecc"}, "gpu.ecc says pass, not fail")],
)
def test_a_verdict_other_than_the_expected_one_is_counted(change: dict[str, str], said: str) -> None:
    fault = next(fault for fault in faults() if fault.name == "pcie-width-x8")
    strike = soak.Strike(fault, "pcie-width-x8@3", (3,))
    assert soak.wrong("hgx-h100-8", (strike,)) == []
    assert any(
        said in problem for problem in soak.wrong("hgx-h100-8", (replace(strike, fault=replace(fault, **change)),))
    )
    assert any("names" in problem for problem in soak.wrong("hgx-h100-8", (replace(strike, gpus=(5,)),)))
