"""Host lists for schedulers, from `cluster report`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpudoctor.text.hostlist import expand_hostlist, hostlist
from tests.cli.conftest import Gpudoctor
from tests.cluster.fleet_reports import Report, fleet, report, write
from tests.needs import needs
from tests.subprocesses import completed


def test_good_and_bad_hosts_stand_one_a_line_and_unknown_ones_in_neither(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def change(number: int, made: Report) -> None:
        if number == 2:
            made["verdict"], made["error"] = "unknown", "no NVML"

    folder = fleet(tmp_path / "set", 3, change, figures=False)
    write(folder / "bad.json", report("node4", like="gpu-11"))
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    bad.write_text("old\n")
    outcome = gpudoctor("cluster", "report", str(folder), "--good", str(good), "--bad", str(bad))
    assert good.read_text() == "node1\nnode3\n"
    assert bad.read_text() == "node4\n"
    assert "in neither list: 1 node (unknown, or without a host's name)\n" in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "good.txt", "set"]


def test_a_name_that_could_be_more_than_a_host_gets_into_no_list(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    for number, name in enumerate(("a\nnode1", "node[1-9]", "-x", "$(reboot)", "node1,node2", "node7")):
        write(tmp_path / f"{number}.json", report(name, like="gpu-11"))
    bad = tmp_path / "bad.txt"
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path), "--bad", str(bad))
    assert bad.read_text() == "node7\n"
    assert any("5 nodes with a name that no host list may hold" in note for note in outcome.json["notes"])
    outcome = gpudoctor("cluster", "report", str(tmp_path), "--exclude-expr")
    assert (outcome.code, outcome.out) == (3, "node7\n")
    assert "5 nodes have no name that a list may hold" in outcome.err


def test_exclude_expr_prints_a_slurm_hostlist_and_nothing_else(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    fleet(tmp_path, 1, figures=False)
    for number in (2, 3, 4, 7, 11):
        write(tmp_path / f"{number}.json", report(f"gpu-{number:03d}.cluster.example", like="gpu-11"))
    outcome = gpudoctor("cluster", "report", str(tmp_path), "--exclude-expr")
    assert (outcome.code, outcome.out) == (0, "gpu-[002-004,007,011]\n")
    outcome = gpudoctor("cluster", "report", str(tmp_path / "node1.json"), "--exclude-expr")
    assert (outcome.code, outcome.out) == (0, "\n")


def test_names_that_would_become_one_when_shortened_stay_whole(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    write(tmp_path / "a.json", report("gpu1.east", like="gpu-11"))
    write(tmp_path / "b.json", report("gpu1.west"))
    # Slurm knows the others by their short names, and takes no list in which one name is unknown to it
    write(tmp_path / "c.json", report("gpu2.east", like="gpu-11"))
    assert gpudoctor("cluster", "report", str(tmp_path), "--exclude-expr").out == "gpu1.east,gpu2\n"


def test_a_silent_an_unknown_and_an_unreadable_node_are_excluded(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write(tmp_path / f"{number}.json", report(f"n{number}.example", like="gpu-12" if number == 2 else "gpu-01"))
    unknown = report("n3.example")
    unknown["verdict"], unknown["error"] = "unknown", "no NVML"
    write(tmp_path / "3.json", unknown)
    (tmp_path / "4.json").write_text('{"schema": "gpudoctor.report/1", ')

    words = ("cluster", "report", str(tmp_path), "--expect", "n[1-5]")
    outcome, whole = gpudoctor(*words, "--exclude-expr"), gpudoctor(*words, "--json")

    assert (outcome.code, outcome.out, outcome.err) == (0, "n[2-5]\n", "")
    silent = [
        node["name"] for node in whole.json["nodes"] if node["reason"].endswith("no report of this node was read")
    ]
    assert silent == ["n4", "n5"]
    assert whole.code == 1


@pytest.mark.parametrize(
    ("expression", "code", "out"),
    [("n[2-3]", 1, "n[2-3]\n"), ("n[1,3]", 0, "n3\n"), ("", 0, "\n")],
    ids=["no fit node is left", "one is left", "none is expected"],
)
def test_the_exit_code_is_for_the_list(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, expression: str, code: int, out: str
) -> None:
    """Inside a Slurm job its nodes are expected."""
    bad = expression == "n[2-3]"
    write(tmp_path / "a.json", report("n2" if bad else "n1", like="gpu-11" if bad else "gpu-01"))
    monkeypatch.setenv("SLURM_JOB_NODELIST", expression)
    outcome = gpudoctor("cluster", "report", str(tmp_path), "--exclude-expr")
    assert (outcome.code, outcome.out) == (code, out)


@pytest.mark.parametrize("expression", ["n[1-", "n[a-b]", "n[3-1]", "n1;reboot", "-x", ",", "n[0-99999999]"])
def test_an_expression_that_is_no_list_of_hosts_is_refused(
    gpudoctor: Gpudoctor, tmp_path: Path, expression: str
) -> None:
    outcome = gpudoctor("cluster", "report", str(tmp_path), f"--expect={expression}")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is no list of hosts" in outcome.err


NAMES = [
    ["node1", "node2", "node3", "node7"],
    ["gpu-008", "gpu-009", "gpu-010", "gpu-100", "gpu-7"],
    ["a1b2", "a1b3", "a2b3", "login", "x"],
    ["n09", "n10", "n9", "n11"],
]


@needs("scontrol")
@pytest.mark.parametrize("names", NAMES)
def test_slurm_reads_the_expression_as_the_same_names(names: list[str], tmp_path: Path) -> None:
    config = tmp_path / "slurm.conf"  # it needs one, and queries no daemon
    config.write_text("ClusterName=here\nSlurmctldHost=localhost\n")
    command = ["scontrol", "show", "hostnames", hostlist(names)]
    environ = {**os.environ, "SLURM_CONF": str(config)}
    done = completed(command, env=environ)
    assert sorted(done.stdout.split()) == sorted(names), done.stderr
    assert sorted(expand_hostlist(command[-1])) == sorted(names)
