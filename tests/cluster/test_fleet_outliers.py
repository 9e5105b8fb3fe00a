"""What is worse than the fleet: found by both rules, one-sided, and no healthy node."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.cluster.outliers import MIN_NODES, spread_of
from tests.cli.conftest import Gpudoctor
from tests.cluster.fleet_reports import Report, fleet, report, scale, write


def found_in(gpudoctor: Gpudoctor, folder: Path) -> Any:
    return gpudoctor("cluster", "report", "--json", str(folder)).json


def nodes(found: Any) -> set[tuple[str, str]]:
    return {(outlier["node"], outlier["status"]) for outlier in found["outliers"]}


def only(node: int, spoil: Callable[[Report], None]) -> Callable[[int, Report], None]:
    """The change of a fleet in which one node's report is spoilt."""
    return lambda number, made: spoil(made) if number == node else None


def slower(factor: float) -> Callable[[Report], None]:
    return lambda made: scale(made, "collectives", "busbw_gb_s", factor)


def longer_step(factor: float) -> Callable[[Report], None]:
    return lambda made: made["measurements"]["training"].update(
        steady_step_ms=made["measurements"]["training"]["steady_step_ms"] * factor
    )


def test_a_node_that_is_slower_in_several_figures_fails(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    found = found_in(gpudoctor, fleet(tmp_path, 12, only(5, slower(0.8))))
    assert nodes(found) == {("node5", "fail")}
    [row] = [row for row in found["nodes"] if row["verdict"] != "pass"]
    assert row["name"] == "node5"
    assert row["faults"][0]["check"] == "fleet.outlier"
    assert "20 % worse" in row["reason"]
    assert found["exit_code"] == 1


def test_a_single_slow_gpu_is_named(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def slow_gpu(made: Report) -> None:
        for gemm in made["measurements"]["compute"][6]["gemms"]:
            gemm["tflops"] *= 0.7

    found = found_in(gpudoctor, fleet(tmp_path, 12, only(8, slow_gpu)))
    assert {(outlier["node"], tuple(outlier["gpus"])) for outlier in found["outliers"]} == {("node8", (6,))}


def test_one_bad_figure_alone_warns_and_fails_when_an_older_report_says_the_same(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    def slow(made: Report) -> None:
        made["measurements"]["collectives"][2]["busbw_gb_s"] *= 0.75

    found = found_in(gpudoctor, fleet(tmp_path, 12, only(3, slow)))
    assert nodes(found) == {("node3", "warn")}
    assert found["exit_code"] == 0
    older = report("node3", at="2025-10-01T00:00:00+00:00", figures=True)
    slow(older)
    write(tmp_path / "older.json", older)
    assert nodes(found_in(gpudoctor, tmp_path)) == {("node3", "fail")}


def test_what_is_better_than_the_fleet_is_nobodys_fault(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def better(made: Report) -> None:
        slower(1.4)(made)
        longer_step(0.6)(made)

    found = found_in(gpudoctor, fleet(tmp_path, 12, only(2, better)))
    assert (found["outliers"], found["verdict"]) == ([], "pass")


def test_a_longer_time_is_worse(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    [outlier] = found_in(gpudoctor, fleet(tmp_path, 12, only(2, longer_step(1.3))))["outliers"]
    assert (outlier["node"], outlier["unit"]) == ("node2", "ms")
    assert 0.75 < outlier["similarity"] < 0.79


def test_a_small_fleet_is_not_compared_and_that_is_said(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    folder = fleet(tmp_path, MIN_NODES - 1, only(1, slower(0.5)))
    assert found_in(gpudoctor, folder)["outliers"] == []
    assert "figures are not compared: 9 of at least 10 nodes" in gpudoctor("cluster", "report", str(folder)).out


def test_two_kinds_of_nodes_are_said_and_nobody_is_named(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    found = found_in(gpudoctor, fleet(tmp_path, 18, lambda number, made: slower(0.76 if number <= 6 else 1.0)(made)))
    assert (found["outliers"], found["verdict"]) == ([], "pass")
    assert any(
        "6 of 18 nodes are far worse" in note and "two kinds" in note and "node[1-6]" in note for note in found["notes"]
    )


def test_cpu_ranks_and_injected_faults_are_never_compared(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def gloo(number: int, made: Report) -> None:
        made["measurements"]["launch"]["backend"] = "gloo"
        made["measurements"]["training"]["device"] = "cpu"

    found = found_in(gpudoctor, fleet(tmp_path / "gloo", 12, gloo))
    assert found["figures"] == []

    def injected(made: Report) -> None:
        made["run"]["injected"] = ["slow-rank"]
        slower(0.5)(made)

    found = found_in(gpudoctor, fleet(tmp_path / "injected", 12, only(4, injected)))
    assert found["outliers"] == []
    assert any("INJECTED" in note and "node4" in note for note in found["notes"])


def test_numbers_that_no_machine_measures_are_left_out(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    fleet(tmp_path, 12)
    path = tmp_path / "node3.json"
    value = str(report("node3", figures=True)["measurements"]["compute"][0]["triad_gb_s"])
    path.write_text(path.read_text().replace(value, "1e300", 1))
    found = found_in(gpudoctor, tmp_path)
    triad = next(row for row in found["figures"] if row["figure"] == "device memory, triad")
    assert (triad["samples"], found["outliers"]) == (95, [])


@pytest.mark.parametrize("count", [10, 24, 200])
@pytest.mark.parametrize("spread", [0.002, 0.01, 0.03])
def test_noise_names_nobody_and_a_quarter_less_is_named(count: int, spread: float) -> None:
    """300 figures each: with the wanted chance of 1 % for all of them, one named would be bad luck of a lifetime."""
    noise = random.Random(count * 1000 + int(spread * 1000))
    judged, named, hit = 300 * count, 0, 0
    for _ in range(300):
        values = [400 * (1 + noise.gauss(0, spread)) for _ in range(count)]
        named += len(spread_of(values, range(count), False, judged).bad)
        values[3] = 300.0
        hit += [bad.node for bad in spread_of(values, range(count), False, judged).bad] == [3]
    assert named == 0
    # few nodes and much noise allow no conclusion; that is the price of no false alarm
    assert hit == 300 or (count < 200 and spread > 0.002)
    assert hit > 250 or spread == 0.03 or count == 10
