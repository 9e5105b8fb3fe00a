"""Files that hold what an output was when a person approved it, and the one way to approve a change of it."""

from __future__ import annotations

import os
from pathlib import Path

ACCEPT = bool(os.environ.get("GPUDOCTOR_ACCEPT"))  # make accept sets it


def assert_golden(text: str, path: Path) -> None:
    """The text is what the file holds. `make accept` writes it there: then read the difference."""
    if ACCEPT:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
