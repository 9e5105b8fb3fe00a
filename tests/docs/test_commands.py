"""Every gpudoctor command that a page shows is one that gpudoctor understands."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest

from gpudoctor.cli.command_table import COMMANDS
from gpudoctor.cli.parsing import parsed
from gpudoctor.errors import UserError

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").rglob("*.md")]
# a line of a block, or words in backquotes, up to what the shell takes for itself
_SHOWN = re.compile(r"^(?:\$ | {4})(?:[A-Z_]+=\S+ )*gpudoctor (\S.*)$|`gpudoctor ([^`\n]+)`", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\b(ID|COMMAND|NAME|REPORT|BASELINE|DIR\|FILES\|-|LEVEL|\.\.\.)")


def shown() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        for block, inline in _SHOWN.findall(page.read_text(encoding="utf-8")):
            words = _words(block or inline)
            mentioned = inline and " -" not in inline  # the name of a command, not a line to type
            if words[0] in COMMANDS and not mentioned and not _PLACEHOLDER.search(" ".join(words)):
                found.append((page.name, words))
    return found


def _words(line: str) -> list[str]:
    """The words of the command, up to a pipe, a redirection, a second command or a comment."""
    lexer = shlex.shlex(re.sub(r" 2>.*", "", line).rstrip("\\"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(takewhile(lambda word: not set(word) & set("|;<>&()"), lexer))


def test_the_commands_of_the_pages_are_found() -> None:
    assert {command for _, (command, *_) in shown()} > {"check", "diagnose", "plan", "tui", "cluster", "fake-driver"}


@pytest.mark.parametrize(
    ("page", "words"), shown(), ids=lambda value: value if isinstance(value, str) else " ".join(value)[:60]
)
def test_a_command_that_a_page_shows_is_understood(page: str, words: list[str]) -> None:
    try:
        args = parsed(words)
    except (SystemExit, UserError) as error:
        pytest.fail(f"{page}: gpudoctor {shlex.join(words)}: {error}")
    assert args.command == words[0]


def test_a_file_of_the_checkout_that_a_command_takes_is_there() -> None:
    """Commands are for the top of a checkout, as `pip install .` is."""
    named: list[tuple[str, str]] = []
    for page in PAGES:
        for line in re.findall(r"^(?:\$ | {4})(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            words = line.partition(" # ")[0].split()
            # install -m MODE SOURCE... TARGET, install -D -t TARGET SOURCE...
            sources = (
                [w for w in words[1:-1] if not re.fullmatch(r"-\w|\d+|/.*", w)] if words[:1] == ["install"] else []
            )
            named += [(page.name, w) for w in {*sources, *words} if w in sources or w.startswith("contrib/")]
    assert {"contrib/slurm/*.sh", "contrib/prometheus/gpudoctor-agent.service"} <= {word for _, word in named}
    assert [each for each in named if not list(ROOT.glob(each[1])) and "/site" not in each[1]] == []
