"""From arguments to an exit code: parse, run the command, and report errors in the requested format."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from gpudoctor import __version__
from gpudoctor.cli.command_table import module_of, start_page
from gpudoctor.cli.guarded import guarded
from gpudoctor.cli.parsing import parsed
from gpudoctor.errors import UserError
from gpudoctor.process.exit_codes import COULD_NOT, OK
from gpudoctor.process.signals import catch_signals
from gpudoctor.text.output import write_stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (0, 1, 2, 3; 128 + n for a signal)."""
    asked: list[argparse.Namespace] = []

    def run() -> int:
        catch_signals()
        given = list(sys.argv[1:] if argv is None else argv)
        if given[:1] == ["help"]:
            given = [*given[1:2], "--help"]
        if given[:1] in ([], ["-h"], ["--help"]):
            from gpudoctor.cli.options import terminal_width

            write_stdout(start_page(terminal_width(80)))
            # in a script, a command that got lost must not look like a node without a failure
            return OK if given else COULD_NOT
        if given[0] in ("version", "--version"):
            write_stdout(f"gpudoctor {__version__}\n")
            return OK
        args = parsed(given)
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
