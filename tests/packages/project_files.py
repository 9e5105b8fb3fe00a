"""The files of the project, without generated ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.subprocesses import completed

ROOT = Path(__file__).parents[2]


def files_of_the_project(folder: str = ".") -> list[Path]:
    """All files that git tracks or would track below a folder; skips the test if git cannot list them."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    try:
        listed = completed(argv, cwd=ROOT, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout")
    return [path for path in (ROOT / name for name in listed.splitlines()) if path.is_file()]
