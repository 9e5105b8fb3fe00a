"""A user's project that tests with gpudoctor, in a separate folder and pytest process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PLUGIN = "gpudoctor.testing.pytest_plugin"
# plugins that our own tests need: to load them would take half of the time
_OF_OURS = [
    word
    for name in ("hypothesispytest", "xdist", "xdist.looponfail", "timeout", "pytest_cov")
    for word in ("-p", f"no:{name}")
]


def run_pytest(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and output. If the installed gpudoctor has no entry point yet, -p replaces it."""
    installed = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", PLUGIN]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *plugin,
            *_OF_OURS,
            "-p",
            "no:cacheprovider",
            "--strict-markers",
            "-W",
            "error",
            *args,
        ],
        cwd=folder,
        env=environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ran.returncode, ran.stdout + ran.stderr


def project(folder: Path, tests: str) -> Path:
    """A folder with one test file and its own rootdir."""
    folder.mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(tests)
    return folder
