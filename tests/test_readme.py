"""The README says what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpudoctor.checks.core.registry import registry
from gpudoctor.config import Config, load_config
from gpudoctor.facts.simulated.load import faults, node_names
from gpudoctor.profiles.load import gpu_models, profile_names
from tests.cli.conftest import Gpudoctor, gpudoctor
from tests.golden_files import ACCEPT

__all__ = ["gpudoctor"]  # the fixture

README_FILE = Path(__file__).parent.parent / "README.md"
README = README_FILE.read_text()


def _write(old: str, new: str) -> str:
    """The README with this part written anew, if `make accept` asked for it; as it is, else."""
    if ACCEPT and old != new:
        README_FILE.write_text(README_FILE.read_text().replace(old, new))
    return README_FILE.read_text()


def test_every_check_of_the_table_is_in_the_registry_with_its_level_and_title() -> None:
    table = re.search(r"(?:^\| `[a-z0-9.-]+` \| \w+ \| .+ \|\n)+", README, re.MULTILINE)
    assert table is not None
    there = [f"| `{c.id}` | {c.level} | {c.title} |" for c in registry()]
    rows = re.findall(r"^\| `[a-z0-9.-]+` \| \w+ \| .+ \|$", _write(table[0], "\n".join(there) + "\n"), re.MULTILINE)
    assert len(rows) > 60
    assert [row for row in there if row in rows] == rows


@pytest.mark.usefixtures("pinned_checks")
def test_the_report_at_the_top_is_what_the_command_prints(gpudoctor: Gpudoctor) -> None:
    block = README.split("```console\n")[1].split("```")[0]
    command, *shown = block.splitlines()
    outcome = gpudoctor(*command.removeprefix("$ gpudoctor ").split())
    assert shown[-2:] == ["$ echo $?", str(outcome.code)]
    printed = [re.sub(r"  \d+\.\d s$", "", line) for line in outcome.out.splitlines()]
    if ACCEPT and [re.sub(r"  \d+\.\d s$", "", line) for line in shown[:-2]] != printed:
        shown = [*outcome.out.splitlines(), *shown[-2:]]
        _write(block, "\n".join([command, *shown]) + "\n")
    assert [re.sub(r"  \d+\.\d s$", "", line) for line in shown[:-2]] == printed


def test_the_numbers_of_nodes_faults_models_and_kinds_are_right() -> None:
    """A new fault needs no new README: it may count fewer of them, and `make accept` brings it up to date."""
    counted = re.search(r"(\d+) simulated nodes, (\d+) faults", README)
    assert counted is not None
    counted = re.search(
        r"(\d+) simulated nodes, (\d+) faults",
        _write(counted[0], f"{len(node_names())} simulated nodes, {len(faults())} faults"),
    )
    assert counted is not None
    assert int(counted[1]) == len(node_names())
    assert 90 < int(counted[2]) <= len(faults())
    kinds = set(profile_names()) - set(gpu_models())
    assert f"{len(gpu_models())} models, {len(kinds)} kinds of node" in README


def test_the_example_configuration_is_one(tmp_path: Path) -> None:
    text = README.split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "c.yaml"
    path.write_text(text)
    config = load_config(path, {"HOME": str(tmp_path)}, registry(), system_file=tmp_path / "none")
    assert config != Config()
    assert set(yaml.safe_load(text)) <= set(Config.__struct_fields__)


@pytest.mark.parametrize(
    "line", re.findall(r"^\$ (?:\w+=\S+ )?gpudoctor check (--node [a-z].*)$", README, re.MULTILINE)
)
def test_every_simulated_example_is_understood(line: str, gpudoctor: Gpudoctor) -> None:
    argv = line.split("#")[0].split("|")[0].split()
    if not any(word in argv for word in ("dump.xml", "mine.xml")):
        assert gpudoctor("check", *argv, "--level", "quick").code in {0, 1}
