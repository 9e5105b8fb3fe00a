"""The names of the package's classes keep to the glossary: one word, one meaning, and none that it sets aside."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import gpudoctor

PACKAGE = Path(gpudoctor.__file__).parent
GLOSSARY = (PACKAGE.parent / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS, SET_ASIDE = GLOSSARY.split("## Words that we do not use in names")


@cache
def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                found[statement.name].append(str(path.relative_to(PACKAGE)))
    return found


def words_of(name: str) -> list[str]:
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name)


def set_aside() -> set[str]:
    rows = [line.split("|")[1] for line in SET_ASIDE.splitlines() if line.startswith("| ")][1:]
    words = {word.strip() for row in rows for word in re.sub(r"\(.*?\)", "", row).split(",")}
    return {word for word in words if word and not word.startswith("-")}


@pytest.mark.wide
def test_no_class_name_stands_for_two_things() -> None:
    assert {name: where for name, where in public_classes().items() if len(where) > 1} == {}


@pytest.mark.wide
def test_no_class_is_named_by_a_word_that_the_glossary_sets_aside() -> None:
    aside = set_aside()
    assert {"Door", "Trouble", "Helper"} <= aside
    compounds = {word for word in aside if len(words_of(word)) > 1}
    wrong = [
        f"{name} in {where[0]}"
        for name, where in public_classes().items()
        for word in words_of(name)
        if word in aside or word.removesuffix("s") in aside or any(name.startswith(each) for each in compounds)
    ]
    assert wrong == []


def test_the_glossary_is_in_order_and_tells_each_term_once() -> None:
    terms = [line.split("|")[1].strip() for line in TERMS.splitlines() if line.startswith("| ")][1:]
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=str.casefold)
