"""The process that leads a check of many nodes, when its reports cannot be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.cli.commands.cluster_check import write_report
from gpudoctor.cli.options import request_from
from gpudoctor.cli.parsing import parsed
from gpudoctor.cluster.check.coordinator import Coordinator, file_name
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.model import ClusterCheckRequest, ClusterOutput
from gpudoctor.errors import UserError
from tests.cluster.puppets import TOKEN, job, simulated_json


def coordinator(*words: str) -> Coordinator:
    args = parsed(["cluster", "check", *words])
    output = ClusterOutput(lambda report: write_report(report, args), lambda text: None)
    return Coordinator(request_from(args, ClusterCheckRequest), "test", output)


@pytest.fixture
def led(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any, str]]:
    """led(folder, *names): a check of nodes of these names that keeps their reports there: code, report, stderr."""
    monkeypatch.setattr("gpudoctor.cluster.check.coordinator.hold_signals", list)  # pytest's own handlers stay

    def lead(folder: Path, *names: str) -> tuple[int, Any, str]:
        leads = coordinator("--json", "--backend", "gloo", "--reports", str(folder))
        hub, nodes = Hub(TOKEN), job(*names)
        for node in nodes:
            node.port, node.report = hub.port, simulated_json()
            node.start()
        code = leads.run(hub, len(names), (), lambda: False, lambda: None)
        assert all(node.ended.wait(30) for node in nodes)
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return lead


def test_a_nodes_report_that_cannot_be_kept_costs_neither_the_verdict_nor_the_others_and_is_no_0(
    tmp_path: Path, led: Callable[..., tuple[int, Any, str]]
) -> None:
    (tmp_path / "a.json").mkdir()

    code, found, err = led(tmp_path, "a", "b")

    assert [node["verdict"] for node in found["nodes"]] == ["pass", "pass"]
    assert (code, found["exit_code"]) == (2, 2)
    assert "the report of a is not kept" in err
    assert json.loads((tmp_path / "b.json").read_text())["schema"] == "gpudoctor.report/1"


def test_nodes_whose_names_look_alike_as_file_names_each_keep_their_report(
    tmp_path: Path, led: Callable[..., tuple[int, Any, str]]
) -> None:
    """A node that calls itself a/b must not put its report in the place of a_b's."""
    led(tmp_path / "new" / "reports", "a_b", "a/b")

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
