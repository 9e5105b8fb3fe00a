"""The process that leads a check of many nodes, when its reports cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudoctor.cli.commands.cluster_check import request_of, write_report
from gpudoctor.cli.parsing import parsed
from gpudoctor.cluster.check.coordinator import Coordinator, file_name
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.model import ClusterOutput
from gpudoctor.errors import UserError
from tests.cluster.puppets import TOKEN, job, simulated_json


def coordinator(*words: str) -> Coordinator:
    args = parsed(["cluster", "check", *words])
    output = ClusterOutput(lambda report: write_report(report, args), lambda text: None)
    return Coordinator(request_of(args), "test", output)


def test_a_nodes_report_that_cannot_be_kept_costs_neither_the_verdict_nor_the_others_and_is_no_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.cluster.check.coordinator.hold_signals", list)  # pytest's own handlers stay
    (tmp_path / "a.json").mkdir()
    leads = coordinator("--json", "--backend", "gloo", "--reports", str(tmp_path))
    hub, nodes = Hub(TOKEN), job("a", "b")
    for node in nodes:
        node.port, node.report = hub.port, simulated_json()
        node.start()

    code = leads.run(hub, 2, (), lambda: False, lambda: None)

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [node["verdict"] for node in found["nodes"]] == ["pass", "pass"]
    assert (code, found["exit_code"]) == (2, 2)
    assert "the report of a is not kept" in err
    assert json.loads((tmp_path / "b.json").read_text())["schema"] == "gpudoctor.report/1"
    assert all(node.ended.wait(30) for node in nodes)


def test_nodes_whose_names_look_alike_as_file_names_each_keep_their_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that calls itself a/b must not put its report in the place of a_b's."""
    monkeypatch.setattr("gpudoctor.cluster.check.coordinator.hold_signals", list)  # pytest's own handlers stay
    leads = coordinator("--json", "--backend", "gloo", "--reports", str(tmp_path / "new" / "reports"))
    hub, nodes = Hub(TOKEN), job("a_b", "a/b")
    for node in nodes:
        node.port, node.report = hub.port, simulated_json()
        node.start()

    leads.run(hub, 2, (), lambda: False, lambda: None)

    capsys.readouterr()
    assert len(list((tmp_path / "new" / "reports").glob("*.json"))) == 2
    assert (tmp_path / "new" / "reports" / "a_b.json").is_file()
    assert {oct(path.stat().st_mode)[-3:] for path in (tmp_path / "new").rglob("*") if path.is_dir()} == {"700"}


def test_file_names_are_the_same_in_each_run_and_never_shared() -> None:
    assert file_name("node-1.x#2", ()) == "node-1.x#2.json"
    assert file_name("a/b", ()) == file_name("a/b", ("a_b.json",)) == "a_b-c14cddc0.json"
    assert file_name("a_b-c14cddc0", ("a_b-c14cddc0.json",)) not in ("a_b-c14cddc0.json", "a_b.json")
    assert len({file_name(name, ()) for name in ("", ".", "..", "/", "node", "\0")}) == 6
    assert len(file_name("\U00020000" * 300, ()).encode()) < 255


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, True), (0o775, False), (0o755, False)])
def test_reports_go_where_nobody_else_changes_them(mode: int, refused: bool, tmp_path: Path) -> None:
    """/tmp of a login node: others would add a node, or change a verdict, before cluster report reads them."""
    tmp_path.chmod(mode)
    if refused:
        with pytest.raises(UserError, match=r"--reports: everyone may write to .*; a folder that is not there yet"):
            coordinator("--reports", str(tmp_path))
    else:
        assert coordinator("--reports", str(tmp_path)).files == {}
