"""Load from the command line: real ranks, and what becomes of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import psutil
import pytest

from gpudoctor.load import measure
from gpudoctor.report.model import report_schema
from tests.cli.conftest import Gpudoctor

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_collectives_and_a_train_on_cpu_ranks_are_measured_and_called_cpu_ranks(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    saved = tmp_path / "r.json"
    # the balance of CPU ranks is the business of the machine the tests run on
    outcome = gpudoctor(
        "check", "collective", "train.sync", "env.torch", "--node", "hgx-h100-8", "--backend", "gloo", "--ranks", "2",
        "--json", "--include-facts", "-o", str(saved),
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    document = json.loads(saved.read_text())
    jsonschema.validate(document, json.loads(report_schema()))
    status = {check["id"]: check["status"] for check in document["checks"]}
    assert status["collective.correct"] == status["train.sync"] == "pass"
    assert status["collective.bandwidth"] == "skip"
    [bandwidth] = [check for check in document["checks"] if check["id"] == "collective.bandwidth"]
    assert "CPU ranks" in bandwidth["findings"][0]["reason"]
    figures = document["measurements"]
    assert figures["launch"]["world_size"] == 2
    assert all(row["busbw_gb_s"] > 0 for row in figures["collectives"])
    assert figures["training"]["device"] == "cpu"
    again = gpudoctor("check", "collective", "train.sync", "--node", str(saved))
    assert again.code == 0
    assert "SIMULATED" in again.out
    assert "Measured on 2 CPU ranks (gloo" in again.out


def test_an_injected_fault_is_named_and_the_report_says_injected(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor(
        "check",
        "collective",
        "--node",
        "hgx-h100-8",
        "--backend",
        "gloo",
        "--inject",
        "wrong-sum=1",
        "--color",
        "never",
    )
    assert outcome.code == 1
    assert "INJECTED wrong-sum=1" in outcome.out
    assert "FAIL     collective.correct   rank 1" in outcome.out


@pytest.mark.parametrize(
    ("case", "ranks", "check", "rank"),
    [
        ("hang-rank=2:all_reduce", 4, "collective.correct", 2),
        ("wrong-sum=3", 4, "collective.correct", 3),
        ("die-rank=1:train", 2, "train.sync", 1),
        ("nan=0:train", 2, "train.sync", 0),
        ("desync=1", 3, "train.sync", 1),
        ("oom=1", 2, "train.sync", 1),
    ],
)
def test_every_case_that_is_injected_fails_its_check_on_its_rank(
    case: str, ranks: int, check: str, rank: int, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(measure.CPU_PROBE_DEADLINE_S, "standard", 20.0)  # for the one that hangs
    outcome = gpudoctor(
        "check", check, "--node", "hgx-h100-8", "--backend", "gloo", "--ranks", str(ranks), "--inject", case, "--json"
    )
    assert outcome.code == 1
    failed = [finding for row in outcome.json["checks"] for finding in row["findings"] if finding["status"] == "fail"]
    assert {finding["subject"]["rank"] for finding in failed} == {rank}
    assert outcome.json["measurements"]["injected"] == [case]
    assert psutil.Process().children(recursive=True) == []


def test_two_checks_at_once_on_one_machine_are_both_right() -> None:
    # not train.balance: with four ranks on two cores it may be unknown
    command = [sys.executable, "-m", "gpudoctor", "check", "collective", "train.sync", "--json", "--node", "hgx-h100-8",
               "--backend", "gloo"]  # fmt: skip
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    documents = [json.loads(run.communicate(timeout=180)[0]) for run in runs]
    for run, document in zip(runs, documents, strict=True):
        assert run.returncode == 0
        status = {check["id"]: check["status"] for check in document["checks"]}
        assert status["collective.correct"] == status["train.sync"] == "pass"
        assert "problems" not in document["measurements"]


def test_a_node_that_is_not_here_is_not_put_under_load_by_itself(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "train", "collective", "--node", "hgx-h100-8", "--json")
    assert outcome.code == 3
    assert {check["status"] for check in outcome.json["checks"]} == {"skip"}
    reasons = {check["id"]: check["findings"][0]["reason"] for check in outcome.json["checks"]}
    assert reasons.pop("collective.pairs") == reasons.pop("train.bucket") == "runs at level full; asked for standard"
    assert len(reasons) == 7
    assert all("--backend gloo" in reason for reason in reasons.values())


def test_an_injection_without_a_probe_is_refused(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--node", "hgx-h100-8", "--level", "quick", "--inject", "wrong-sum=1")
    assert outcome.code == 2
    assert "level quick" in outcome.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_ranks_hang_ends_them_and_keeps_what_they_had_measured(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    reading, writing = os.openpty()  # progress is shown on a terminal only, and tells when the rank hangs
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpudoctor", "check", "collective", "--json", "--node", "hgx-h100-8",
             "--backend", "gloo", "--ranks", "2", "--inject", "hang-rank=1:all_reduce"],
            stdout=out, stderr=writing,
        )  # fmt: skip
    os.close(writing)
    seen = b""
    while b"16 MiB" not in seen:
        seen += os.read(reading, 4096)
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert len(ranks) >= 2
    process.send_signal(number)
    assert process.wait(30) == code
    os.close(reading)
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert alive == []
    document = json.loads((tmp_path / "out").read_text())
    assert document["run"]["interrupted"] == number.name
    assert document["exit_code"] == code
    assert document["measurements"]["collectives"]
    assert document["verdict"] == "unknown"
