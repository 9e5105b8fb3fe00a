"""Runs programs before the fake driver, as a user would, with one cache for all tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.needs import fixture_needs
from tests.subprocesses import completed

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "gpudoctor", "fake-driver")

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]


@pytest.fixture(scope="session")
@fixture_needs("cc")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def environ(cache: Path) -> dict[str, str]:
    """The environment of a user who has set none of the relevant variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NCCL_", "GPUDOCTOR_"))}
    kept.pop("CC", None)
    return {**kept, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def run(environ: dict[str, str]) -> Run:
    """run(node, program..., faults=(), env={}): the program before the fake driver."""

    def run_program(
        node: str, *program: str, faults: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        asked = [word for fault in faults for word in ("--fault", fault)]
        return completed([*COMMAND, "--node", node, *asked, "--", *program], env={**environ, **(env or {})})

    return run_program


@pytest.fixture(scope="session")
def ask(run: Run) -> Ask:
    """ask(node, code, faults=()): what a Python program prints as JSON, with pynvml as N and initialised."""

    def ask_program(node: str, code: str, faults: tuple[str, ...] = ()) -> Any:
        begin = "import json, pynvml as N\nN.nvmlInit()\ng = N.nvmlDeviceGetHandleByIndex\n"
        done = run(node, sys.executable, "-c", f"{begin}{code}", faults=faults)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask_program
