"""Real failures of others, with the truth beside them: class and rank."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.diagnose.diagnosis import Diagnosis
from tests.diagnose.asking import answer_of, said


@pytest.fixture(scope="module")
def cases(captures: Path) -> list[tuple[Path, dict[str, Any]]]:
    listing = captures / "logs" / "cases.json"
    if not listing.is_file():
        pytest.skip(f"no logs of failed jobs at {listing}")
    return [(captures / "logs" / case["path"], case) for case in json.loads(listing.read_text())["cases"]]


def is_right(answer: Diagnosis, truth: dict[str, Any]) -> bool:
    what, rank = said(answer)
    wanted = truth["first_rank"]
    return what == truth["what"] and (rank == wanted or (isinstance(wanted, list) and rank in wanted))


@pytest.mark.wide
def test_nearly_all_are_right_and_nobody_is_wrongly_blamed(cases: list[tuple[Path, dict[str, Any]]]) -> None:
    answers = [(case["id"], case["truth"], answer_of(path)) for path, case in cases]
    wrong = [(name, said(answer)) for name, truth, answer in answers if not is_right(answer, truth)]
    assert len(wrong) <= 0.03 * len(answers), wrong
    blamed = [name for name, truth, answer in answers if said(answer)[1] is not None and truth["first_rank"] is None]
    assert blamed == []


@pytest.mark.wide
def test_the_lines_that_decide_are_shown(cases: list[tuple[Path, dict[str, Any]]]) -> None:
    found = total = 0
    for path, case in cases:
        lines = {(Path(e["file"]).name, e["line"]) for e in case["truth"]["evidence"]}
        answer = answer_of(path)
        if answer.cause is None or answer.cause.what == "recovered" or not lines:
            continue
        shown = {(Path(e.file).name, e.line) for e in answer.cause.evidence}
        total += 1
        found += bool(lines & shown)
    assert found >= 0.8 * total


def single_logs(cases: list[tuple[Path, dict[str, Any]]]) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    """The cases that are one file, as lines."""
    for path, case in cases:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        if len(files) == 1:
            yield case, files[0].read_bytes().splitlines(keepends=True)


@pytest.mark.wide
def test_a_log_whose_end_was_cut_names_nobody_else(cases: list[tuple[Path, dict[str, Any]]], tmp_path: Path) -> None:
    chance = random.Random(7)
    wrong = []
    for case, lines in single_logs(cases):
        truth = case["truth"]
        if truth["what"] == "recovered":  # cut before its end it has not recovered
            continue
        for end in {chance.randrange(1, len(lines) + 1) for _ in range(4)}:
            cut = tmp_path / "cut.log"
            cut.write_bytes(b"".join(lines[:end]))
            answer = answer_of(cut)
            what, rank = said(answer)
            if answer.verdict == "cause" and (what != truth["what"] or rank not in (None, truth["first_rank"])):
                wrong.append((case["id"], end, what, rank))
    assert wrong == []


@pytest.mark.wide
def test_a_log_whose_head_was_cut_blames_no_other_rank(
    cases: list[tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    chance = random.Random(11)
    wrong = []
    for case, lines in single_logs(cases):
        truth = case["truth"]
        if truth["what"] == "recovered" or len(lines) < 2:
            continue
        for begin in {chance.randrange(1, len(lines)) for _ in range(10)}:
            cut = tmp_path / "cut.log"
            cut.write_bytes(b"".join(lines[begin:]))
            what, rank = said(answer_of(cut))
            if rank not in (None, truth["first_rank"]) or (truth["what"] == "healthy" and what != "healthy"):
                wrong.append((case["id"], begin, what, rank))
    assert wrong == []


@pytest.mark.wide(every=5)
@pytest.mark.parametrize(
    "prefix",
    [
        "2025-04-04T16:57:57.7153695Z [pod/train-0/pytorch] ",
        "Jun 01 12:00:00 n7 python3[77]: ",
        "job-1  | ",
        "> ",
        "    ",
    ],
    ids=["kubectl", "journal", "docker compose", "quoted", "indented"],
)
def test_what_stands_before_each_line_changes_nothing(
    prefix: str, cases: list[tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    wrong = []
    for case, lines in single_logs(cases):
        log = tmp_path / "job.log"
        log.write_bytes(b"".join(prefix.encode() + line for line in lines))
        answer = answer_of(log)
        if not is_right(answer, case["truth"]):
            wrong.append((case["id"], said(answer)))
    assert wrong == []


def test_the_order_of_files_does_not_matter(cases: list[tuple[Path, dict[str, Any]]], tmp_path: Path) -> None:
    chance = random.Random(3)
    for path, case in cases:
        logs = sorted(path.glob("*.log")) if path.is_dir() else []
        if len(logs) < 2 or case["kind"] != "made" or any(file.name.startswith(("train", "console")) for file in logs):
            continue
        folder = tmp_path / case["id"]
        folder.mkdir()
        for place, file in enumerate(chance.sample(logs, len(logs))):
            (folder / f"{'zyx'[place]}{file.name}").write_bytes(file.read_bytes())
        what, rank = said(answer_of(folder))
        assert (what, rank) == (case["truth"]["what"], case["truth"]["first_rank"]), case["id"]
