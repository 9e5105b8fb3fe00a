"""The list of commands: each has its file, whose options cost no other command anything."""

from __future__ import annotations

import sys
from pathlib import Path

import gpudoctor.cli.commands
from gpudoctor.cli.command_table import COMMANDS
from tests.subprocesses import completed

OPTIONS = """
import argparse, sys
from gpudoctor.cli.command_table import COMMANDS, module_of
for name in COMMANDS:
    module_of(name).add_options(argparse.ArgumentParser())
print(*sys.modules)
"""
ROOMS = (
    "plan.",
    "cluster.fleet",
    "cluster.baseline",
    "cluster.check.",
    "agent.",
    "tui",
    "testing",
    "checks",
    "report",
    "api",
)


def test_the_options_of_all_commands_are_known_without_importing_what_does_the_work() -> None:
    done = completed([sys.executable, "-c", OPTIONS], check=True)
    loaded = set(done.stdout.split())
    assert "gpudoctor.cli.commands.plan" in loaded
    rooms = tuple(f"gpudoctor.{room}" for room in ROOMS)
    assert sorted(name for name in loaded if name.startswith(rooms)) == []


def test_each_command_has_its_file() -> None:
    files = {path.stem for path in Path(gpudoctor.cli.commands.__file__).parent.glob("*.py")}
    assert {name.replace("-", "_") for name in COMMANDS} <= files


def test_a_check_imports_the_file_of_no_other_command() -> None:
    code = (
        "import sys; from gpudoctor.cli.main import main; main(['check', '--node', 'hgx-h100-8', '--level', 'quick']);"
        "print(*[m for m in sys.modules if m.startswith('gpudoctor.cli.')], file=sys.stderr)"
    )
    done = completed([sys.executable, "-c", code], check=True)
    assert set(done.stderr.split()) == {
        f"gpudoctor.cli.{name}"
        for name in ("main", "command_table", "guarded", "parsing", "options", "commands", "commands.check")
    }
