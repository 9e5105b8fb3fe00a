"""Golden files: outputs that a person approved, and the one way to approve a change."""

from __future__ import annotations

import os
from pathlib import Path

ACCEPT = bool(os.environ.get("GPUDOCTOR_ACCEPT"))  # make accept sets it


def assert_golden(text: str, path: Path) -> None:
    """Assert that the file holds this text; under `make accept`, write it there instead."""
    if ACCEPT:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
