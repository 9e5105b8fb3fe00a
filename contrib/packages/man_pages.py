"""Write the manual pages, gpudoctor(1) and one per command, from the parsers: `python man_pages.py FOLDER`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage  # type: ignore[import-untyped]

from gpudoctor import __version__
from gpudoctor.cli.command_table import COMMANDS
from gpudoctor.cli.parsing import parser_of_all_commands

TITLE = "is this multi-GPU node fit to train on, and if not, which part is at fault?"
EXIT_STATUS = """\
.TP
.B 0
no failure
.TP
.B 1
at least one check failed
.TP
.B 2
gpudoctor could not do its work: bad arguments, bad configuration, unreadable source
.TP
.B 3
no failure, but something is unknown, or a check named with \\-\\-require gave no verdict
.TP
.B 128+n
ended by signal n"""
FILES = """\
.TP
.I /etc/gpudoctor/config.yaml
what this site expects of its nodes; gpudoctor config prints what it comes to
.TP
.I $XDG_CONFIG_HOME/gpudoctor/config.yaml
the same for one user"""


def page(parser: argparse.ArgumentParser, name: str, title: str, **sections: str) -> str:
    """One page with this name and this title (as shown by apropos); `sections` are by heading."""
    data = {"project_name": "gpudoctor", "version": __version__, "manual_title": "gpudoctor", "description": title}
    written = Manpage(parser, _data=data, format="single-commands-section")
    written.prog = name
    for heading, content in sections.items():
        written.add_section(heading.replace("_", " "), "=", content)
    return str(written)


def without_commands(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser of all commands without the commands, each of which has its own page."""
    parser.usage = parser.format_usage().removeprefix("usage: ").strip()
    for group in parser._action_groups:
        group._group_actions = [a for a in group._group_actions if not isinstance(a, argparse._SubParsersAction)]
    parser.epilog = None  # the exit codes have their own section
    return parser


def main(folder: Path) -> None:
    """Write the pages into the folder, uncompressed."""
    os.environ["COLUMNS"] = "10000"  # no wrapping: man wraps, and a line wrapped here might begin with a dot
    folder.mkdir(parents=True, exist_ok=True)
    top = parser_of_all_commands()
    of_commands = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)).choices
    for command, parser in of_commands.items():
        text = page(
            parser, f"gpudoctor-{command}", COMMANDS[command], exit_status=EXIT_STATUS, see_also=".BR gpudoctor (1)"
        )
        (folder / f"gpudoctor-{command}.1").write_text(text)
    commands = "\n".join(f".TP\n.BR gpudoctor-{name} (1)\n{text}" for name, text in COMMANDS.items())
    text = page(without_commands(top), "gpudoctor", TITLE, commands=commands, exit_status=EXIT_STATUS, files=FILES)
    (folder / "gpudoctor.1").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
