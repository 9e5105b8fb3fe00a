"""A page of the docs that adds files and lines, followed word for word in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.subprocesses import completed

ROOT = Path(__file__).parent.parent.parent
_FENCED = r":\n\n```\w+\n(.*?)```\n"
_FILE = re.compile(rf"(Write|Append to)\s`([^`]+)`{_FENCED}", re.DOTALL)
_LINES = re.compile(rf"In `([^`]+)`, after `([^`\n]+)`, insert{_FENCED}", re.DOTALL)


class FollowedPage(NamedTuple):
    """The text of a page, what it writes whole or appends, and the lines that it inserts after others."""

    text: str
    files: list[tuple[str, str, str]]
    insertions: list[tuple[str, str, str]]

    @property
    def names(self) -> set[str]:
        """The files that are touched by hand."""
        return {name for _, name, _ in self.files} | {name for name, _, _ in self.insertions} | {"CHANGELOG.md"}

    def copy_to(self, folder: Path) -> Path:
        """Copy the project to the folder and do what the page says there."""
        for name in ("gpudoctor", "tests"):
            shutil.copytree(ROOT / name, folder / name)  # with what is compiled already
        for name in ("README.md", "CHANGELOG.md", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)
        for how, name, text in self.files:
            path = folder / name
            assert path.exists() == (how == "Append to"), name
            path.write_text((path.read_text(encoding="utf-8") if path.exists() else "") + text, encoding="utf-8")
        for name, anchor, text in self.insertions:
            path = folder / name
            before, after = path.read_text(encoding="utf-8").split(f"{anchor}\n")
            path.write_text(f"{before}{anchor}\n{text}{after}", encoding="utf-8")
        return folder

    def commands(self) -> list[list[str]]:
        """The commands of the page, as arguments of `python -m`, less `make lint`, which needs the whole project."""
        block = self.text.split("```console\n")[1].split("```")[0]
        lines = [line.removeprefix("$ ").split() for line in block.splitlines() if line != "$ make lint"]
        return [line[2:] if line[1] == "-m" else ["gpudoctor", *line[1:]] for line in lines]


def page(name: str) -> FollowedPage:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return FollowedPage(text, _FILE.findall(text), _LINES.findall(text))


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GPUDOCTOR_", "PYTEST_"))}
    environ = {**inherited, "PYTHONPATH": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), "COLUMNS": "100"}
    return completed([sys.executable, "-m", *argv], cwd=folder, env=environ)
