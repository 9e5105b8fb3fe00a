"""The manual pages, made from the parsers."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudoctor.cli.command_table import COMMANDS
from gpudoctor.cli.parsing import parser_of_all_commands
from tests.needs import needs
from tests.subprocesses import completed

WRITER = Path(__file__).parents[2] / "contrib" / "packages" / "man_pages.py"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, WRITER, folder], check=True)
    return folder


def shown(page: Path) -> str:
    """The page as man shows it, on one line."""
    environ = {**os.environ, "MANWIDTH": "400", "LC_ALL": "C.UTF-8", "MANOPT": "--no-hyphenation"}
    ended = completed(["man", "--warnings", "-l", page], env=environ, check=True)
    assert ended.stderr == ""
    return " ".join(ended.stdout.split())


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options(below)
        elif action.help != argparse.SUPPRESS:
            yield from action.option_strings


@needs("man")
def test_every_command_has_a_page_and_the_first_page_names_them_all(pages: Path) -> None:
    assert {page.name for page in pages.iterdir()} == {"gpudoctor.1", *(f"gpudoctor-{name}.1" for name in COMMANDS)}
    first = shown(pages / "gpudoctor.1")
    assert [name for name, text in COMMANDS.items() if f"gpudoctor-{name}(1) {text}" not in first] == []


@needs("man")
@pytest.mark.parametrize("command", ["bundle", "check", "cluster", "fake-driver"])
def test_a_page_has_every_option_of_its_command(pages: Path, command: str) -> None:
    text = shown(pages / f"gpudoctor-{command}.1")
    (parsers,) = (a for a in parser_of_all_commands()._actions if isinstance(a, argparse._SubParsersAction))
    wanted = set(options(parsers.choices[command])) - {"-h", "--help"}
    assert len(wanted) >= 3
    assert [option for option in sorted(wanted) if option not in text] == []
    assert COMMANDS[command] in text.split(" DESCRIPTION ")[1]
    assert "no failure, but something is unknown" in text
