"""One row of a table of patterns."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.diagnose.events import Role


class LinePattern(msgspec.Struct, frozen=True):
    """A text, and what it means. Named groups `rank`, `host`, `gpu`, `pid`, `ip` say where; others become details.

    `needle`: a literal that each match holds (lower case), looked for before the expression is tried. `names_rank`:
    whether the fault lies with the process that prints it; not so for a path between two, or what all share.
    """

    what: str
    regex: re.Pattern[str]
    needle: str
    role: Role = "cause"
    strength: int = 3
    names_rank: bool = True


def rows(
    *given: tuple[str, str, str]
    | tuple[str, str, str, Role]
    | tuple[str, str, str, Role, int]
    | tuple[str, str, str, Role, int, bool],
) -> tuple[LinePattern, ...]:
    """(what, needle, regex, role, strength, names the rank): the last three have defaults."""
    made = []
    for what, needle, text, *rest in given:
        made.append(LinePattern(what, re.compile(text), needle, *rest))
    return tuple(made)
