"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HANGS_S = 300.0  # only stops what hangs


def completed(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program; its output is text, and any exit code an answer unless `check=True`. `options` of subprocess."""
    return subprocess.run(argv, **{"capture_output": True, "text": True, "check": False, "timeout": HANGS_S, **options})
