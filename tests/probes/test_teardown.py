"""How ranks are ended: time for the GPU to finish, then time for a driver that closes many contexts one by one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.node import Node
from gpudoctor.probes.runner import rank, rank_starter, rank_starter_client, run_collector
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.messages import RankJob, Started
from gpudoctor.probes.runner.plan import ProbePlan
from gpudoctor.probes.runner.rank_starter import STOP, TERM_GRACE_S
from gpudoctor.probes.runner.rank_starter_client import contexts_of, end, teardown_s
from gpudoctor.probes.runner.run_collector import RunCollector
from gpudoctor.process.ending import process_state
from tests.checks.one_check import gpus, judge, uuid_of
from tests.probes.conftest import collecting

EIGHT = tuple((number, uuid_of(number), f"0000:{number:02x}:00.0") for number in range(8))


def job(*probes: Any, backend: Any = "nccl") -> RankJob:
    cards = EIGHT if backend == "nccl" else ()
    return RankJob(backend, 8, cards, probes, folder="/nowhere", group_timeout_s=10.0)


def test_eight_gpus_may_take_a_minute_and_more_to_close_the_contexts_of_killed_ranks() -> None:
    assert [contexts_of(each) for each in (job("train"), job("link"), job("train", backend="gloo"))] == [8, 64, 0]
    assert (teardown_s(8), teardown_s(64), teardown_s(0)) == (64.0, 92.0, 10.0)


def test_a_starter_is_waited_for_as_long_as_a_healthy_driver_may_take() -> None:
    waited: list[float] = []

    def ends_within(limit_s: float) -> int | None:
        waited.append(limit_s)
        return 0 if limit_s > 35.0 else None  # healthy nodes take over 30 s

    slow: Any = SimpleNamespace(send=lambda *_, **__: True, ends_within=ends_within)
    assert end(slow, has_ranks=True, contexts=64) is False
    assert waited == [96.0]


@pytest.fixture
def collector(tmp_path: Path) -> RunCollector:
    made = collecting(ProbePlan("nccl", 8, gpus=EIGHT, probes=("train",)), tmp_path)
    made.take(-1, Started("fresh-interpreters", tuple(10_000 + number for number in range(8))))
    return made


@pytest.mark.parametrize(
    ("states", "status", "rank_named"),
    [({10_005: "D", 10_006: "Z"}, Status.FAIL, 5), ({10_005: "R"}, Status.UNKNOWN, None)],
)
def test_only_what_the_kernel_still_holds_convicts_the_driver(
    states: dict[int, str],
    status: Status,
    rank_named: int | None,
    collector: RunCollector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_collector, "process_state", lambda pid: states.get(pid, ""))
    collector.note_stuck(True)
    measured = collector.measurements()
    [problem] = measured.problems
    assert problem.rank == rank_named
    statuses = {finding.status for finding in judge("train.sync", Node(gpus=gpus(8)), measured).findings}
    assert status in statuses
    assert (Status.FAIL in statuses) is (status is Status.FAIL)


def test_processes_that_ended_in_time_are_no_problem(collector: RunCollector) -> None:
    collector.note_stuck(False)
    assert collector.measurements().problems == ()


def test_the_state_of_a_process_is_read_from_proc() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == ""


@pytest.mark.parametrize(
    ("stop_s", "ends_on", "sent"),
    [
        (3.0, STOP, [STOP]),
        (3.0, signal.SIGKILL, [STOP, signal.SIGTERM, signal.SIGKILL]),
        (0.0, signal.SIGTERM, [signal.SIGTERM]),
        (0.0, signal.SIGKILL, [signal.SIGTERM, signal.SIGKILL]),
    ],
)
def test_ranks_are_asked_before_they_are_killed(
    stop_s: float, ends_on: int, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, numbers, orders = [0.0], [], [SimpleNamespace(si_signo=signal.SIGTERM)]
    ranks = {4242: 0}

    def sleep(_: object, limit_s: float) -> Any:
        if orders:
            return orders.pop()
        now_s[0] += limit_s
        return None

    def send(_: object, number: int) -> None:
        numbers.append(number)
        if number == ends_on:
            ranks.clear()

    monkeypatch.setattr(signal, "sigtimedwait", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(rank_starter, "send_signals", send)
    monkeypatch.setattr(rank_starter, "reap", lambda: None)
    rank_starter._attend(ranks, -1, stop_s)
    assert numbers == sent
    assert now_s[0] == (0.0 if len(sent) == 1 else stop_s + TERM_GRACE_S)


def test_a_rank_that_is_asked_to_stop_lets_its_gpu_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def leave(status: int = 0) -> NoReturn:
        done.append(f"left with {status}")
        raise SystemExit(status)

    ProgressBoard(tmp_path / "board", 1).close()
    monkeypatch.setattr(rank, "_own_output", lambda path: None)
    monkeypatch.setattr(rank, "_join", lambda _: signal.raise_signal(STOP))
    monkeypatch.setattr(rank.Rank, "synchronize", lambda _: done.append("the GPU has finished"))
    monkeypatch.setattr(rank, "leave", leave)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that it is restored
    before = signal.getsignal(STOP)
    small = {"backend": "gloo", "ranks": 1, "gpus": (), "probes": (), "folder": str(tmp_path), "group_timeout_s": 1.0}
    try:
        with pytest.raises(SystemExit):
            rank.run_rank({"rank": 0, "fd": -1, "job": small})
    finally:
        signal.signal(STOP, before)
    assert done == ["the GPU has finished", "left with 1"]


def test_gpu_ranks_get_time_to_stop_and_cpu_ranks_need_none() -> None:
    orders = [rank_starter_client.order_for(job(backend=each), [0], "fork-server") for each in ("nccl", "gloo")]
    assert [order["stop_s"] for order in orders] == [3.0, 0.0]
