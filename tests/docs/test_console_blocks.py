"""What a page shows below a command is what the command prints; `make accept` brings it up to date."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Gpudoctor
from tests.golden_files import ACCEPT

DOCS = Path(__file__).parents[2] / "docs"
# one command and what it prints; a block of several commands is a list to choose from
BLOCK = re.compile(r"^```console\n\$ gpudoctor ([^\n]*)\n((?:(?!\$ |```).*\n)*)```$", re.MULTILINE)
SECONDS = re.compile(r"  \d+\.\d s$", re.MULTILINE)
PAGES = [page for page in sorted(DOCS.glob("*.md")) if any(output for _, output in BLOCK.findall(page.read_text()))]


def test_the_first_pages_show_output() -> None:
    assert {"slow-training.md", "dead-job.md", "node-in-a-queue.md"} <= {page.name for page in PAGES}


@pytest.mark.usefixtures("pinned_checks")
@pytest.mark.parametrize("page", PAGES if not ACCEPT else sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(
    page: Path, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for command, shown in BLOCK.findall(page.read_text()):
        if not shown and not (ACCEPT and _is_repeatable(command)):
            continue
        printed = SECONDS.sub("", gpudoctor(*shlex.split(command)).out)
        if ACCEPT:
            text = page.read_text()
            page.write_text(text.replace(f"$ gpudoctor {command}\n{shown}```", f"$ gpudoctor {command}\n{printed}```"))
        else:
            assert shown == printed


def _is_repeatable(command: str) -> bool:
    """Whether a block without output yet may get one: nothing is read of this machine, nothing is measured."""
    reads = "--node" in command and "#" not in command and ("quick" in command or command.startswith("status"))
    return reads or "--example" in command
