"""`cluster report`: its verdicts on a set of reports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Gpudoctor
from tests.cluster.fleet_reports import EXAMPLES, Report, fleet, report, scale, write


def rows(found: Any) -> dict[str, Any]:
    return {row["name"]: row for row in found["nodes"]}


def test_the_examples_show_a_fault_of_every_sort(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("cluster", "report", "--json", str(EXAMPLES / "fleet"))
    found = outcome.json
    assert outcome.code == found["exit_code"] == 1
    assert found["verdict"] == "fail"
    assert found["counts"] == {"nodes": 12, "pass": 9, "warn": 0, "fail": 3, "unknown": 0, "unread": 1}
    kinds = {kind["check"]: kind["nodes"] for kind in found["faults"] if kind["status"] == "fail"}
    assert kinds == {"fleet.outlier": ["gpu-04"], "pcie.link-width": ["gpu-11"], "driver.responsive": ["gpu-12"]}
    assert {(d["item"], d["others"][0]["nodes"][0]) for d in found["drift"]} == {
        ("driver", "gpu-09"),
        ("NCCL", "gpu-09"),
        ("VBIOS", "gpu-06"),
    }
    # gpu-11's failure follows from its narrow link, and is not a separate fault
    assert {outlier["node"] for outlier in found["outliers"]} == {"gpu-04", "gpu-11"}
    assert found["simulated"] == 12
    assert Path(found["reading"]["broken"][0]["place"]).name == "gpu-13.json"


def test_the_command_that_comes_next_names_the_nodes_that_should_have_reported(gpudoctor: Gpudoctor) -> None:
    source = str(EXAMPLES / "fleet")
    shown = gpudoctor("cluster", "report", source, "--expect", "gpu-[01-20]").out.splitlines()
    command = f"gpudoctor cluster report {source} --expect 'gpu-[01-20]' --exclude-expr"
    assert any(line.strip().startswith(command) for line in shown)


def test_what_a_fault_explains_is_not_counted_beside_it(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    write(tmp_path / "a.json", report("node1", like="gpu-12"))
    found = gpudoctor("cluster", "report", "--json", str(tmp_path)).json
    assert [(kind["check"], kind["status"]) for kind in found["faults"]] == [("driver.responsive", "fail")]


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_the_text_names_nodes_faults_outliers_drift_and_what_was_not_read(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    outcome = gpudoctor("cluster", "report", str(EXAMPLES / "fleet"))
    assert outcome.code == 1
    # a command is a line of its own, never wrapped
    text = [line for line in outcome.out.splitlines() if not line.startswith("  gpudoctor ")]
    assert max(map(len, text)) <= int(columns)
    assert "  gpudoctor explain pcie.link-width" in outcome.out.splitlines()
    assert ("      gpu-04: all_reduce 1 GiB float32," in text) == (columns == "40"), "what it is stands below the check"
    assert outcome.out.startswith("SIMULATED: all nodes are made up")
    for words in (
        "FAIL 3 gpu-[04,11-12]",
        "PASS 9 gpu-[01-03,05-10]",
        "pcie.link-width",
        "other figure",
        "565.57.01 on gpu-09; 570.172.08 on 11 of 12",
        "gpu-13.json: cut off",
        "3 nodes not fit to train on",
        "--exclude-expr",
    ):
        assert words.replace(" ", "") in "".join(outcome.out.split())  # text is wrapped, in a long path anywhere


def test_healthy_nodes_pass_and_exit_with_0(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    outcome = gpudoctor("cluster", "report", "--json", str(fleet(tmp_path, 12)))
    assert (outcome.code, outcome.json["verdict"]) == (0, "pass")
    assert outcome.json["counts"]["pass"] == 12
    assert outcome.json["outliers"] == outcome.json["drift"] == outcome.json["faults"] == []
    # pooled over 8 GPUs of 12 nodes
    gemm = next(row for row in outcome.json["figures"] if row["figure"] == "matrix product bf16 8192")
    assert (gemm["nodes"], gemm["samples"], gemm["why_not"]) == (12, 96, None)


def test_an_unknown_node_makes_3_and_a_failing_one_1(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    fleet(tmp_path, 3, figures=False)
    unknown = report("node9")
    unknown |= {"verdict": "unknown", "reason": "UNKNOWN gpu.ecc"}
    unknown["checks"][5]["status"] = "unknown"
    write(tmp_path / "node9.json", unknown)
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.code, outcome.json["verdict"]) == (3, "unknown")
    assert rows(outcome.json)["node9"]["reason"] == "UNKNOWN gpu.ecc"
    write(tmp_path / "bad.json", report("node4", like="gpu-11"))
    assert gpudoctor("cluster", "report", str(tmp_path)).code == 1


def test_a_report_of_a_check_that_could_not_work_is_an_unknown_node(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    target = tmp_path / "set" / "gpu-05.json"
    target.parent.mkdir()
    assert gpudoctor("check", "--node", str(tmp_path / "none"), "--json", "-o", str(target)).code == 2
    outcome = gpudoctor("cluster", "report", "--json", str(target.parent))
    assert outcome.code == 3
    assert rows(outcome.json)["gpu-05"]["verdict"] == "unknown"
    assert "could not do its work" in rows(outcome.json)["gpu-05"]["reason"]


def test_the_newest_report_of_a_node_counts(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    write(tmp_path / "1.json", report("node1", like="gpu-11", at="2025-11-01T10:00:00+00:00"))
    write(tmp_path / "2.json", report("node1", at="2025-11-02T10:00:00+00:00"))
    found = gpudoctor("cluster", "report", "--json", str(tmp_path)).json
    assert found["verdict"] == "pass"
    assert found["reading"]["older"] == 1
    assert rows(found)["node1"]["reports"] == 2


def test_a_fault_is_not_forgotten_by_a_newer_report_that_did_not_look(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    old = report("node1", like="gpu-11", at="2025-11-01T10:00:00+00:00")
    for fault in old["faults"]:
        fault["check"] = "train.balance"
    write(tmp_path / "1.json", old)
    new = report("node1", at="2025-11-02T10:00:00+00:00")
    for check in new["checks"]:
        if check["id"] == "train.balance":
            check["status"] = "skip"
    write(tmp_path / "2.json", new)
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path), "--good", str(tmp_path / "good.txt"))
    assert outcome.code == 3
    row = rows(outcome.json)["node1"]
    assert row["verdict"] == "unknown"
    assert "train.balance failed in the report of 2025-11-01T10:00:00Z and was not looked at since" in row["reason"]
    assert (tmp_path / "good.txt").read_text() == ""


def test_drift_is_against_the_majority_of_a_kind_and_only_where_there_is_one(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    def change(number: int, made: Report) -> None:
        made["host"]["kernel"] = "6.8.0-1" if number <= 3 else "6.8.0-2"
        if number == 5:
            made["host"]["driver"] = "1.0"
            del made["gpus"][7]

    found = gpudoctor("cluster", "report", "--json", str(fleet(tmp_path, 6, change, figures=False))).json
    drift = {each["item"]: each for each in found["drift"]}
    assert drift["driver"]["others"] == [{"value": "1.0", "nodes": ["node5"]}]
    assert drift["GPUs"]["others"] == [{"value": "7", "nodes": ["node5"]}]
    assert drift["kernel"]["majority"] is None
    assert len(drift["kernel"]["others"]) == 2
    assert found["verdict"] == "warn"
    assert found["exit_code"] == 0


def test_nodes_of_another_model_do_not_drift_from_the_many(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def change(number: int, made: Report) -> None:
        if number > 6:
            made["host"]["driver"] = "550.1"
            for gpu in made["gpus"]:
                gpu["name"] = "NVIDIA A100-SXM4-80GB"

    assert gpudoctor("cluster", "report", "--json", str(fleet(tmp_path, 9, change, figures=False))).json["drift"] == []


def test_trends_say_what_got_worse_since_the_older_set(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def slower(number: int, made: Report) -> None:
        made["run"]["id"] += "new"
        scale(made, "host_links", "h2d_alone_gb_s", 0.9 if number != 4 else 0.6)
        if number == 7:
            made["host"]["name"] = "node77"

    old, new = fleet(tmp_path / "old", 14), fleet(tmp_path / "new", 14, slower)
    found = gpudoctor("cluster", "report", "--json", str(new), "--against", str(old)).json
    by_what: dict[str, list[Any]] = {}
    for trend in found["trends"]:
        by_what.setdefault(trend["what"], []).append(trend)
    [figure] = by_what["figure"]
    assert figure["node"] == "node4"
    assert re.search(r"host to GPU \d -40%, the fleet -10%; and 7 other figures$", figure["text"])
    assert all(trend["worse"] and "-10%" in trend["text"] for trend in by_what["fleet"])
    assert len(by_what["fleet"]) == 8
    assert {trend["text"] for trend in by_what["node"]} == {"1 without a report now: node7", "1 new: node77"}
    assert "nothing changed" in gpudoctor("cluster", "report", str(old), "--against", str(old)).out


def test_simulated_nodes_are_marked_and_kept_apart_from_real_ones(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    fleet(tmp_path, 2, figures=False)
    made = report("node3", like="gpu-11")
    made["simulated"] = True
    write(tmp_path / "node3.json", made)
    outcome = gpudoctor("cluster", "report", str(tmp_path), "--bad", str(tmp_path / "bad.txt"))
    assert "SIMULATED: 1 nodes are made up" in outcome.out
    assert "node3 (SIMULATED)" in outcome.out
    # a made-up fault must not take a real machine of that name out of the queue
    assert (tmp_path / "bad.txt").read_text() == ""


def test_escape_sequences_of_names_reach_neither_terminal_nor_page(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = report("node\x1b[31m<script>alert(1)</script>", like="gpu-11")
    made["faults"][0]["headline"] = "\x1b]0;title\x07<img src=x>"
    made["host"]["driver"] = "\x9b31m"
    path = write(tmp_path / "evil.json", made)
    for form in ("text", "html"):
        outcome = gpudoctor("cluster", "report", "--format", form, str(path), "--color", "never")
        assert outcome.code == 1
        assert not {"\x1b", "\x9b", "\x07"} & set(outcome.out + outcome.err)
        assert form == "text" or ("<script" not in outcome.out and "<img" not in outcome.out)


def test_the_page_loads_nothing_and_holds_the_faults(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    target = tmp_path / "fleet.html"
    outcome = gpudoctor(
        *("cluster", "report", str(EXAMPLES / "fleet"), "--format", "html", "-o", str(target)),
        *("--against", str(EXAMPLES / "fleet-week-before")),
    )
    assert (outcome.code, outcome.out) == (1, "")
    page = target.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for words in (
        "SIMULATED",
        "gpu-11",
        "PCIe Gen5 x8",
        "565.57.01",
        "gpu-13.json",
        "pass -&gt; fail",
        'class="outlier"',
    ):
        assert words in page
