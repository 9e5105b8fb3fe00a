"""The process that leads a check of many nodes: what comes of it when its reports cannot go where they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudoctor.cluster.hub import Hub
from gpudoctor.cluster.lead import Lead
from gpudoctor.command_line import parsed
from tests.cluster.puppets import TOKEN, job, simulated_json


def test_a_nodes_report_that_cannot_be_kept_costs_neither_the_verdict_nor_the_others_and_is_no_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.cluster.lead.hold_signals", list)  # pytest's own handlers stay
    (tmp_path / "a.json").mkdir()
    args = parsed(["cluster", "check", "--json", "--backend", "gloo", "--reports", str(tmp_path)])
    args.argv = []
    hub, nodes = Hub(TOKEN), job("a", "b")
    for node in nodes:
        node.port, node.report = hub.port, simulated_json()
        node.start()

    code = Lead(args, "test").run(hub, 2, (), lambda: False, lambda: None)

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [node["verdict"] for node in found["nodes"]] == ["pass", "pass"]
    assert (code, found["exit_code"]) == (2, 2)
    assert "the report of a is not kept" in err
    assert json.loads((tmp_path / "b.json").read_text())["schema"] == "gpudoctor.report/1"
    assert all(node.ended.wait(30) for node in nodes)
