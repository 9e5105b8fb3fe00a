"""`gpudoctor check --progress`: progress as JSON lines on stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpudoctor.probes.runner.messages import Left, Phase
from gpudoctor.report.progress import ProgressLine, ProgressLines
from tests.cli.conftest import Gpudoctor

RANKS = ("check", "collective.correct", "--node", "hgx-h100-8", "--backend", "gloo", "--json", "--progress")


def lines_of(text: str) -> list[ProgressLine]:
    return [msgspec.json.decode(line, type=ProgressLine) for line in text.splitlines()]


@pytest.mark.wide
def test_each_rank_tells_what_it_does_and_stdout_is_the_report_alone(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor(*RANKS)
    assert outcome.json["schema"] == "gpudoctor.report/1"
    said = lines_of(outcome.err)
    sizes = {(line.rank, line.progress) for line in said if line.probe == "collective"}
    assert {rank for rank, _ in sizes} == {0, 1}
    assert any(text.startswith("all_reduce of ") for _, text in sizes)
    # how long CPU ranks take is not documented anywhere: no estimate is made up
    assert {line.left_s for line in said} == {None}


def test_a_check_without_ranks_has_nothing_to_tell(gpudoctor: Gpudoctor) -> None:
    quick = ("check", "--node", "hgx-h100-8", "--level", "quick")
    with_progress = gpudoctor(*quick, "--progress")
    assert with_progress.err == ""
    assert with_progress.code == 0
    assert with_progress.out.startswith("SIMULATED")


def test_a_run_ends_when_nobody_reads_its_progress_any_more() -> None:
    code = "import signal; from gpudoctor.report.progress import progress_to_stderr as begin; "
    code += "begin(None)('reading'); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as waits_for_ever:
        assert waits_for_ever.stderr is not None
        [line] = lines_of(waits_for_ever.stderr.readline())
        assert line.progress == "reading"
        waits_for_ever.stderr.close()
        assert waits_for_ever.wait(60) == -signal.SIGTERM


def test_progress_into_a_file_goes_on_to_the_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpudoctor", "check", "host", "--node", "hgx-h100-8", "--level", "quick"]
    with (tmp_path / "progress").open("w") as file:
        done = subprocess.run([*command, "--progress"], stdout=subprocess.PIPE, stderr=file, text=True, timeout=60)
    assert done.returncode == 0
    assert "SIMULATED" in done.stdout


class Told:
    """Lines as they were shown, at times that the test sets."""

    def __init__(self, duration_s: float | None = None) -> None:
        self.now_s = 100.0
        self.shown: list[ProgressLine | None] = []
        self.lines = ProgressLines(self.shown.append, duration_s, clock=lambda: self.now_s)

    @property
    def last(self) -> ProgressLine:
        assert self.shown[-1] is not None
        return self.shown[-1]


def test_what_is_left_counts_down_and_is_not_told_when_it_is_over() -> None:
    told = Told()
    told.lines.expect(("collective", "train"), 30.0)
    told.now_s += 12
    told.lines.hear(3, Phase("collective", "all_reduce of 64 MiB"))
    assert told.last == ProgressLine("all_reduce of 64 MiB", 3, "collective", 18.0, step=2, steps=3, elapsed_s=12.0)
    assert told.last.words == "step 2 of 3, 12 s, about 18 s left: all_reduce of 64 MiB"
    told.now_s += 20
    told.lines.hear(3, Phase("train", "train step 1"))
    assert told.last.left_s is None


def test_a_burn_lasts_from_its_first_probe_on() -> None:
    told = Told(duration_s=600.0)
    told.lines.hear(0, Phase("launch", "join"))
    assert told.last.left_s is None
    told.now_s += 8
    told.lines.hear(0, Phase("collective", "all_reduce of 1 MiB"))
    assert told.last.left_s == 600.0


def test_the_same_words_of_a_rank_are_told_once() -> None:
    told = Told()
    for rank in (0, 0, 1):
        told.lines.hear(rank, Phase("train", "warm-up"))
    told.lines.hear(-1, Phase("launch", "start"))
    told.lines.hear(0, Left())
    assert [line and line.rank for line in told.shown] == [0, 1]
    told.lines("")
    assert told.shown[-1] is None
