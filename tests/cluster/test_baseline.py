"""`baseline save` and `baseline compare`: one node over time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Gpudoctor, Outcome
from tests.cluster.fleet_reports import Report, report, scale, write


def run_of(day: int, factor: float = 1.0) -> Report:
    """One day's run of node1, its collectives times a factor."""
    made = report("node1", at=f"2025-11-{day:02d}T00:00:00+00:00", figures=True)
    scale(made, "collectives", "busbw_gb_s", factor)
    return made


@pytest.fixture
def saved(gpudoctor: Gpudoctor, tmp_path: Path) -> Path:
    """A baseline of three healthy runs that lie 2 % apart."""
    path = tmp_path / "baseline.json"
    for day, factor in ((1, 1.0), (2, 1.01), (3, 0.99)):
        source = write(tmp_path / f"{day}.json", run_of(day, factor))
        assert gpudoctor("baseline", "save", str(source), "-o", str(path)).code == 0
    return path


def compared(gpudoctor: Gpudoctor, baseline: Path, made: Report, *options: str) -> Outcome:
    return gpudoctor("baseline", "compare", str(baseline), str(write(baseline.parent / "now.json", made)), *options)


def test_what_is_as_before_passes(gpudoctor: Gpudoctor, saved: Path) -> None:
    outcome = compared(gpudoctor, saved, run_of(4, 0.97), "--json")
    assert (outcome.code, outcome.json["verdict"], outcome.json["changes"]) == (0, "pass", [])
    assert outcome.json["compared"] > 100


@pytest.mark.parametrize(("factor", "code", "status"), [(0.93, 0, "warn"), (0.87, 1, "fail"), (1.2, 0, "said")])
def test_a_loss_of_5_percent_warns_and_of_10_fails_and_a_gain_is_said(
    gpudoctor: Gpudoctor, saved: Path, factor: float, code: int, status: str
) -> None:
    outcome = compared(gpudoctor, saved, run_of(4, factor), "--json")
    assert outcome.code == outcome.json["exit_code"] == code
    assert {change["status"] for change in outcome.json["changes"]} == {status}
    assert all(change["ratio"] == pytest.approx(factor, rel=1e-3) for change in outcome.json["changes"])


def test_a_step_that_takes_longer_is_worse(gpudoctor: Gpudoctor, saved: Path) -> None:
    made = run_of(4)
    made["measurements"]["training"]["steady_step_ms"] *= 1.2
    [change] = compared(gpudoctor, saved, made, "--json").json["changes"]
    assert change["status"] == "fail"
    assert "train step" in change["text"]


