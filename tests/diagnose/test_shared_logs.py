"""Real failures of others, with the truth beside them: class and rank."""

from __future__ import annotations

import json
import random
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


def test_nearly_all_are_right_and_nobody_is_wrongly_blamed(cases: list[tuple[Path, dict[str, Any]]]) -> None:
    answers = [(case["id"], case["truth"], answer_of(path)) for path, case in cases]
    wrong = [(name, said(answer)) for name, truth, answer in answers if not is_right(answer, truth)]
    assert len(wrong) <= 0.03 * len(answers), wrong
    blamed = [name for name, truth, answer in answers if said(answer)[1] is not None and truth["first_rank"] is None]
    assert blamed == []


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


def test_a_log_that_was_cut_names_nobody_else(cases: list[tuple[Path, dict[str, Any]]], tmp_path: Path) -> None:
    chance = random.Random(7)
    wrong = []
    for path, case in cases:
        truth = case["truth"]
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        if len(files) != 1 or truth["what"] == "recovered":  # cut before its end it has not recovered
            continue
        lines = files[0].read_bytes().splitlines(keepends=True)
        for end in {chance.randrange(1, len(lines) + 1) for _ in range(4)}:
            cut = tmp_path / "cut.log"
            cut.write_bytes(b"".join(lines[:end]))
            answer = answer_of(cut)
            what, rank = said(answer)
            if answer.verdict == "cause" and (what != truth["what"] or rank not in (None, truth["first_rank"])):
                wrong.append((case["id"], end, what, rank))
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
