"""A run is read while it goes on: the records that the observer leaves, in the folders of this user."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace

import pytest

from gpudoctor.run.live import LiveRuns
from gpudoctor.run.observer.layout import PHASES, WAIT
from gpudoctor.run.observer.phases import Phases
from gpudoctor.run.observer.record_file import RecordFile
from gpudoctor.run.record_reader import RankRecord

_STEP_MS = 10.0


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    folder = tmp_path / "gpudoctor-run-x" / "ranks"
    folder.mkdir(parents=True)
    return folder


def write(record: RecordFile, number: int) -> None:
    wall_ms = [_STEP_MS if phase == WAIT else 0.0 for phase in range(len(PHASES))]
    record.step(number, (float(monotonic_ns()), *wall_ms, *(0.0,) * 21))
    record.now(number + 1, 1, WAIT, monotonic_ns())


def test_a_run_is_seen_while_it_goes_on_and_its_steps_are_added(tmp_path: Path, ranks: Path) -> None:
    runs = LiveRuns((tmp_path,))
    assert runs.read() == ()
    record = RecordFile(str(ranks / "7.rank"), 0)
    record.place(3, 0, 4, False, -1)
    (ranks / "7.json").write_text(json.dumps({"argv": ["train.py", "--lr", "1"]}), encoding="utf-8")
    (before,) = runs.read()
    assert (before.program, before.ranks[0].steps, before.ranks[0].now, before.ranks[0].stands) == (
        "train.py --lr 1", 0, None, "starts",
    )  # fmt: skip
    for number in range(30):
        write(record, number)
    (rank,) = runs.read()[0].ranks
    assert (rank.rank, rank.steps, rank.step_ms, rank.stands) == (3, 30, (_STEP_MS,) * 24, "")
    assert rank.now is not None
    assert rank.now.wall_ms[WAIT] == _STEP_MS
    record.now(30, 1, WAIT, monotonic_ns() - int(60e9))
    record.collective(b"all_reduce")
    assert runs.read()[0].ranks[0].stands == "stands in wait: all_reduce for 60 s"


def test_a_run_whose_ranks_are_gone_is_none(tmp_path: Path, ranks: Path) -> None:
    record = RecordFile(str(ranks / "7.rank"), 0)
    write(record, 0)
    file = ranks / "7.rank"
    data = bytearray(file.read_bytes())
    data[24:32] = (1).to_bytes(8, "little")  # of another process with this number
    file.write_bytes(data)
    assert LiveRuns((tmp_path,)).read() == ()


def test_after_the_first_steps_as_many_are_timed_as_cost_little_and_moves_are_always_known(
    ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", on_cpu)
    calls = count()
    monkeypatch.setattr("gpudoctor.run.observer.phases.monotonic_ns", lambda: 1000 * next(calls))
    record = RecordFile(str(ranks / "7.rank"), 0)
    phases = Phases(record)
    kept: list[int] = []
    record.step = lambda number, values: kept.append(number)  # type: ignore[method-assign]
    for _ in range(400):  # steps of nothing but marks
        phases.end(phases.begin(0))
        phases.end_step()
    assert kept[:128] == list(range(128))
    assert kept[128:] == list(range(128, 400, 64))
    while phases.timed:
        phases.end_step()
    read = RankRecord(ranks / "7.rank")
    depth = phases.begin(WAIT)  # of an evaluation or a step: nothing is written but by the thread beside it
    before_ns, phases.waits_in = read.now.since_ns, b"barrier"
    phases.write_now()
    assert (read.now.phase, read.collective) == (WAIT, "barrier")
    assert (moved_ns := read.now.since_ns) > before_ns
    phases.write_now()
    assert read.now.since_ns == moved_ns
    phases.end(depth)
    phases.write_now()
    assert (read.now.phase_name, read.now.since_ns > moved_ns) == ("host", True)


def test_of_gigabytes_of_output_the_beginning_and_the_end_are_kept(ranks: Path) -> None:
    record = RecordFile(str(ranks / "7.rank"), 0)
    size, line = (ranks / "7.rank").stat().st_size, b"%06d: " + b"x" * 55 + b"\n"
    for number in range(20_000):
        record.output(line % number)
    kept = RankRecord(ranks / "7.rank").output()
    assert (kept[:6], kept[-64:-58]) == (b"000000", b"019999")
    assert b"bytes of output were not kept" in kept
    assert (ranks / "7.rank").stat().st_size == size
