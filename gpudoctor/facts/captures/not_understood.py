"""A text about a node in which no reader finds anything: it is quoted, and nothing in it is judged."""

from __future__ import annotations

import re

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.captures.text_statements import OF_A_NODE, TextStatements

_MOST_SHOWN = 600  # of a longer text, the lines that name a part of a node
# ASCII: no space parts "GPU" from the words of some languages
_NAMES_A_PART = re.compile(
    rf"{OF_A_NODE.pattern}|\b(?:GPUs?\d{{1,3}}|gpu_?(?:id|uuid)\w*|amdgpu|ibstat|power (?:supply|unit))\b",
    re.IGNORECASE | re.ASCII,
)


def words_about_a_node(text: str) -> str | None:
    """The lines of a text that names a part of a node, clipped; None if it is a page, or names none."""
    if not _NAMES_A_PART.search(text):
        return None
    statements = TextStatements()
    for number, line in enumerate(text.splitlines()):
        statements.offer(line, number)
    if statements.is_a_page:
        return None
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if sum(map(len, lines)) > _MOST_SHOWN:
        lines = [line for line in lines if _NAMES_A_PART.search(line)]
    return clipped(" / ".join(lines))
