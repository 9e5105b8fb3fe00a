"""Whole text reports, as a reader sees them: a change here is a change for every reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Gpudoctor
from tests.golden_files import assert_golden

pytestmark = pytest.mark.usefixtures("pinned_checks")

GOLDEN = Path(__file__).parent.parent / "golden"
SCREENS = {
    "healthy-80": (80, "--node hgx-h100-8"),
    "healthy-120": (120, "--node hgx-h100-8"),
    "healthy-verbose-100": (100, "--node h100-nvl-2 -v"),
    "narrow-link-100": (100, "--node rtx4090-4 --fault pcie-width-x4@2"),
    "lost-gpu-80": (80, "--node hgx-h100-8 --fault gpu-lost@2"),
    "two-faults-100": (100, "--node hgx-h100-8 --fault nvlink-link-down@3 --fault ecc-uncorrected@5"),
    "warnings-100": (100, "--node hgx-h100-8 --fault power-cap@1 --fault persistence-off@4"),
    "hung-driver-100": (100, "--node hgx-h100-8 --fault driver-hang@3"),
    "no-gpu-100": (100, "--node cpu-only"),
    "fabric-down-40": (40, "--node gb200-tray-4 --fault fabric-not-started"),
}


@pytest.mark.parametrize("name", SCREENS)
def test_the_text_report_is_the_golden_one(name: str, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    width, options = SCREENS[name]
    monkeypatch.setenv("COLUMNS", str(width))
    out = gpudoctor("check", "--level", "quick", *options.split()).out
    shown = re.sub(r"\s+\d+\.\d\ss$", "  0.0 s", out, flags=re.MULTILINE)
    path = GOLDEN / f"{name}.txt"
    assert_golden(shown, path)
    # a command may be wider than the terminal: it is there to be copied
    prose = [
        line
        for line in shown.splitlines()
        if not line.lstrip().startswith(("gpudoctor check", "sudo ", "nvidia-", "systemctl "))
    ]
    assert max(map(len, prose)) <= width
