"""Reports of nodes and of trainings, damaged: `cluster report` reads or refuses each, and no failure becomes a pass."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.cluster.fleet.html import render_fleet_html
from gpudoctor.cluster.fleet.model import Fleet
from gpudoctor.cluster.fleet.read_fleet import ClusterReportRequest, read_fleet
from gpudoctor.cluster.fleet.text import render_fleet_text
from gpudoctor.errors import UserError
from gpudoctor.text.json_text import json_document
from tests.cluster.fleet_reports import report
from tests.cluster.test_fleet_runs import node_report
from tests.fuzz.mutate import Step, mutated, steps
from tests.fuzz.profile import fuzzed
from tests.fuzz.test_parsers import one_line
from tests.run.runs import rank


@cache
def pairs() -> dict[str, tuple[bytes, bytes]]:
    """A sound report and one that fails, of each kind."""
    checks = tuple(
        json.dumps(report(name, like=like, figures=True), separators=(",", ":")).encode() + b"\n"
        for name, like in (("node1", "gpu-01"), ("node2", "gpu-11"))
    )
    with TemporaryDirectory() as folder:
        node_report(Path(folder), "node1", rank(0), rank(1))
        node_report(Path(folder), "node2", rank(2), rank(3, bad_loss=3))
        runs = tuple((Path(folder) / f"{name}-0.json").read_bytes() for name in ("node1", "node2"))
    one_line_each = tuple(json.dumps(json.loads(run)).encode() + b"\n" for run in runs)
    return {"check": (checks[0], checks[1]), "run": (one_line_each[0], one_line_each[1])}


def fleet_of(folder: Path) -> Fleet:
    fleet, _ = read_fleet(ClusterReportRequest((str(folder),)), lambda gathered: None, lambda arrived: None)
    return fleet


@pytest.mark.parametrize("kind", ["check", "run"])
def test_the_seeds_are_read_and_the_second_fails(kind: str, tmp_path: Path) -> None:
    for number, data in enumerate(pairs()[kind]):
        (tmp_path / f"{number}.json").write_bytes(data)
        assert fleet_of(tmp_path).exit_code == number


@fuzzed("fleet")
@given(kind=st.sampled_from(["check", "run"]), what=steps)
def test_a_damaged_report_is_read_or_refused_and_is_no_pass(
    kind: str, what: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    sound, failing = pairs()[kind]
    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        (Path(folder) / "node1.json").write_bytes(sound)
        (Path(folder) / "node2.json").write_bytes(mutated(failing, what))
        try:
            fleet = fleet_of(Path(folder))
        except UserError as error:
            one_line(error)
            return
    assert fleet.exit_code != 0 or fleet.reading.foreign, fleet
    json_document(fleet)
    render_fleet_html(fleet)
    render_fleet_text(fleet, width=100, color=True, verbose=True)
