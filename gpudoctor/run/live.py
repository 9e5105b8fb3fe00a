"""Runs of `gpudoctor run` that go on now on this machine, as far as this user may read them: for the screen."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns

import msgspec

from gpudoctor.run.observer.layout import WAIT
from gpudoctor.run.rank_process import lives
from gpudoctor.run.record_reader import RankRecord, find_records
from gpudoctor.run.run_folder import FOLDERS, temporary_folders
from gpudoctor.run.step_series import TimedStep, mean_step, turns

_NOW_NS = 2e9
_MOST_POINTS = 24


class LiveRank(msgspec.Struct, frozen=True):
    """One rank. `now`: the mean of its steps of the last two seconds, at least one; None before its first step. On a
    GPU its times are those of the stream, and when its thread lacked a CPU is no part of them.

    `step_ms`: over the whole run, first to last. `stands`: what it does, if it has made no step for two seconds.
    """

    rank: int
    steps: int
    now: TimedStep | None
    step_ms: tuple[float, ...] = ()
    stands: str = ""


class LiveRun(msgspec.Struct, frozen=True):
    """One run: the program of its ranks, and the ranks in order."""

    program: str
    ranks: tuple[LiveRank, ...]


class LiveRuns:
    """Reads them; records are kept open between two readings, so that only new steps are read."""

    def __init__(self, temporary: tuple[Path, ...] | None = None) -> None:
        self._temporary = temporary
        self._records: dict[Path, RankRecord] = {}

    def read(self) -> tuple[LiveRun, ...]:
        """What goes on now; empty if nothing does."""
        folders: dict[Path, list[RankRecord]] = {}
        for place in self._temporary or temporary_folders():
            with suppress(OSError):
                for folder in sorted(place.glob(FOLDERS)):
                    if folder.stat().st_uid == os.geteuid():
                        folders[folder] = self._records_in(folder / "ranks")
        self._records = {path: record for path, record in self._records.items() if path.parent.parent in folders}
        runs = (_run(records) for records in folders.values())
        return tuple(run for run in runs if run is not None)

    def _records_in(self, folder: Path) -> list[RankRecord]:
        self._records.update({record.path: record for record in find_records(folder, set(self._records))})
        return [record for path, record in sorted(self._records.items()) if path.parent == folder]


def _run(records: list[RankRecord]) -> LiveRun | None:
    """The run, if any of its ranks lives; a launcher makes no steps and is none of them."""
    for record in records:
        record.read_new_steps()
    ranks = [record for record in records if record.now.steps] or [r for r in records if r.identity[0] >= 0]
    if not any(lives(record.pid, record.started) for record in ranks):
        return None
    ranks.sort(key=lambda record: record.identity[0])
    argv = next((record.details().get("argv") for record in ranks), None) or ["(its command is not known yet)"]
    return LiveRun(" ".join(map(str, argv)), tuple(_rank(number, record) for number, record in enumerate(ranks)))


def _rank(number: int, record: RankRecord) -> LiveRank:
    steps = list(record.series.steps().values())
    now_ns = monotonic_ns()
    recent = [step for step in steps[-64:] if now_ns - step.end_ns <= _NOW_NS] or steps[-1:]
    mean = mean_step(recent) if recent else None
    points = turns(steps, min(_MOST_POINTS, len(steps))) if steps else []
    return LiveRank(
        rank=record.identity[0] if record.identity[0] >= 0 else number,
        steps=record.now.steps,
        now=None if mean is None else mean.on_stream() if record.identity[3] else mean,
        step_ms=tuple(step.step_ms for step in points),
        stands=_stands(record, now_ns),
    )


def _stands(record: RankRecord, now_ns: int) -> str:
    if not lives(record.pid, record.started):
        return "has ended"
    now = record.now
    if not now.since_ns or now_ns - now.since_ns < _NOW_NS:
        return "" if now.steps else "starts"
    what = f"wait: {record.collective}" if now.phase == WAIT and record.collective else now.phase_name
    return f"stands in {what} for {(now_ns - now.since_ns) / 1e9:.0f} s"
