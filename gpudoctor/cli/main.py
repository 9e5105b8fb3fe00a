"""From arguments to an exit code: parse, run the command, and answer errors in the format that was asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpudoctor.cli.parsers import module_of, parsed
from gpudoctor.exits import catch_signals, guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code (0, 1, 2, 3; 128 + n for a signal)."""
    asked: list[argparse.Namespace] = []

    def run() -> int:
        catch_signals()
        args = parsed(list(sys.argv[1:] if argv is None else argv))
        asked.append(args)
        return module_of(args.command).run(args)

    def on_error(message: str, code: int) -> int:
        write_error = getattr(module_of(asked[0].command), "write_error", None) if asked else None
        return code if write_error is None else int(write_error(asked[0], message, code))

    return guarded(run, on_error)
