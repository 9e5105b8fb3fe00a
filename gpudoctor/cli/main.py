"""From arguments to an exit code: parse, run the command, and answer errors in the format that was asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from gpudoctor.cli.parsers import module_of, parsed
from gpudoctor.errors import UserError
from gpudoctor.exits import catch_signals, guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code (0, 1, 2, 3; 128 + n for a signal)."""
    asked: list[argparse.Namespace] = []

    def run() -> int:
        catch_signals()
        args = parsed(list(sys.argv[1:] if argv is None else argv))
        asked.append(args)
        _refuse_lost_directory()
        return module_of(args.command).run(args)

    def on_error(message: str, code: int) -> int:
        write_error = getattr(module_of(asked[0].command), "write_error", None) if asked else None
        return code if write_error is None else int(write_error(asked[0], message, code))

    return guarded(run, on_error)


def _refuse_lost_directory() -> None:
    """Raise UserError if the kernel no longer knows the working directory: libraries fail at their import then."""
    try:
        os.getcwd()  # noqa: PTH109 - a word for the kernel, no look at the file system
    except FileNotFoundError:
        pass  # it was removed, which harms nothing
    except OSError as error:  # its mount was taken away (umount -l), as is advised for one that is dead
        raise UserError(f"the working directory is lost ({error.strerror}): cd / and try again") from None
