"""`cluster report` reads the reports of `gpudoctor run -o DIR/%h.json`: which rank of all nodes holds up a training?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpudoctor.run.observer.layout import BACKWARD, FORWARD
from gpudoctor.run.report import rank_report
from gpudoctor.run.watched import Watched, WatchedRank
from gpudoctor.text.json_text import json_document
from tests.cli.conftest import Gpudoctor
from tests.run.runs import more, rank, report_of

COMMAND = ("torchrun", "--nnodes", "2", "--node-rank", "0", "train.py")


def node_report(folder: Path, host: str, *ranks: WatchedRank, second: int = 0, **changes: Any) -> None:
    run = {"command": COMMAND, "started_at": f"2026-07-01T10:00:{second:02}Z", "throughput": None, **changes}
    made = report_of(Watched(ranks=ranks, world_size=4), host, **run)
    (folder / f"{host}-{second}.json").write_text(json_document(made), "utf-8")


def test_a_rank_is_compared_with_those_of_the_other_nodes(tmp_path: Path, gpudoctor: Gpudoctor) -> None:
    slow = more(BACKWARD, 6.0)
    node_report(tmp_path, "a", rank(0), rank(1))
    node_report(tmp_path, "b", rank(2, wall=slow), rank(3), command=(*COMMAND[:4], "1", "train.py"), second=1)
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    (run,) = outcome.json["runs"]
    assert (outcome.json["verdict"], outcome.code) == ("warn", 0)
    assert (run["command"], run["hosts"], run["ranks"]) == (["torchrun", "--nnodes", "2", "train.py"], ["a", "b"], 4)
    assert [(each["id"], each["host"], each["rank"]) for each in run["findings"]] == [("run.balance", "b", 2)]
    for form in ("text", "html"):
        text = " ".join(gpudoctor("cluster", "report", "--format", form, str(tmp_path)).out.split())
        assert "b rank 2: makes the others wait" in text


def test_equal_ranks_are_fine_and_what_only_lacks_a_cpu_is_no_slow_rank(tmp_path: Path, gpudoctor: Gpudoctor) -> None:
    node_report(tmp_path, "a", rank(0), rank(1))
    node_report(tmp_path, "b", rank(2, lacks={FORWARD: 9.0}), rank(3))
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.json["verdict"], outcome.json["runs"][0]["findings"]) == ("pass", [])


@pytest.mark.parametrize("changes", [{"command": ("python", "other.py")}, {"started_at": "2026-07-01T12:00:00Z"}])
def test_another_command_or_time_is_another_training(
    tmp_path: Path, gpudoctor: Gpudoctor, changes: dict[str, Any]
) -> None:
    node_report(tmp_path, "a", rank(0), rank(1))
    node_report(tmp_path, "b", rank(2, wall=more(BACKWARD, 9.0)), **changes)
    assert [run["hosts"] for run in gpudoctor("cluster", "report", "--json", str(tmp_path)).json["runs"]] == [
        ["a"],
        ["b"],
    ]


def test_two_nodes_that_each_train_alone_with_one_command_are_two_trainings(
    tmp_path: Path, gpudoctor: Gpudoctor
) -> None:
    node_report(tmp_path, "a", rank(0), rank(1))
    node_report(tmp_path, "b", rank(0), rank(1))
    node_report(tmp_path, "c", rank(2), rank(3))
    node_report(tmp_path, "d", rank(4), rank(5))
    runs = gpudoctor("cluster", "report", "--json", str(tmp_path)).json["runs"]
    assert [(run["hosts"], run["ranks"]) for run in runs] == [(["a", "c", "d"], 6), (["b"], 2)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": "gpudoctor.run/2"}, "another version"),
        ({"schema": "gpudoctor.run/2", "findings": "in another form"}, "another version"),
        ({"verdict": "fail"}, "its verdict is fail, and its findings say pass"),
        ({"ranks": (rank_report(rank(2), "b"), rank_report(rank(2), "b"))}, "a rank is in it twice"),
        ({"world_size": "many"}, "damaged: Expected `int | null`"),
    ],
)
def test_a_report_that_cannot_be_used_is_unread_and_no_pass(
    tmp_path: Path, gpudoctor: Gpudoctor, changes: dict[str, Any], why: str
) -> None:
    node_report(tmp_path, "a", rank(0), rank(1))
    node_report(tmp_path, "b", rank(2), rank(3), **changes)
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.json["verdict"], outcome.code) == ("unknown", 3)
    (broken,) = outcome.json["reading"]["broken"]
    assert why in broken["why"]


def test_what_one_node_reports_of_its_own_stays(tmp_path: Path, gpudoctor: Gpudoctor) -> None:
    node_report(tmp_path, "a", rank(0), rank(1, bad_loss=3))
    node_report(tmp_path, "b", rank(2), rank(3))
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.json["verdict"], outcome.code) == ("fail", 1)
    assert [(each["id"], each["host"], each["rank"]) for each in outcome.json["runs"][0]["findings"]] == [
        ("run.finite", "a", 1)
    ]
