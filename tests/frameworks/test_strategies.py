"""DeepSpeed's and TensorFlow's strategies on real CPU ranks, started as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.probes.frameworks.run import framework_views

BOTH = ("strategy.deepspeed", "strategy.tensorflow")
STAGES = ["zero-1", "zero-2", "zero-3"]
LIMIT_S = 900.0  # a minute on idle cores


def check(folder: Path, *arguments: str, expected_code: int) -> dict[str, Any]:
    """The report of `gpudoctor check`, after which nothing may be left of it: no process, no file."""
    mark = uuid.uuid4().hex
    environ = os.environ | {"TMPDIR": str(folder), "HOME": str(folder), "GPUDOCTOR_TEST_MARK": mark}
    asked = ("--node", "hgx-h100-8", "--backend", "gloo", "--level", "full", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "check", *BOTH, *asked, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == expected_code, done.stdout[-3000:] + done.stderr[-3000:]
    assert with_mark(mark) == []
    assert list(folder.iterdir()) == []
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def with_mark(mark: str) -> list[str]:
    """The command lines of processes that have the mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended meanwhile
    return found


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"]}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # four here, and two when one diverges: each start of the libraries takes seconds
    return check(tmp_path_factory.mktemp("healthy"), "--ranks", "4", expected_code=0)


def test_both_libraries_train_on_four_ranks_what_one_trains(healthy: dict[str, Any]) -> None:
    assert statuses(healthy) == dict.fromkeys(BOTH, "pass")


def test_the_three_stages_of_zero_divide_what_they_are_for(healthy: dict[str, Any]) -> None:
    tried = healthy["measurements"]["deepspeed"]["strategies"]
    alone = tried["reference"]["memory"]
    held = {run["variant"]: [rank["memory"] for rank in run["ranks"]] for run in tried["runs"]}
    assert list(held) == STAGES
    for stage, ranks in held.items():
        assert len(ranks) == 4
        for memory in ranks:
            assert memory["optimizer_bytes"] == pytest.approx(alone["optimizer_bytes"] / 4, rel=0.02)
            share = 0.25 if stage == "zero-3" else 1.0
            assert memory["parameters_bytes"] == pytest.approx(alone["parameters_bytes"] * share, rel=0.02)


def test_every_replica_of_tensorflow_ends_with_the_weights_of_one_device(healthy: dict[str, Any]) -> None:
    tried = healthy["measurements"]["tensorflow"]["strategies"]
    assert [(run["variant"], len(run["ranks"])) for run in tried["runs"]] == [("mirrored", 4), ("multi-worker", 4)]
    for run in tried["runs"]:
        for rank in run["ranks"]:
            assert rank["compared"] == tried["reference"]["parameters"] > 0
            assert rank["weights_error"] < 1e-5
    # they learnt something: weights that never changed would be equal too
    assert tried["reference"]["losses"][-1] < tried["reference"]["losses"][0]


def test_no_strategy_of_torch_itself_is_run_for_them(healthy: dict[str, Any]) -> None:
    assert healthy["measurements"].get("strategies") is None


def test_the_builds_for_the_cpu_that_are_installed_here_say_so_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    measured = framework_views(LIMIT_S)
    assert measured.not_run == {}
    assert {view.framework: view.gpu_build for view in measured.frameworks} == {"torch": False, "tensorflow": False}
    assert list(tmp_path.iterdir()) == []


def test_the_one_of_two_ranks_whose_weights_drift_is_caught_in_every_strategy(tmp_path: Path) -> None:
    report = check(tmp_path, "--ranks", "2", "--inject", "desync=1", expected_code=1)
    found = [finding for each in report["checks"] for finding in each["findings"] if finding["status"] == "fail"]
    told = " ".join(finding["found"]["text"] for finding in found)
    assert [name for name in (*STAGES, "mirrored", "multi-worker") if f"{name}:" not in told] == []
    assert {finding["subject"].get("rank") for finding in found if "zero-3" not in finding["found"]["text"]} == {1}
