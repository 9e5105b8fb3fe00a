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

__all__ = ["gpudoctor"]  # the fixture

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_table_of_checks_is_the_registry() -> None:
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \| (\w+) \| (.+) \|$", README, re.MULTILINE)
    assert rows == [(c.id, c.level, c.title) for c in registry()]


def test_the_report_at_the_top_is_what_the_command_prints(gpudoctor: Gpudoctor) -> None:
    block = README.split("```console\n")[1].split("```")[0]
    command, *shown = block.splitlines()
    outcome = gpudoctor(*command.removeprefix("$ gpudoctor ").split())
    assert shown[-2:] == ["$ echo $?", str(outcome.code)]
    printed = [re.sub(r"  \d+\.\d s$", "", line) for line in outcome.out.splitlines()]
    assert [re.sub(r"  \d+\.\d s$", "", line) for line in shown[:-2]] == printed


def test_the_numbers_of_nodes_faults_models_and_kinds_are_right() -> None:
    assert f"{len(node_names())} simulated nodes, {len(faults())} faults" in README
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
