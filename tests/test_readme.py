"""The README and the guides say what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpudoctor.api.config import Config, load_config
from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.simulated.load import faults, node_names
from gpudoctor.profiles.load import gpu_models, profile_names
from tests.cli.conftest import Gpudoctor
from tests.golden_files import ACCEPT

README_FILE = Path(__file__).parent.parent / "README.md"
README = README_FILE.read_text()
DOCS = README_FILE.parent / "docs"
GUIDES = "\n".join(path.read_text() for path in (README_FILE, *sorted(DOCS.glob("*.md"))))


def _write(path: Path, old: str, new: str) -> str:
    """The page with this part regenerated if `make accept` requested it, else as it is."""
    if ACCEPT and old != new:
        path.write_text(path.read_text().replace(old, new))
    return path.read_text()


def test_the_readme_is_short_and_says_what_was_never_measured() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert any("Not yet tested on a real GPU" in line for line in lines[:15])


@pytest.mark.usefixtures("pinned_checks")
def test_the_report_at_the_top_is_what_the_command_prints(gpudoctor: Gpudoctor) -> None:
    block = README.split("```console\n")[1].split("```")[0]
    command, *shown = block.splitlines()
    outcome = gpudoctor(*command.removeprefix("$ gpudoctor ").split())
    assert shown[-2:] == ["$ echo $?", str(outcome.code)]
    printed = [re.sub(r"  \d+\.\d s$", "", line) for line in outcome.out.splitlines()]
    if ACCEPT and [re.sub(r"  \d+\.\d s$", "", line) for line in shown[:-2]] != printed:
        shown = [*outcome.out.splitlines(), *shown[-2:]]
        _write(README_FILE, block, "\n".join([command, *shown]) + "\n")
    assert [re.sub(r"  \d+\.\d s$", "", line) for line in shown[:-2]] == printed


def test_the_numbers_of_nodes_faults_models_and_kinds_are_right() -> None:
    """A new fault needs no new page: it may count fewer of them, and `make accept` brings it up to date."""
    page = DOCS / "simulated-nodes.md"
    numbers = re.compile(r"(\d+) simulated nodes, (\d+) faults")
    [counted] = numbers.finditer(page.read_text())
    [counted] = numbers.finditer(
        _write(page, counted[0], f"{len(node_names())} simulated nodes, {len(faults())} faults")
    )
    assert int(counted[1]) == len(node_names())
    assert 90 < int(counted[2]) <= len(faults())
    kinds = set(profile_names()) - set(gpu_models())
    assert f"{len(gpu_models())} models, {len(kinds)} kinds of node" in (DOCS / "configuration.md").read_text()


def test_the_example_configuration_is_one(tmp_path: Path) -> None:
    text = (DOCS / "configuration.md").read_text().split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "c.yaml"
    path.write_text(text)
    config = load_config(path, {"HOME": str(tmp_path)}, registry, system_file=tmp_path / "none")
    assert config != Config()
    assert set(yaml.safe_load(text)) <= set(Config.__struct_fields__)


@pytest.mark.parametrize(
    "line", re.findall(r"^\$ (?:\w+=\S+ )?gpudoctor check (--node [a-z].*)$", GUIDES, re.MULTILINE)
)
def test_every_simulated_example_is_understood(line: str, gpudoctor: Gpudoctor) -> None:
    argv = line.split("#")[0].split("|")[0].split()
    if not any(word.endswith((".xml", ".txt")) for word in argv):
        assert gpudoctor("check", *argv, "--level", "quick").code in {0, 1}
