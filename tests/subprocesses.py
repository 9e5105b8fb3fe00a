"""Programs that a test writes, and runs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HANGS_S = 300.0  # only stops what hangs


def completed(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program; its output is text, and any exit code an answer unless `check=True`. `options` of subprocess."""
    return subprocess.run(argv, **{"capture_output": True, "text": True, "check": False, "timeout": HANGS_S, **options})


def shell_program(path: Path, lines: str) -> Path:
    """An executable file with these lines of shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
