"""`cluster report` reads the diagnoses of failed jobs: which node do jobs fail on?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Gpudoctor
from tests.cluster.fleet_reports import report, write


def diagnosis(
    folder: Path, number: int, what: str, host: str | None, confidence: str = "certain", days_old: float = 0.0
) -> None:
    cause = {"what": what, "rank": 1, "host": host, "gpu": None, "confidence": confidence, "text": "", "evidence": []}
    path = folder / f"job-{number}.json"
    path.write_text(json.dumps({"schema": "gpudoctor.diagnosis/1", "verdict": "cause", "cause": cause}, indent=2))
    if days_old:
        then = path.stat().st_mtime - days_old * 86400
        os.utime(path, (then, then))


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        write(tmp_path / f"{name}.json", report(name))
    return tmp_path


def of_node(outcome: Any, name: str) -> dict[str, Any]:
    return next(row for row in outcome.json["nodes"] if row["name"] == name)


def test_the_node_that_killed_three_jobs_fails_with_what_killed_them(nodes: Path, gpudoctor: Gpudoctor) -> None:
    for number, what in enumerate(("gpu_lost", "node_lost", "gpu_lost")):
        diagnosis(nodes, number, what, "gpu-02")
    outcome = gpudoctor("cluster", "report", "--json", str(nodes))
    assert outcome.code == 1
    row = of_node(outcome, "gpu-02")
    assert (row["verdict"], row["faults"][-1]["check"]) == ("fail", "fleet.jobs")
    assert "3 jobs" in row["reason"]
    assert "gpu_lost (2), node_lost" in row["reason"]
    assert outcome.json["jobs"][0]["causes"] == {"gpu_lost": 2, "node_lost": 1}
    assert of_node(outcome, "gpu-01")["verdict"] == "pass"
    assert "3 jobs of the last week died by it" in gpudoctor("cluster", "report", str(nodes)).out


@pytest.mark.parametrize(
    ("what", "confidence", "days_old", "verdict"),
    [
        ("user_exception", "certain", 0.0, "pass"),  # a fault of the program itself
        ("gpu_lost", "possible", 0.0, "pass"),  # cause unknown
        ("gpu_lost", "certain", 8.0, "pass"),  # long ago
        ("host_oom", "certain", 0.0, "warn"),  # may be the program's: it ran three times here
        ("gpu_lost", "likely", 0.0, "fail"),
        ("cuda_driver_too_old", "certain", 0.0, "fail"),
        ("tpu_fault", "certain", 0.0, "fail"),
        ("kernel_hang", "likely", 0.0, "warn"),  # or the storage that hangs
        ("ib_device_refused", "likely", 0.0, "warn"),  # or the container's rights
    ],
)
def test_a_node_is_blamed_only_for_what_lies_in_a_machine(
    nodes: Path, gpudoctor: Gpudoctor, what: str, confidence: str, days_old: float, verdict: str
) -> None:
    for number in range(3):
        diagnosis(nodes, number, what, "gpu-02", confidence, days_old)
    outcome = gpudoctor("cluster", "report", "--json", str(nodes))
    assert of_node(outcome, "gpu-02")["verdict"] == verdict
    assert any("3 diagnoses of failed jobs read" in note for note in outcome.json["notes"])


def test_what_all_nodes_share_convicts_none_of_them(nodes: Path, gpudoctor: Gpudoctor) -> None:
    for number in range(9):
        diagnosis(nodes, number, "ib_completion_error", f"gpu-0{1 + number % 3}")
    outcome = gpudoctor("cluster", "report", "--json", str(nodes))
    assert {row["verdict"] for row in outcome.json["nodes"]} == {"warn"}
    assert outcome.code == 0


def test_two_jobs_warn_and_a_node_without_a_report_is_not_known(nodes: Path, gpudoctor: Gpudoctor) -> None:
    for number, host in enumerate(("gpu-01", "gpu-01", "gpu-09", "gpu-09")):
        diagnosis(nodes, number, "gpu_xid", host)
    outcome = gpudoctor("cluster", "report", "--json", str(nodes))
    assert of_node(outcome, "gpu-01")["verdict"] == "warn"
    missing = of_node(outcome, "gpu-09")
    assert (missing["verdict"], missing["reports"]) == ("unknown", 0)
    assert outcome.code == 3


def test_diagnoses_alone_are_read_and_a_damaged_one_is_no_jobs_cause(tmp_path: Path, gpudoctor: Gpudoctor) -> None:
    diagnosis(tmp_path, 1, "gpu_lost", "gpu-01")
    (tmp_path / "other.json").write_text('{"schema": "gpudoctor.diagnosis/1", "verdict": 7}')
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert outcome.code == 3
    assert [row["jobs"] for row in outcome.json["jobs"]] == [1]
    assert [Path(each["place"]).name for each in outcome.json["reading"]["foreign"]] == ["other.json"]


def test_a_node_with_and_without_its_domain_is_one(nodes: Path, gpudoctor: Gpudoctor) -> None:
    for number, host in enumerate(("gpu-02", "gpu-02.cluster.example", "gpu-02.cluster.example")):
        diagnosis(nodes, number, "gpu_lost", host)
    outcome = gpudoctor("cluster", "report", "--json", str(nodes))
    assert [row["name"] for row in outcome.json["nodes"]] == ["gpu-01", "gpu-02", "gpu-03"]
    assert "3 jobs" in of_node(outcome, "gpu-02")["reason"]
    # of two domains nobody knows which one is meant
    diagnosis(nodes, 3, "gpu_lost", "gpu-02.other.example")
    apart = gpudoctor("cluster", "report", "--json", str(nodes)).json["jobs"]
    assert {row["node"] for row in apart} == {"gpu-02", "gpu-02.cluster.example", "gpu-02.other.example"}


def test_a_report_hides_no_failure_of_a_node_that_may_be_another(tmp_path: Path, gpudoctor: Gpudoctor) -> None:
    bad = report("n1.example", like="gpu-11")
    for gpu in bad["gpus"]:
        gpu["uuid"] = None  # its driver is not loaded
    write(tmp_path / "bad.json", bad)
    write(tmp_path / "good.json", report("n1", at="2025-11-03T22:00:00+00:00"))
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.code, [row["name"] for row in outcome.json["nodes"]]) == (1, ["n1", "n1.example"])
