"""argparse, for the terminal of a user who passes strange names or a full disk."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from gpudoctor.output import printable, write_stdout


class Parser(argparse.ArgumentParser):
    """Escapes control characters in errors, which repeat arguments; help that stdout does not take is an error."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is not None and file is sys.stdout:
            write_stdout(message)  # argparse itself would ignore a full disk
        else:
            super()._print_message(message, file)
