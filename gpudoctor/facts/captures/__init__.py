"""Dumps of vendor tools, read as facts. What a dump does not hold is Missing, never a default."""

from __future__ import annotations

from gpudoctor.errors import UserError
from gpudoctor.facts.missing import Missing

ABSENT = Missing("not in this capture", "absent")


class SourceError(UserError):
    """A source that cannot be read: one line that names the file and the place in it.

    Parsers raise it with the place only; whoever opened the file puts its name in front.
    """
