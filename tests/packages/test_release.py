"""One version and one address in all files; the workflow that cuts a release has no known weakness."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import gpudoctor
from tests.needs import find, needs
from tests.packages.project_files import ROOT, files_of_the_project
from tests.subprocesses import completed

PYPROJECT = (ROOT / "pyproject.toml").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
REPOSITORY = re.findall(r'^Repository = "(.*)"$', PYPROJECT, re.MULTILINE)[0]


def test_the_version_stands_in_one_place_and_the_changelog_follows_it() -> None:
    """The newest section of the changelog is of this version, or of changes that no version has yet."""
    assert re.search(r'^dynamic = \["version"\]$', PYPROJECT, re.MULTILINE)
    assert re.search(r'^path = "gpudoctor/__init__.py"$', PYPROJECT, re.MULTILINE)
    assert not re.search(r"^version = ", PYPROJECT, re.MULTILINE)
    sections = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [(version, date) for version, date in sections if version != "Unreleased"]
    assert sections[0] == ("Unreleased", "") or sections[0][0] == gpudoctor.__version__
    assert released == [] or released[0][0] == gpudoctor.__version__
    assert [version for version, date in released if not re.fullmatch(r"\d{4}-\d\d-\d\d", date)] == []


def test_every_mention_of_the_repository_is_the_one_of_the_project_file() -> None:
    """It is not public yet: whoever changes it there finds here what else names it."""
    pattern = re.compile(r"https?://(?:www\.)?(?:github|gitlab)\.com/[\w.-]+/gpudoctor\b")
    kinds = {".md", ".py", ".yml", ".yaml", ".toml", ".sh", ".service"}
    texts = [path for path in files_of_the_project() if path.suffix in kinds]
    mentions = {found for path in texts for found in pattern.findall(path.read_text())}
    assert mentions == {REPOSITORY}


def test_messages_tell_to_install_what_the_project_file_names_and_not_what_has_no_release() -> None:
    texts = [path.read_text() for path in files_of_the_project("gpudoctor") if path.suffix in (".py", ".md")]
    hints = [hint for text in texts for hint in re.findall(r"pip install((?: '[^'\n]+')+)", text)]
    asked = {word for hint in hints for word in re.findall(r"'(.+?)'", hint)}
    assert {"torch>=2.4", "aiohttp>=3.9,<4", "textual-serve>=1.1.3,<2"} <= asked
    # those with extras are the builds of other projects for GPUs
    assert [word for word in asked if f'"{word}"' not in PYPROJECT and not re.match("(tensorflow|jax)\\[", word)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_of_a_workflow_is_pinned_by_its_hash(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    assert [u for u in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", u[0]) or "# v" not in u[1]] == []


@needs("zizmor")
def test_a_scanner_of_workflows_finds_nothing() -> None:
    argv = [str(find("zizmor")), "--offline", "--format", "json", "--persona", "pedantic", *map(str, WORKFLOWS)]
    ended = completed(argv)
    assert [f"{finding['ident']}: {finding['desc']}" for finding in json.loads(ended.stdout)] == [], ended.stderr


def test_the_release_is_tried_on_every_python_that_the_package_names() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    tried = workflow["jobs"]["try"]["strategy"]["matrix"]["python"]
    assert tried == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
