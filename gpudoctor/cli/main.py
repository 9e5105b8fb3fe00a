"""From arguments to an exit code: parse, run the command, and report errors in the requested format."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from gpudoctor import __version__
from gpudoctor.errors import UserError
from gpudoctor.exits import catch_signals, guarded, printable

# each is a module of that name in this folder, with `add_options`, `run`, and `write_error` if errors are documents too
COMMANDS = {
    "check": "judge the node",
    "list": "every check: id, level, title",
    "explain": "what a check looks at, why, its thresholds, false alarms, and the fix",
    "facts": "the facts as JSON, unjudged",
    "bundle": "facts, a quick report, kernel lines and versions in one .tar.gz",
    "watch": "live values as JSON lines: the facts once, then a sample at each interval",
    "tui": "the live view, with verdicts",
    "run": "your own training, watched and judged: gpudoctor run -- torchrun ... train.py",
    "plan": "which strategy trains a model here: memory, batch, communication, and how to launch it",
    "cluster": "many nodes, on an existing engine: check them, or read their reports",
    "agent": "check this node on a schedule, and serve the result to Prometheus and health checks",
    "slurm": "a prolog, an epilog or a health check of Slurm: judge, and log or drain (contrib/slurm)",
    "diagnose": "what a failed or hanging job's logs say: what happened first, where, and why",
    "baseline": "one node over time: save what was measured, compare with it later",
    "fake-driver": "run any NVML program against a simulated node or a capture",
    "nodes": "the packaged simulated nodes and the faults that can be put on them",
    "schema": "JSON Schema",
    "config": "the merged configuration, as YAML",
    "completion": "the completion of bash, zsh or fish, for the shell to load",
}
_START_A_PROGRAM = ("fake-driver", "run")  # their arguments end at --


class CommandModule(Protocol):
    """What every command module has: its options, and its work, which returns the exit code or raises UserError."""

    def add_options(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def module_of(command: str) -> CommandModule:
    """The module of a command, imported on first use."""
    return cast(CommandModule, import_module(f"gpudoctor.cli.{command.replace('-', '_')}"))


def parsed(given: list[str]) -> argparse.Namespace:
    """The parsed arguments, plus `argv` as given. Exits as argparse does if they are wrong."""
    args = _parsed(given)
    # arguments may be any bytes, but a report must be UTF-8
    args.argv = [word.encode("utf-8", "backslashreplace").decode() for word in given]
    return args


def _parsed(given: list[str]) -> argparse.Namespace:
    command = next((word for word in given if not word.startswith("-")), None)
    if given[:1] == [command] and command in COMMANDS and command not in _START_A_PROGRAM:
        return _of_command(command, given)
    parser = _parser(command)
    if given[:1] == [command] and command in _START_A_PROGRAM and "--" in given:
        # everything after -- belongs to the program: argparse must not interpret it
        place = given.index("--")
        args = parser.parse_args(given[:place])
        args.program = given[place + 1 :]
    elif given[:1] == [command] and command in _START_A_PROGRAM:
        args, program = parser.parse_known_args(given)
        if program:
            raise UserError(f"{command} needs -- before the program, as in: -- {' '.join(program)}")
    else:
        args = parser.parse_args(given)
    _refuse_lone_dashes(args, command)
    return args


def _of_command(command: str, given: list[str]) -> argparse.Namespace:
    """Parse with the parser of one command: building that of all commands takes longer than parsing."""
    below = next((w for w in given if command == "plan" and w[:1] == "-" and w[1:2].isdecimal()), "")
    if below[-1:].isalpha():  # a negative size such as -7b, which argparse would take for an option
        raise UserError(f"{printable(below)[:60]} is no size: did you mean {printable(below)[1:60]}?")
    parser = _Parser(
        prog=f"gpudoctor {command}",
        description=COMMANDS[command],
        formatter_class=_fixed_width,
        allow_abbrev=False,
    )
    module_of(command).add_options(parser)
    if parser.formatter_class is _fixed_width:
        parser.formatter_class = argparse.HelpFormatter
    args, strange = parser.parse_known_args(given[1:])
    if strange:
        _parser(command).error(f"unrecognized arguments: {' '.join(strange)}")
    args.command = command
    _refuse_lone_dashes(args, command)
    return args


def _fixed_width(prog: str) -> argparse.HelpFormatter:
    """For adding options: argparse makes a formatter for each; only a given width avoids importing shutil (2 ms)."""
    return argparse.HelpFormatter(prog, width=80)


def _refuse_lone_dashes(args: argparse.Namespace, command: str | None) -> None:
    for name, value in vars(args).items():
        # some versions of argparse parse `--node=--` to an empty list
        if (value == [] and name in ("node", "gpu", "profile", "config", "output")) or (
            isinstance(value, list) and [] in value
        ):
            _parser(command).error(f"argument --{name}: '--' is no value for it")


class _Parser(argparse.ArgumentParser):
    """Escapes control characters in errors, which repeat arguments such as file names."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def parser_of_all_commands() -> argparse.ArgumentParser:
    """Every command with all its options, for completion and manual pages; too slow for anything else."""
    return _parser(*COMMANDS)


def _parser(*with_their_options: str | None) -> argparse.ArgumentParser:
    """The parser of all commands; only the named ones get their options, since each option adds to start-up time."""
    parser: argparse.ArgumentParser = _Parser(
        prog="gpudoctor",
        description="Is this multi-GPU node fit to train on, and if not, which part is at fault?",
        epilog="exit codes: 0 no failure, 1 a failure, 2 gpudoctor could not do its work, 3 something is unknown",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpudoctor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        of_command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name in with_their_options:
            module_of(name).add_options(of_command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (0, 1, 2, 3; 128 + n for a signal)."""
    asked: list[argparse.Namespace] = []

    def run() -> int:
        catch_signals()
        args = parsed(list(sys.argv[1:] if argv is None else argv))
        asked.append(args)
        _refuse_lost_directory()
        return module_of(args.command).run(args)

    def on_error(message: str, code: int) -> int:
        if not asked or (write_error := getattr(module_of(asked[0].command), "write_error", None)) is None:
            return code
        return int(write_error(asked[0], message, code))

    return guarded(run, on_error)


def _refuse_lost_directory() -> None:
    """Raise UserError if the kernel has lost the working directory: some libraries fail on import then."""
    try:
        os.getcwd()  # noqa: PTH109 - a system call that does not touch the file system
    except FileNotFoundError:
        pass  # it was removed, which is harmless
    except OSError as error:  # its mount was detached (umount -l), which is the advice for a dead one
        raise UserError(f"the working directory is lost ({error.strerror}): cd / and try again") from None
