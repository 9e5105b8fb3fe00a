"""Reads reports that `gpudoctor check --json` wrote, from files that anybody may have changed since."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gpudoctor.facts.captures import SourceError, naming
from gpudoctor.facts.captures.facts_file import checked
from gpudoctor.facts.captures.opened import read_file
from gpudoctor.facts.model.node import Node

R = TypeVar("R", bound=msgspec.Struct)


def load_report(path: str, of: type[R]) -> R:
    """The report in a file, gzip-compressed or not; `of`: what to read of it, a `Report` or some of its fields.

    Raise SourceError, one line that begins with the file's name, if it cannot be read or is no report, or if nothing
    was judged in it.
    """
    with naming(path):
        return report_in(read_file(path), of)


def report_in(data: bytes, of: type[R]) -> R:
    """As `load_report`, from a file's content. Raise SourceError without the file's name."""
    try:
        report = msgspec.json.decode(data, type=of)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reported = "nested too deeply" if isinstance(error, RecursionError) else error
        raise SourceError(f"not a report of gpudoctor check --json ({reported})") from None
    failure = getattr(report, "error", None)
    if failure is not None:
        raise SourceError(f"a report in which nothing was judged: {failure}")
    facts = getattr(report, "facts", None)
    return msgspec.structs.replace(report, facts=checked(facts)) if isinstance(facts, Node) else report
