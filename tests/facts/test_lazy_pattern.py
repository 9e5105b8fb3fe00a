"""Patterns that are constants of modules: compiled on first use, like `re.compile` in every other way."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from types import ModuleType

import pytest

import gpudoctor
from gpudoctor.lazy import LazyPattern, lazy_pattern
from tests.narrowed import present

# these need libraries of other environments, or run when imported
_NOT_IMPORTED = (
    "gpudoctor.probes.frameworks",
    "gpudoctor.testing",
    "gpudoctor.cluster.check.ray",
)


def _modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(gpudoctor.__path__, "gpudoctor.")
    return [import_module(each.name) for each in found if not each.name.startswith(_NOT_IMPORTED)]


def _patterns(value: object) -> list[LazyPattern]:
    if isinstance(value, LazyPattern):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [found for each in value for found in _patterns(each)] if isinstance(value, list | tuple) else []


def test_every_pattern_of_the_package_compiles() -> None:
    patterns = {id(each): each for module in _modules() for value in vars(module).values() for each in _patterns(value)}
    assert len(patterns) > 100
    assert all(isinstance(each.pattern, str | bytes) for each in patterns.values())


def test_a_pattern_is_compiled_when_it_is_first_used_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_now = re.compile

    def noted(text: str, flags: int) -> re.Pattern[str]:
        compiled.append(text)
        return compile_now(text, flags)

    monkeypatch.setattr(re, "compile", noted)
    pattern = lazy_pattern(r"(?P<width>x\d+)", re.IGNORECASE)
    assert compiled == []
    assert present(pattern.search("lane X16"))["width"] == "X16"
    assert pattern.sub("?", "x1 x2") == "? ?"
    assert compiled == [r"(?P<width>x\d+)"]


def test_a_wrong_pattern_and_a_method_that_patterns_do_not_have_raise() -> None:
    with pytest.raises(re.error, match="unterminated"):
        lazy_pattern("(").match("text")
    with pytest.raises(AttributeError, match="find_all"):
        lazy_pattern("a").find_all  # type: ignore[attr-defined]  # noqa: B018
