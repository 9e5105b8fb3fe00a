"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real dumps; a test that wants it skips where it is absent."""
    folder = Path(os.environ.get("GPUDOCTOR_CAPTURES", ROOT.parent / "shared" / "captures"))
    if not folder.is_dir():
        pytest.skip(f"no captures at {folder}: set GPUDOCTOR_CAPTURES")
    return folder
