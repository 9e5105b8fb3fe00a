"""docs/add-a-check.md, followed word for word in a copy of the package, adds a check."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "add-a-check.md").read_text(encoding="utf-8")
FILES = re.compile(r"(Write|Append to) `([^`]+)`:\n\n```\w+\n(.*?)```\n", re.DOTALL)
CHECK = "host.example-uptime"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the files of the page written into it."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("gpudoctor", "tests"):
        shutil.copytree(ROOT / name, folder / name)  # with what is compiled already
    for name in ("README.md", "CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for how, name, text in FILES.findall(PAGE):
        path = folder / name
        assert path.exists() == (how == "Append to"), name
        path.write_text((path.read_text(encoding="utf-8") if path.exists() else "") + text, encoding="utf-8")
    return folder


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GPUDOCTOR_", "PYTEST_"))}
    environ = {**inherited, "PYTHONPATH": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", *argv], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def commands() -> list[list[str]]:
    """The commands of the page, less `make lint`, which needs the whole project."""
    block = PAGE.split("```console\n")[1].split("```")[0]
    lines = [line.removeprefix("$ ").split() for line in block.splitlines()]
    assert lines.pop() == ["make", "lint"]
    return [line[2:] if line[1] == "-m" else ["gpudoctor", *line[1:]] for line in lines]


def test_the_page_adds_a_check_in_five_files() -> None:
    written = [name for _, name, _ in FILES.findall(PAGE)]
    assert len({*written, "CHANGELOG.md"}) == 5
    assert len(PAGE.splitlines()) <= 120


@pytest.mark.wide
def test_the_new_check_judges_as_the_page_says(copy: Path) -> None:
    checked, explained = (run(copy, *argv) for argv in commands()[:2])
    assert checked.returncode == 0, checked.stderr
    assert f"WARN     {CHECK}" in checked.stdout
    assert "found     up for 730 days" in checked.stdout
    assert explained.stdout.startswith(f"{CHECK}: ")
    assert "    warn_days  365 days  warn\n" in explained.stdout
    healthy = run(copy, "gpudoctor", "check", CHECK, "--level", "quick", "--node", "hgx-h100-8", "--json")
    [result] = json.loads(healthy.stdout)["checks"]
    assert (result["id"], result["status"]) == (CHECK, "pass")


@pytest.mark.wide
@pytest.mark.parametrize("argv", commands()[2:], ids=lambda argv: argv[1])
def test_no_test_asks_for_more_than_the_five_files(copy: Path, argv: list[str]) -> None:
    done = run(copy, *argv, "-q", "-x", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout


@pytest.mark.wide
def test_the_code_of_the_page_has_the_projects_style(copy: Path) -> None:
    files = [name for _, name, _ in FILES.findall(PAGE) if name.endswith(".py")]
    for check in (("check",), ("format", "--check")):
        done = run(copy, "ruff", *check, *files)
        assert done.returncode == 0, done.stdout + done.stderr
