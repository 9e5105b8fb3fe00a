"""Every expression that reads what strangers wrote stands repetitions of its own literals."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from time import process_time
from types import ModuleType
from typing import Any

import pytest

import gpudoctor.diagnose
import gpudoctor.facts
import gpudoctor.statements
from gpudoctor.lazy import LazyPattern

_LENGTH = 1500
_MOST_LITERALS = 12
_LIMIT_S = 0.5  # of processor time; a quadratic expression needs some hundredths of it, a cubic one all
_FIELDS = "__struct_fields__"


def modules(package: ModuleType) -> list[str]:
    return [
        each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.") if "nvml" not in each.name
    ]


def patterns_in(thing: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(thing, re.Pattern):
        yield thing
    if isinstance(thing, LazyPattern):
        lazy: Any = thing
        yield re.compile(lazy.pattern, lazy.flags)
        return
    if depth > 4 or isinstance(thing, (type, ModuleType)):
        return
    parts: list[object] = []
    if isinstance(thing, dict):
        parts = list(thing.values())
    elif isinstance(thing, (list, tuple, set, frozenset)):
        parts = list(thing)
    elif hasattr(thing, _FIELDS):
        parts = [getattr(thing, name, None) for name in getattr(thing, _FIELDS)]
    for part in parts:
        yield from patterns_in(part, depth + 1)


def literals(tree: Any) -> Iterator[str]:
    """The runs of literals of an expression, in order; of a class of characters one that is in it."""
    run = ""
    for name, value in tree:
        if name is _constants.LITERAL:
            run += chr(value)
            continue
        if run:
            yield run
            run = ""
        if name is _constants.BRANCH:
            for branch in value[1]:
                yield from literals(branch)
        elif name is _constants.SUBPATTERN:
            yield from literals(value[3])
        elif name in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            yield from literals(value[2])
        elif name in (_constants.ASSERT, _constants.ASSERT_NOT):
            yield from literals(value[1])
        elif name is _constants.IN:
            yield from (chr(part) for kind, part in value if kind is _constants.LITERAL)
    if run:
        yield run


def slow_text(pattern: re.Pattern[Any]) -> str | None:
    raw = pattern.pattern
    text = raw.decode("latin-1") if isinstance(raw, bytes) else raw
    found = list(dict.fromkeys(literals(_parser.parse(text, pattern.flags & re.VERBOSE))))
    for literal in [*found[:_MOST_LITERALS], "".join(found)[:200], "a1", " "]:
        if literal:
            trial = (literal * (_LENGTH // len(literal) + 1))[:_LENGTH]
            begun_s = process_time()
            pattern.search(trial.encode("latin-1", "replace") if isinstance(raw, bytes) else trial)
            if process_time() - begun_s > _LIMIT_S:
                return literal
    return None


@pytest.mark.wide(every=5)
@pytest.mark.parametrize(
    "name", [n for package in (gpudoctor.statements, gpudoctor.diagnose, gpudoctor.facts) for n in modules(package)]
)
def test_no_expression_takes_the_cube_of_a_line(name: str) -> None:
    module = importlib.import_module(name)
    # what another module has imported is tried there
    seen = [p for key, value in vars(module).items() if not key.startswith("__") for p in patterns_in(value)]
    slow = [(p.pattern[:120], text) for p in dict.fromkeys(seen) if (text := slow_text(p)) is not None]
    assert slow == []