def test_fewer_than_three_runs_judge_nothing(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    for day in (1, 2):
        said = gpudoctor("baseline", "save", str(write(tmp_path / "run.json", run_of(day))), "-o", str(path)).out
    assert "1 more until a loss of 10 % fails" in said
    outcome = compared(gpudoctor, path, run_of(4, 0.5))
    assert outcome.code == 0
    assert "2 of 3 runs that a verdict needs" in " ".join(outcome.out.split())


def test_no_worse_than_one_of_the_saved_runs_is_no_change_for_the_worse(gpudoctor: Gpudoctor, saved: Path) -> None:
    slow = write(saved.parent / "slow.json", run_of(4, 0.85))
    assert gpudoctor("baseline", "save", str(slow), "-o", str(saved)).code == 0
    outcome = compared(gpudoctor, saved, run_of(5, 0.86), "--json")
    assert outcome.code == 0
    assert {change["status"] for change in outcome.json["changes"]} == {"said"}


def test_configuration_and_replaced_gpus_are_said_and_a_lost_one_warns(gpudoctor: Gpudoctor, saved: Path) -> None:
    made = run_of(4)
    made["host"]["driver"] = "999.1"
    made["gpus"][2]["uuid"] = "GPU-new"
    del made["gpus"][7]
    changes = compared(gpudoctor, saved, made, "--json").json["changes"]
    texts = {change["text"].partition(":")[0]: change["status"] for change in changes}
    assert texts["driver"] == "said"
    assert [change["status"] for change in changes if "another GPU" in change["text"]] == ["said"]
    assert [change["status"] for change in changes if "no GPU at" in change["text"]] == ["warn"]


def test_figures_of_other_gpus_are_no_pass_however_slow_these_are(gpudoctor: Gpudoctor, saved: Path) -> None:
    later = run_of(4, 0.3)
    for gpu in later["gpus"]:
        gpu["uuid"] = gpu["uuid"].replace("GPU-", "GPU-other-")
    found = compared(gpudoctor, saved, later, "--json")
    assert (found.code, found.json["verdict"], found.json["compared"]) == (3, "unknown", 0)
    assert any("of other GPUs: none was compared" in note for note in found.json["notes"])


def test_a_report_that_fails_itself_fails_here_too(gpudoctor: Gpudoctor, saved: Path) -> None:
    outcome = compared(gpudoctor, saved, report("node1", like="gpu-11"))
    assert outcome.code == 1
    assert "pcie.link-width" in outcome.out


def test_nothing_measured_now_is_unknown_and_not_a_pass(gpudoctor: Gpudoctor, saved: Path) -> None:
    outcome = compared(gpudoctor, saved, report("node1", at="2025-11-09T00:00:00+00:00"), "--json")
    assert (outcome.code, outcome.json["verdict"]) == (3, "unknown")
    assert outcome.json["not_measured"] > 100


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (report("node1", like="gpu-11"), "a baseline holds healthy runs, and this one is FAIL pcie.link-width"),
        (report("node2"), "a report of node2, and the baseline is of node1"),
        (run_of(3), "this run is in the baseline already"),
        (report("node1", figures=True) | {"simulated": True}, "simulated and real runs do not compare"),
    ],
)
def test_what_does_not_belong_into_a_baseline_is_refused_and_the_file_stays(
    gpudoctor: Gpudoctor, saved: Path, made: Report, words: str
) -> None:
    before = saved.read_bytes()
    outcome = gpudoctor("baseline", "save", str(write(saved.parent / "now.json", made)), "-o", str(saved))
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert saved.read_bytes() == before


def test_a_simulated_source_is_checked_saved_and_compared(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    outcome = gpudoctor("baseline", "save", "--node", "hgx-h100-8", "-o", str(path))
    assert outcome.code == 0
    assert "SIMULATED run 1 of hgx-h100-8" in outcome.out
    assert gpudoctor("baseline", "compare", str(path), "--node", "hgx-h100-8").code == 0
    outcome = gpudoctor("baseline", "compare", str(path), "--node", "hgx-h100-8", "--fault", "pcie-width-x8@3")
    assert outcome.code == 1
    assert outcome.out.startswith("SIMULATED")
    assert "pcie.link-width" in outcome.out


def test_the_file_is_named_after_the_host_where_none_is_given(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gpudoctor("baseline", "save", str(write(tmp_path / "a.json", run_of(1)))).code == 0
    assert json.loads((tmp_path / "gpudoctor-baseline-node1.json").read_text())["host"] == "node1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["save"], "one of them; neither is given"),
        (["save", "a.json", "--node", "hgx-h100-8"], "one of them; both are given"),
        (["save", "none.json"], "none.json: no such file"),
        (["compare", "none.json", "a.json"], "none.json: no such file"),
        (["compare", "other.json", "a.json"], "other.json: no baseline of gpudoctor"),
        (["compare", "cut.json", "a.json"], "cut.json: no baseline of gpudoctor"),
        (["save", "two.jsonl"], "it must hold one report, and there are 2 in it"),
        (["save", "a.json", "-o", "link.json"], "link.json: cannot be read: File name too long"),
        (["compare", "link.json", "a.json"], "link.json: cannot be read: File name too long"),
        (["save", "loop.json"], "loop.json: cannot be read: Too many levels of symbolic links"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.json", run_of(1))
    (tmp_path / "other.json").write_text('{"schema": "something"}')
    (tmp_path / "cut.json").write_text('{"schema": "gpudoctor.baseline/1", "ho')
    (tmp_path / "two.jsonl").write_text("{}\n{}\n")
    (tmp_path / "link.json").symlink_to("x" * 300)
    (tmp_path / "loop.json").symlink_to("loop.json")
    outcome = gpudoctor("baseline", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
