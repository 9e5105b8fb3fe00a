"""A user's project that tests with gpudoctor, in a separate folder and pytest process."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tests.subprocesses import completed

ROOT = Path(__file__).parent.parent.parent
PLUGIN = "gpudoctor.testing.pytest_plugin"
# plugins that other tests of ours need: to load them would take half of the time
_NOT_NEEDED = [f"no:{name}" for name in ("hypothesispytest", "xdist", "xdist.looponfail", "pytest_cov")]


def run_pytest(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and output. If the installed gpudoctor has no entry point yet, -p replaces it."""
    installed = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    plugins = [word for name in _NOT_NEEDED + ([] if installed else [PLUGIN]) for word in ("-p", name)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    ran = completed(
        [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", "--strict-markers", "-W", "error", *args],
        cwd=folder,
        env=environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return ran.returncode, ran.stdout + ran.stderr


def project(folder: Path, tests: str) -> Path:
    """A folder with one test file and its own rootdir."""
    folder.mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(tests)
    return folder
