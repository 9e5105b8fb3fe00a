"""`cluster report` on what is no good report: counted and named, never dropped in silence."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.cluster.fleet.files import Listed
from gpudoctor.cluster.fleet.reading import Outcome, ReportReader
from gpudoctor.process.signals import InterruptedBySignal
from tests.cli.conftest import Gpudoctor
from tests.cluster.fleet_reports import Report, fleet, report, scale, write
from tests.imported_torch import own_children


def refused(found: Any, how: str) -> dict[str, str]:
    return {Path(each["place"]).name: each["why"] for each in found["reading"][how]}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files are enough to be read by three processes."""
    monkeypatch.setattr("gpudoctor.cluster.fleet.reading.FEWEST_FILES", 2)
    monkeypatch.setattr("gpudoctor.cluster.fleet.reading.CHUNK", 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))

    return give


def test_each_broken_or_foreign_file_is_named_with_the_reason(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    fleet(tmp_path, 2, figures=False)
    whole = json.dumps(report("node7"))
    (tmp_path / "half.json").write_text(whole[: len(whole) // 2])
    (tmp_path / "half-name.json").write_text(whole.replace("node7", "\\udcff")[: len(whole) // 2])
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "types.json").write_text(whole.replace('"verdict": "pass"', '"verdict": 7'))
    (tmp_path / "later.json").write_text(whole.replace("gpudoctor.report/1", "gpudoctor.report/2"))
    (tmp_path / "half.json.gz").write_bytes(gzip.compress(whole.encode())[:500])
    (tmp_path / "deep.json").write_text('{"schema": "gpudoctor.report/1", "run": ' + "[" * 100_000)
    (tmp_path / "deep2.json").write_text('{"schema": "gpudoctor.report/1", "facts": ' + "[" * 100_000)
    (tmp_path / "other.json").write_text('{"hello": 1}')
    (tmp_path / "list.json").write_text("[1, 2]\n")
    (tmp_path / "words.jsonl").write_text("not JSON at all\n")
    (tmp_path / "README.md").write_text("hello\n")
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    broken, foreign = refused(outcome.json, "broken"), refused(outcome.json, "foreign")
    assert broken.keys() == {
        "half.json",
        "half-name.json",
        "empty.json",
        "types.json",
        "later.json",
        "half.json.gz",
        "deep.json",
        "deep2.json",
    }
    assert "cut off" in broken["half.json"]
    assert "cut off" in broken["half-name.json"]
    assert "cut off" in broken["half.json.gz"]
    assert "empty" in broken["empty.json"]
    assert "$.verdict" in broken["types.json"]
    assert "another version, 'gpudoctor.report/2'" in broken["later.json"]
    assert foreign.keys() == {"other.json", "list.json", "words.jsonl"}
    assert outcome.json["reading"]["others"] == 1
    # what cannot be read is of a node that nobody knows: no false OK
    assert (outcome.code, outcome.json["counts"]["unread"]) == (3, 8)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 4096,
        json.dumps(report("node3", like="gpu-11")).encode("utf-16"),
        b"bash: gpudoctor: command not found\n",
        b"Traceback (most recent call last):\n  File x\n",
        json.dumps([report("node3", like="gpu-11")]).encode(),
        json.dumps([report("node3", like="gpu-11")], indent=2).encode(),
    ],
    ids=["zeros of a crash", "UTF-16", "words of a shell", "traceback", "array", "array over many lines"],
)
def test_what_stands_where_a_report_was_to_be_makes_a_node_that_is_not_known(
    gpudoctor: Gpudoctor, tmp_path: Path, data: bytes
) -> None:
    fleet(tmp_path, 2, figures=False)
    (tmp_path / "node3.json").write_bytes(data)
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.code, outcome.json["counts"]["unread"]) == (3, 1)
    assert list(refused(outcome.json, "broken")) == ["node3.json"]


def test_lists_and_lines_between_reports_are_foreign_and_do_not_make_a_fleet_unknown(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    fleet(tmp_path, 2, figures=False)
    (tmp_path / "inventory.json").write_text('{"rack": 3}')
    (tmp_path / "racks.json").write_text(json.dumps([{"rack": 3}, [4]], indent=2))
    (tmp_path / "pods.jsonl").write_text(f"starting\n{json.dumps(report('node3'))}\n")
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert list(refused(outcome.json, "foreign")) == ["inventory.json", "pods.jsonl", "racks.json"]
    assert (outcome.code, outcome.json["counts"]["nodes"]) == (0, 3)


@pytest.mark.parametrize(
    ("of_the_fail", "of_the_pass"),
    [
        ("2000-01-01T00:00:05+00:00", "2025-11-03T21:00:00+00:00"),
        ("once", "2025-11-03T21:00:00+00:00"),
        ("2025-11-03T21:00:00+00:00", "2199-01-01T00:00:00+00:00"),
    ],
    ids=["a clock that was reset", "no time", "a clock that is ahead"],
)
def test_a_fault_is_not_forgotten_where_a_wrong_clock_hides_which_report_is_newer(
    gpudoctor: Gpudoctor, tmp_path: Path, of_the_fail: str, of_the_pass: str
) -> None:
    write(tmp_path / "a.json", report("node1", like="gpu-11", at=of_the_fail))
    write(tmp_path / "b.json", report("node1", at=of_the_pass))
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.code, outcome.json["counts"]["nodes"], outcome.json["counts"]["unknown"]) == (3, 1, 1)
    assert "by the clocks it is not sure" in outcome.json["nodes"][0]["reason"]


def test_a_report_that_is_better_than_its_own_checks_is_not_believed(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = report("node1", like="gpu-11")
    made["verdict"] = "pass"
    write(tmp_path / "a.json", made)
    outcome = gpudoctor("cluster", "report", str(tmp_path))
    assert outcome.code == 2
    assert "its verdict is pass, and its checks say fail" in outcome.err


def test_an_interrupted_check_is_not_a_pass(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = report("node1")
    made["run"]["interrupted"] = "SIGTERM"
    write(tmp_path / "a.json", made)
    assert gpudoctor("cluster", "report", str(tmp_path)).code == 3


def test_copies_of_a_run_count_once_and_a_forged_one_is_refused(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = report("node1")
    write(tmp_path / "a.json", made)
    write(tmp_path / "b.json", made)
    forged = report("node1", like="gpu-11")
    assert forged["run"]["id"] == made["run"]["id"]
    write(tmp_path / "c.json", forged)
    found = gpudoctor("cluster", "report", "--json", str(tmp_path)).json
    assert found["counts"]["nodes"] == 1
    assert list(refused(found, "duplicates")) == ["b.json"]
    assert "which one is true?" in refused(found, "broken")["c.json"]


def test_a_report_of_an_earlier_version_lacks_fields_and_is_read(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = report("node1")
    for key in ("torch", "nccl"):
        del made["host"][key]
    for gpu in made["gpus"]:
        del gpu["vbios"]
    for key in ("simulated", "error", "measurements"):
        del made[key]
    write(tmp_path / "a.json", made)
    assert gpudoctor("cluster", "report", str(tmp_path)).code == 0


@pytest.mark.parametrize(
    ("part", "changed"),
    [("launch", {"backend": "rccl"}), ("training", {"device": "xpu"}), ("peer_links", [{"gb_s": "fast"}])],
)
def test_a_measurement_with_words_of_a_newer_version_hides_no_fault(
    gpudoctor: Gpudoctor, tmp_path: Path, part: str, changed: Any
) -> None:
    fleet(tmp_path / "set", 2)
    made = report("node3", like="gpu-11", figures=True)
    made["measurements"][part] = changed if isinstance(changed, list) else made["measurements"][part] | changed
    write(tmp_path / "set" / "node3.json", made)
    bad = tmp_path / "bad.txt"
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path / "set"), "--bad", str(bad))
    assert (outcome.code, outcome.json["counts"]["fail"], bad.read_text()) == (1, 1, "node3\n")
    assert "measurements that cannot be read here, and are not compared: node3" in outcome.json["notes"]


def test_a_verdict_or_a_status_with_a_word_of_a_newer_version_is_no_pass(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = report("node1", figures=True) | {"verdict": "fine"}
    made["measurements"]["launch"]["backend"] = "rccl"
    write(tmp_path / "a.json", made)
    made = report("node2") | {"verdict": "pass"}
    made["checks"] = [check | {"status": "fine"} for check in made["checks"]]
    made["counts"] = {}
    write(tmp_path / "b.json", made)
    write(tmp_path / "c.json", report("node3"))
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert (outcome.code, list(refused(outcome.json, "broken"))) == (3, ["a.json", "b.json"])


def test_details_that_are_gone_cost_no_node_and_no_other_figure(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def change(number: int, made: Report) -> None:
        del made["host"]["kernel"], made["gpus"][0]["in_scope"], made["gpus"][0]["index"]
        for gpu in made["gpus"]:
            del gpu["uuid"]
        del made["measurements"]["collectives"][0]["iterations"]
        if number == 3:
            scale(made, "peer_links", "gb_s", 0.5)

    outcome = gpudoctor("cluster", "report", "--json", str(fleet(tmp_path, 12, change)))
    assert (outcome.json["counts"]["pass"], outcome.json["counts"]["unread"]) == (11, 0)
    assert {found["node"] for found in outcome.json["outliers"]} == {"node3"}


def test_two_machines_of_one_name_are_told_apart(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    first, second = report("node1"), report("twin", like="gpu-11")
    second["host"]["name"] = "node1"
    write(tmp_path / "a.json", first)
    write(tmp_path / "b.json", second)
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path), "--good", str(good), "--bad", str(bad))
    found = outcome.json
    assert found["counts"]["nodes"] == 2
    assert {row["host"] for row in found["nodes"]} == {"node1"}
    assert any("2 machines of one name" in note for note in found["notes"])
    # the scheduler knows one node of that name, and something behind it fails
    assert (good.read_text(), bad.read_text()) == ("", "node1\n")


def test_the_fault_of_a_machine_that_shows_no_gpu_is_not_hidden_by_another_of_its_name_checked_at_the_same_time(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    dead = report("localhost", like="gpu-11", at="2025-11-03T21:00:00+00:00")
    dead["gpus"] = []
    write(tmp_path / "a.json", dead)
    write(tmp_path / "b.json", report("localhost", at="2025-11-03T21:00:20+00:00"))
    assert gpudoctor("cluster", "report", str(tmp_path)).code == 3
    # checked again after that it is the same machine, repaired, as far as anybody can tell
    write(tmp_path / "c.json", report("localhost", at="2025-11-03T22:00:00+00:00"))
    assert gpudoctor("cluster", "report", str(tmp_path)).code == 0


def test_jobs_in_parts_of_one_machine_are_no_two_machines(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    for name, kept in (("a", slice(0, 4)), ("b", slice(4, 8))):
        made = report("node1")
        made["run"]["id"] = name
        made["gpus"] = made["gpus"][kept]
        write(tmp_path / f"{name}.json", made)
    found = gpudoctor("cluster", "report", "--json", str(tmp_path)).json
    assert any("parts of one machine" in note for note in found["notes"])
    assert not any("same slots" in note for note in found["notes"])


def test_one_set_of_gpus_under_two_names_is_said(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = report("node1")
    write(tmp_path / "a.json", made)
    made["host"]["name"], made["run"]["id"] = "node2", "other"
    write(tmp_path / "b.json", made)
    notes = gpudoctor("cluster", "report", "--json", str(tmp_path)).json["notes"]
    assert "node1 and node2 report 8 GPUs in common: renamed, or a copied report" in notes


def test_clocks_apart_are_said(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    fleet(tmp_path, 3, figures=False)
    write(tmp_path / "ahead.json", report("node4", at="2199-01-01T00:00:00+00:00"))
    late = write(tmp_path / "late.json", report("node5", at="2025-11-03T21:00:00+00:00"))
    os.utime(late, (time.time(), 1_700_000_000))
    write(tmp_path / "none.json", report("node6", at="yesterday"))
    notes = "\n".join(gpudoctor("cluster", "report", "--json", str(tmp_path)).json["notes"])
    assert "clocks apart: node4 began later than it is here now" in notes
    assert "clocks apart: node5 ended later than the file was written" in notes
    assert "no credible start time: node6" in notes
    assert "more than a day older" not in notes, "node4's clock makes no other report old"


def test_redacted_reports_are_not_taken_for_one_node(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    for name, like in (("first", "gpu-01"), ("second", "gpu-11")):
        made = report("node1", like=like)
        made["host"]["name"], made["run"]["id"] = "redacted", name
        write(tmp_path / f"{name}.json", made)
    found = gpudoctor("cluster", "report", "--json", str(tmp_path)).json
    assert {row["name"]: row["verdict"] for row in found["nodes"]} == {"first": "pass", "second": "fail"}


def test_names_that_are_not_utf_8_can_be_said(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    made = report("node1")
    made["host"]["name"] = "node\udcfe"  # as json.dumps writes what os.uname gave
    write(folder / os.fsdecode(b"a\xff.json"), made)
    (folder / os.fsdecode(b"b\xff.json")).write_text("{")
    for form in ("json", "text", "html"):
        outcome = gpudoctor("cluster", "report", "--format", form, str(folder))
        assert (outcome.code, "internal" in outcome.err) == (3, False)
        told = "".join(outcome.out.split())  # text is wrapped, in a long path anywhere
        assert "\\udcfe" in told
        assert "b\\xff.json" in told or "b\\udcff.json" in told.replace("\\\\", "\\")


def test_files_within_files_are_read_packed_by_line_and_spread_over_lines(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    lines = "".join(json.dumps(report(f"line{number}")) + "\n" for number in range(3))
    (tmp_path / "all.jsonl").write_text(lines + lines[:400])
    (tmp_path / "deep" / "er").mkdir(parents=True)
    pretty = [json.dumps(report(name), indent=2) for name in ("pretty", "second")]
    (tmp_path / "deep" / "er" / "pretty.json").write_text("\n".join(pretty))
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(json.dumps(report("packed")).encode()))
    found = gpudoctor("cluster", "report", "--json", str(tmp_path)).json
    assert [row["name"] for row in found["nodes"]] == ["line0", "line1", "line2", "packed", "pretty", "second"]
    assert list(refused(found, "broken")) == ["all.jsonl line 4"]


def test_many_files_are_read_by_several_processes_with_the_same_result(
    gpudoctor: Gpudoctor, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def change(number: int, made: Report) -> None:
        made["checks"] = made["checks"][:2]
        if number == 33:
            made["host"]["driver"] = "1.0"

    fleet(tmp_path, 120, change)
    (tmp_path / "half.json").write_text('{"schema": "gpudoctor.report/1", ')
    alone = gpudoctor("cluster", "report", "--json", str(tmp_path))
    request.getfixturevalue("processes")
    together = gpudoctor("cluster", "report", "--json", str(tmp_path))
    assert together.out == alone.out
    assert together.json["counts"]["nodes"] == 120
    assert together.json["drift"][0]["others"][0]["nodes"] == ["node33"]
    assert own_children() == []


@pytest.mark.usefixtures("processes")
def test_what_a_process_that_dies_has_not_read_is_read_all_the_same(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(tmp_path, 30, figures=False)
    parent, of_files = os.getpid(), ReportReader._of_files

    def dies_on_node7(self: ReportReader, files: list[Listed]) -> list[Outcome]:
        if os.getpid() != parent and any("node7" in file.path for file in files):
            os._exit(9)
        return of_files(self, files)

    monkeypatch.setattr(ReportReader, "_of_files", dies_on_node7)
    found = gpudoctor("cluster", "report", "--json", str(tmp_path)).json
    assert (found["counts"]["nodes"], found["reading"]["duplicates"]) == (30, [])


def test_stdin_is_read_line_by_line_and_a_bad_node_is_said_at_once(
    gpudoctor: Gpudoctor, stdin: Callable[[bytes], None]
) -> None:
    made = [report("node1"), report("node2", like="gpu-11")]
    stdin("".join(json.dumps(each) + "\n" for each in made).encode() + b'{"schema": "gpudoctor.rep')
    outcome = gpudoctor("cluster", "report", "-")
    assert outcome.code == 1
    assert "node2: FAIL pcie.link-width" in outcome.err
    assert "stdin line 3: cut off" in outcome.err
    assert "node1" not in outcome.err


def test_a_packed_stream_on_stdin_is_read(gpudoctor: Gpudoctor, stdin: Callable[[bytes], None]) -> None:
    stdin(b"".join(gzip.compress(json.dumps(report(name)).encode() + b"\n") for name in ("node1", "node2")))
    found = gpudoctor("cluster", "report", "--json", "-").json
    assert [row["name"] for row in found["nodes"]] == ["node1", "node2"]


def test_a_signal_while_reports_arrive_ends_with_what_is_known(tmp_path: Path) -> None:
    good = tmp_path / "good.txt"
    command = [sys.executable, "-m", "gpudoctor", "cluster", "report", "-", "--json", "--good", str(good)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        for made in (report("node1"), report("node2", like="gpu-11")):
            process.stdin.write(json.dumps(made).encode() + b"\n")
        process.stdin.flush()
        assert b"node2: FAIL" in process.stderr.readline()  # said while stdin is open
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode == found["exit_code"] == 143
    assert (found["counts"]["nodes"], found["reading"]["interrupted"]) == (2, "SIGTERM")
    assert b"no list of hosts is written" in err
    assert not good.exists()


def test_only_passes_before_a_signal_are_no_pass_of_the_fleet(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stopped(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(size)
            if not line:
                raise InterruptedBySignal(signal.SIGTERM)
            return line

    whole = json.dumps(report("node1")).encode() + b"\n"
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Stopped(whole)})())
    assert gpudoctor("cluster", "report", "--json", "-").json["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-folder"], "no such file or folder"),
        (["x" * 300], "cannot be read: File name too long"),
        (["-", "-"], "stdin can be read once only"),
        (["-", "--against", "-"], "stdin can be read once only"),
        (["/dev/null"], "no report could be read of 1: /dev/null: not a regular file"),
        (["link.json"], "cannot be read: File name too long"),
        (["others"], "others: no report there, 1 other files and documents"),
    ],
)
def test_nothing_to_read_is_one_line_and_exit_2(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.json").symlink_to("x" * 300)
    Path("others").mkdir()
    Path("others/README.md").touch()
    outcome = gpudoctor("cluster", "report", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err


def test_a_missing_report_among_others_is_unknown_and_the_others_are_judged(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    fleet(tmp_path, 2, figures=False)
    missing = tmp_path / "node9.json"
    outcome = gpudoctor("cluster", "report", "--json", str(tmp_path), str(missing))
    assert (outcome.code, outcome.json["verdict"]) == (3, "unknown")
    assert outcome.json["counts"]["nodes"] == 2
    assert refused(outcome.json, "broken")["node9.json"].startswith("no such file or folder")
    listed = gpudoctor("cluster", "report", str(tmp_path), str(missing), "--exclude-expr")
    assert (listed.code, listed.err.count("1 node has no name that a list may hold")) == (3, 1)
    # nothing but absent sources is a mistake in the command: no list of hosts comes of it
    assert gpudoctor("cluster", "report", str(missing), "--expect", "n1", "--exclude-expr").code == 2
    assert "node9.json" in gpudoctor("cluster", "report", "--json", str(missing)).json["error"]


def test_folders_nested_deeper_than_python_recurses_are_read(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        for _ in range(1100):
            os.mkdir("d")  # noqa: PTH102 - relative, as the whole path becomes too long for some calls
            os.chdir("d")
        write(Path("node1.json"), report("node1"))
        os.chdir(tmp_path)
        outcome = gpudoctor("cluster", "report", "--json", "d")
    finally:
        os.chdir(tmp_path)
        subprocess.run(["rm", "-r", "d"], check=True)  # too deep for pytest to remove
    assert outcome.json["counts"]["nodes"] == 1
