"""From arguments to a namespace. Every mistake is one line with the nearest match, raised as UserError."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from gpudoctor import __version__
from gpudoctor.cli.command_table import COMMANDS, EXIT_CODES, QUESTION, module_of
from gpudoctor.cli.options import take_format_of_file
from gpudoctor.errors import UserError, did_you_mean
from gpudoctor.text.output import printable, write_stdout

_BEFORE_A_PROGRAM = ("fake-driver", "run")  # what follows -- is not theirs
# argparse looks for translations of its words: that imports locale (2 ms), and would mix two languages in one message
vars(argparse)["_"] = str


def parsed(given: list[str]) -> argparse.Namespace:
    """The parsed arguments, plus `argv` as given. Raise UserError if they are wrong; exit 0 after a help text."""
    args = _parsed(given)
    take_format_of_file(args)
    # arguments may be any bytes, but a report must be UTF-8
    args.argv = [word.encode("utf-8", "backslashreplace").decode() for word in given]
    return args


def parser_of_all_commands() -> argparse.ArgumentParser:
    """Every command with all its options, for completion and manual pages; too slow for anything else."""
    parser = Parser(
        prog="gpudoctor",
        description=f"{QUESTION[:1].upper()}{QUESTION[1:]}",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpudoctor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        module_of(name).add_options(commands.add_parser(name, help=text, description=text, allow_abbrev=False))
    return parser


def _parsed(given: list[str]) -> argparse.Namespace:
    command = given[0]
    if command not in COMMANDS:
        kind = "option" if command.startswith("-") else "command"
        hint = did_you_mean(command, COMMANDS) if kind == "command" else ""
        raise UserError(f"no {kind} is called {printable(command)[:60]!r}{hint}; see: gpudoctor --help")
    below = next((w for w in given if command == "plan" and w[:1] == "-" and w[1:2].isdecimal()), "")
    if below[-1:].isalpha():  # a negative size such as -7b, which argparse would take for an option
        raise UserError(f"{printable(below)[:60]} is no size: did you mean {printable(below)[1:60]}?")
    parser = _parser_of(command)
    options, program = _before_program(command, given[1:])
    args, strange = parser.parse_known_args(options)
    if strange:
        _refuse_unknown(parser, strange, lacks_dashes=command in _BEFORE_A_PROGRAM and not program)
    if command in _BEFORE_A_PROGRAM:
        args.program = program
    args.command = command
    _refuse_lone_dashes(parser, args)
    return args


def _before_program(command: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """The options of a command that starts a program, and that program, which argparse must not interpret."""
    if command not in _BEFORE_A_PROGRAM or "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _parser_of(command: str) -> Parser:
    """The parser of one command: building that of all commands takes longer than parsing."""
    parser = Parser(
        prog=f"gpudoctor {command}",
        description=COMMANDS[command],
        formatter_class=_fixed_width,
        allow_abbrev=False,
    )
    module_of(command).add_options(parser)
    if parser.formatter_class is _fixed_width:
        parser.formatter_class = argparse.HelpFormatter
    return parser


def _fixed_width(prog: str) -> argparse.HelpFormatter:
    """For adding options: argparse makes a formatter for each; only a given width avoids importing shutil (2 ms)."""
    return argparse.HelpFormatter(prog, width=80)


def _refuse_unknown(parser: argparse.ArgumentParser, strange: list[str], *, lacks_dashes: bool) -> NoReturn:
    if lacks_dashes:
        raise UserError(
            f"{parser.prog.split()[-1]} needs -- before the program, as in: -- {printable(' '.join(strange))}"
        )
    options = [option for action in parser._actions for option in action.option_strings]
    hint = did_you_mean(strange[0].partition("=")[0], options) if strange[0].startswith("-") else ""
    parser.error(f"unrecognized arguments: {' '.join(strange)}{hint}")


def _refuse_lone_dashes(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name, value in vars(args).items():
        # some versions of argparse parse `--node=--` to an empty list
        if (value == [] and name in ("node", "gpu", "profile", "config", "output")) or (
            isinstance(value, list) and [] in value
        ):
            parser.error(f"argument --{name}: '--' is no value for it")


class Parser(argparse.ArgumentParser):
    """Raises UserError, one line with the nearest choice, for wrong words and for help that stdout does not take."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{printable(message)}; see: {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r} is none of {', '.join(choices)}{did_you_mean(str(value), choices)}"
            )

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as error:
            if action.choices is None:
                raise
            choices = ", ".join(str(choice) for choice in action.choices)
            raise argparse.ArgumentError(action, f"{error.message}: {choices}") from None

    def _print_message(self, message: str, file: Any = None) -> None:
        write_stdout(message)  # argparse itself would ignore a full disk
