"""Reads a report that was saved as JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.facts_file import checked
from gpudoctor.facts.captures.opened import read_file
from gpudoctor.facts.model.node import Node
from gpudoctor.report.model import Report


def load_report(path: str) -> Report:
    """The report of a file written by `check --json`, packed with gzip or not.

    Raise UserError, one line with the file's name, for what is no such report.
    """
    name = printable(path)
    try:
        data = read_file(str(Path(path).expanduser()))
    except (SourceError, RuntimeError, ValueError) as error:  # no such user's home; a zero byte in the name
        raise UserError(f"{name}: {error}") from None
    try:
        report = msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else printable(str(error))
        raise UserError(f"{name}: not a report of gpudoctor check --json ({said})") from None
    if isinstance(report.facts, Node):
        try:
            report = msgspec.structs.replace(report, facts=checked(report.facts))
        except SourceError as error:
            raise UserError(f"{name}: {error}") from None
    if report.error is not None:
        raise UserError(f"{name}: a report in which nothing was judged: {printable(report.error)}")
    return report
