"""A row of the tables of patterns."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.diagnose.events import Role


class LinePattern(msgspec.Struct, frozen=True):
    """A pattern and its meaning. Named groups become details; `host`, `node`, `gpu` and `pid` give the place.

    `needle`: a lower-case literal in each match, or several (`a|b`) of which one is; searched for before the expression
    is tried. `names_rank`: whether the fault lies with the process that prints the line, not with a path between two or
    with something shared.
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
    """Rows from (what, needle, regex, role, strength, names_rank); the last three have defaults."""
    return tuple(LinePattern(what, re.compile(text), needle, *rest) for what, needle, text, *rest in given)
