"""Load from the command line: real ranks, and their fate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import psutil
import pytest

from gpudoctor.api.load import measure
from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.model import Report
from gpudoctor.report.report_schema import report_schema
from tests.cli.conftest import Gpudoctor, Outcome, assert_refused, read_terminal
from tests.imported_torch import ForkedPython, own_children
from tests.needs import needs
from tests.probes.conftest import open_files

pytestmark = [needs("torch"), pytest.mark.usefixtures("forked_starters")]


@pytest.fixture(scope="module")
def two_at_once(
    tmp_path_factory: pytest.TempPathFactory, forked_python: Callable[..., ForkedPython]
) -> list[tuple[Outcome, Path]]:
    """Two healthy checks that share the machine, one with a train: how each ended, and its report with all facts."""
    # the balance of CPU ranks is the business of the machine the tests run on
    saved = [tmp_path_factory.mktemp("at-once") / "r.json" for _ in range(2)]
    check = [sys.executable, "-m", "gpudoctor", "check", "collective", "env.torch"]
    options = ["--node", "hgx-h100-8", "--backend", "gloo", "--ranks", "2", "--json", "--include-facts", "-o"]
    commands = [[*check, "train.sync", *options, str(saved[0])], [*check, *options, str(saved[1])]]
    alone = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    alone["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    pipe = subprocess.PIPE
    runs = [forked_python(each, probes=["train"], env=alone, stdout=pipe, stderr=pipe) for each in commands]
    try:
        said = [run.communicate(timeout=180) for run in runs]
    finally:
        for run in runs:
            run.kill()
    return [(Outcome(run.returncode, *words), path) for run, words, path in zip(runs, said, saved, strict=True)]


@pytest.mark.wide
def test_collectives_and_a_train_on_cpu_ranks_are_measured_and_called_cpu_ranks(
    gpudoctor: Gpudoctor, two_at_once: list[tuple[Outcome, Path]]
) -> None:
    outcome, saved = two_at_once[0]
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
    options = "--node hgx-h100-8 --backend gloo --inject wrong-sum=1 --color never"
    outcome = gpudoctor("check", "collective", *options.split())
    assert outcome.code == 1
    assert "INJECTED wrong-sum=1" in outcome.out
    assert "FAIL     collective.correct   rank 1" in outcome.out


@pytest.fixture
def injected(gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Measurements]:
    """Check with a fault made on purpose: it fails one check on one rank, and leaves nothing. What was measured."""
    private_folders = tmp_path / "tmp"
    private_folders.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(private_folders))

    def check(case: str, ranks: int, failing: str, rank: int, *others: str) -> Measurements:
        files_before = open_files()
        outcome = gpudoctor(
            *("check", failing, *others, "--node", "hgx-h100-8", "--backend", "gloo"),
            *("--ranks", str(ranks), "--inject", case, "--json"),
        )
        assert outcome.code == 1
        report = msgspec.json.decode(outcome.out, type=Report)  # which takes no NaN
        failed = {(row.id, f.subject.rank) for row in report.checks for f in row.findings if f.status is Status.FAIL}
        assert failed == {(failing, rank)}
        assert report.measurements.injected == (case,)
        assert own_children(recursive=True) == []
        assert open_files() <= files_before, "pipes left open"
        assert list(private_folders.iterdir()) == []
        return report.measurements

    return check


@pytest.mark.wide
@pytest.mark.parametrize(
    ("case", "ranks", "check", "rank"),
    [("wrong-sum=3", 4, "collective.correct", 3), ("desync=1", 3, "train.sync", 1)],
)
def test_every_case_that_is_injected_fails_its_check_on_its_rank(
    case: str, ranks: int, check: str, rank: int, injected: Callable[..., Measurements]
) -> None:
    assert injected(case, ranks, check, rank).problems == ()


def test_a_rank_that_hangs_in_a_collective_is_named_with_those_who_wait_for_it(
    injected: Callable[..., Measurements], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(measure.CPU_PROBE_DEADLINE_S, "standard", 5.0)
    found = injected("hang-rank=2:all_reduce", 4, "collective.correct", 2, "train.sync")
    [problem] = found.problems
    assert (problem.probe, problem.kind, problem.rank) == ("collective", "timeout", 2)
    assert problem.phase == "all_reduce of 16 MiB"
    assert problem.waiting == (0, 1, 3)
    assert problem.text == ("rank 2 did not leave all_reduce of 16 MiB within 5 s; ranks 0, 1, 3 wait for it")
    assert [c.size_bytes for c in found.collectives] == [4012, 1 << 20], "what was delivered before is kept"
    assert all(c.busbw_gb_s == pytest.approx(c.algbw_gb_s * 1.5) for c in found.collectives)
    assert found.training is None
    assert found.not_run["train"] == Missing(f"not reached: {problem.text}", "failed")


def test_a_rank_that_dies_is_one_crash_and_the_others_are_only_held_up(injected: Callable[..., Measurements]) -> None:
    found = injected("die-rank=1:train", 2, "train.sync", 1, "collective.correct")
    [problem] = found.problems
    assert (problem.probe, problem.kind, problem.rank, problem.waiting) == ("train", "crash", 1, (0,))
    assert "SIGSEGV" in problem.text
    assert len(found.collectives) == 3, "the probe before is not lost"
    assert found.not_run["train"].kind == "failed"


def test_memory_that_runs_out_is_told_as_such_and_the_others_are_only_held_up(
    injected: Callable[..., Measurements],
) -> None:
    [problem] = injected("oom=1", 2, "train.sync", 1).problems
    assert (problem.probe, problem.kind, problem.rank, problem.waiting) == ("train", "out-of-memory", 1, (0,))
    assert "rank 1 failed in train step" in problem.text
    assert "the host has no memory left" in problem.text
    assert any("can't allocate memory" in line for line in problem.output)


@pytest.mark.wide
def test_a_nan_is_traced_to_the_rank_where_it_began(injected: Callable[..., Measurements]) -> None:
    found = injected("nan=0:train", 2, "train.sync", 0)
    training = found.training
    assert training is not None
    assert found.not_run["collective"] == Missing("not asked for")
    assert "train" not in found.not_run
    began, followed = (rank.nonfinite_step for rank in training.ranks)
    assert began is not None
    assert followed == began + 1
    assert all(rank.loss_first is not None and rank.loss_last is None for rank in training.ranks)


@pytest.mark.wide
def test_two_checks_at_once_on_one_machine_are_both_right(two_at_once: list[tuple[Outcome, Path]]) -> None:
    for outcome, saved in two_at_once:
        assert outcome.code == 0
        document = json.loads(saved.read_text())
        status = {check["id"]: check["status"] for check in document["checks"]}
        assert status["collective.correct"] == "pass"
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
    assert_refused(outcome, "level quick")


@pytest.mark.wide
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_ranks_hang_ends_them_and_keeps_what_they_had_measured(
    number: signal.Signals, code: int, tmp_path: Path, forked_python: Callable[..., ForkedPython]
) -> None:
    reading, writing = os.openpty()  # progress is shown on a terminal only, and tells when the rank hangs
    with (tmp_path / "out").open("wb") as out:
        process = forked_python(
            [sys.executable, "-m", "gpudoctor", "check", "collective", "--json", "--node", "hgx-h100-8",
             "--backend", "gloo", "--ranks", "2", "--inject", "hang-rank=1:all_reduce"],
            stdout=out, stderr=writing,
        )  # fmt: skip
    os.close(writing)
    read_terminal(reading, lambda seen: b"16 MiB" in seen)
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
    assert "for want of memory" not in json.dumps(document["checks"])  # who ended it knows why
