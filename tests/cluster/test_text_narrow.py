"""Text of fleets and jobs on narrow terminals: readable, and no name is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.cluster.check.text import render_cluster_text
from tests.cli.conftest import Gpudoctor
from tests.cluster.fleet_reports import fleet, report, write
from tests.cluster.puppets import Puppet, report_of

LONG = "ip-10-0-0-17.rack-3.gpu.us-west-2.compute.cluster.example"


def test_a_long_name_stands_whole_with_its_fault_below(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    fleet(tmp_path, 2, figures=False)
    write(tmp_path / "a.json", report(LONG, like="gpu-11"))
    out = gpudoctor("cluster", "report", str(tmp_path)).out
    assert f"FAIL     {LONG}\n" in out


def test_of_a_job_two_nodes_whose_long_names_differ_in_the_end_are_told_apart() -> None:
    text = render_cluster_text(report_of([Puppet(f"{LONG}1", 0), Puppet(f"{LONG}2", 1)]), width=80, color=False)
    assert f"{LONG}1" in text
    assert f"{LONG}2" in text
