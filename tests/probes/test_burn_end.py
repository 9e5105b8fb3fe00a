"""When the rounds of a burn end: one rank decides for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from gpudoctor.facts.model.measurements import Measurements, Probe
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.launch import ProbePlan
from gpudoctor.probes.runner.messages import Finished
from tests.narrowed import present
from tests.needs import module
from tests.probes.conftest import measure

pytestmark = pytest.mark.usefixtures("forked_starters")


class FakeRank:
    """Replaces a Rank in the loop of rounds: records what it sends, and receives what rank 0 would decide."""

    def __init__(self, duration_s: float | None, probes: tuple[Probe, ...], decisions: Iterator[int]) -> None:
        self.job = messages.RankJob("gloo", 1, probes=probes, duration_s=duration_s, folder="", group_timeout_s=10.0)
        self.on_gpu = False
        self.sent: list[Finished] = []
        self.asked: list[int] = []
        self._decisions = decisions

    def send(self, message: Finished) -> None:
        self.sent.append(message)
        assert len(self.sent) < 20, "rounds without end"

    def from_rank_zero(self, value: int) -> int:
        self.asked.append(int(value))
        return next(self._decisions)


def _rounds(rank: FakeRank, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    rank_module = module("gpudoctor.probes.runner.rank")
    monkeypatch.setattr(rank_module.time, "monotonic", clock)
    monkeypatch.setattr(rank_module.time, "sleep", lambda _: None)
    rank_module._run_repetitions(rank, {"collective": lambda _: None, "train": lambda _: None})
    return [message.probe for message in rank.sent]


@pytest.mark.wide
def test_rank_zero_decides_whether_there_is_another_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """This rank's own clock never reaches the duration; only rank 0's decision counts."""
    rank = FakeRank(5.0, ("collective", "train"), iter([1, 1, 0]))
    told = _rounds(rank, lambda: 0.0, monkeypatch)
    assert told == ["collective", "train"] * 3
    assert rank.asked == [1, 1, 1]


@pytest.mark.wide
def test_a_rank_that_is_rank_zero_says_when_the_duration_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def passing() -> float:
        now[0] += 1.0
        return now[0]

    rank = FakeRank(5.0, ("collective",), iter([1, 1, 0]))
    _rounds(rank, passing, monkeypatch)
    assert rank.asked == [1, 0, 0]  # polled 2, 5 and 8 s after the start: 5 s have passed at the second


@pytest.mark.parametrize(("duration_s", "probes"), [(None, ("train",)), (600.0, ())])
def test_without_a_duration_or_a_probe_there_is_no_second_round(
    duration_s: float | None, probes: tuple[Probe, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = FakeRank(duration_s, probes, iter(()))
    assert _rounds(rank, lambda: 0.0, monkeypatch) == list(probes)


def test_real_ranks_make_rounds_together_until_the_time_is_over() -> None:
    plan = ProbePlan("gloo", 2, probes=("collective",), duration_s=2.0, inject=("wrong-sum=1",))
    found = measure(plan)
    assert found.problems == ()
    burn = present(found.burn)
    assert burn.rounds >= 1
    assert all(c.wrong_ranks == (1,) for c in found.collectives)
    assert {wrong.round for wrong in burn.wrong} == set(range(burn.rounds))
    assert burn.counters == Missing("CPU ranks put no load on a GPU")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Measurements) == found
