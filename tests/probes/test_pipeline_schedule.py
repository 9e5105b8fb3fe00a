"""The order of a pipeline's work: simulated on our own clock, with transfers that wait for both sides."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpudoctor.probes.strategies.pipeline_steps import (
    SCHEDULES,
    Action,
    ScheduleName,
    Transfer,
    actions_of,
    bubble_share,
    layers_of_stage,
    most_held,
    transfers_before,
)

SIZES = [(stages, microbatches) for stages in (2, 3, 4, 8) for microbatches in (1, 2, 3, 4, 8, 16)]


class Played:
    """All stages at work: a forward takes 1, a backward 2, a transfer nothing, but it waits for its other end."""

    def __init__(self, schedule: ScheduleName, stages: int, microbatches: int) -> None:
        self.stages = stages
        self.rows = [actions_of(schedule, stage, stages, microbatches) for stage in range(stages)]
        self.clock = [0] * stages
        self._place = [0] * stages
        self._posted: dict[tuple[int, int, Action], dict[str, int]] = {}
        self._open: list[set[tuple[int, int, Action]]] = [set() for _ in range(stages)]
        for stage in range(stages):
            self._post(stage)
        while any(self._move(stage) for stage in range(stages)):
            pass

    @property
    def over(self) -> bool:
        return all(place > len(row) for place, row in zip(self._place, self.rows, strict=True))

    def _post(self, stage: int) -> None:
        place, row = self._place[stage], self.rows[stage]
        done = row[place - 1] if place else None
        then = row[place] if place < len(row) else None
        for way, peer, what in transfers_before(done, then, stage, self.stages):
            key = (stage, peer, what) if way == "send" else (peer, stage, what)
            self._posted.setdefault(key, {})[way] = self.clock[stage]
            self._open[stage].add(key)

    def _move(self, stage: int) -> bool:
        """Do the next action, if all that was posted before it has met its other end."""
        place, row = self._place[stage], self.rows[stage]
        if place > len(row) or any(len(self._posted[key]) < 2 for key in self._open[stage]):
            return False
        self.clock[stage] = max([self.clock[stage], *(max(self._posted[k].values()) for k in self._open[stage])])
        self._open[stage].clear()
        self._place[stage] += 1
        if place < len(row):
            self.clock[stage] += 1 if row[place].kind == "forward" else 2
            self._post(stage)
        return True


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_every_stage_comes_to_its_end_after_idling_for_the_share_of_the_formula(
    schedule: ScheduleName, stages: int, microbatches: int
) -> None:
    """Though each transfer waits for both sides, and on a clock of our own."""
    played = Played(schedule, stages, microbatches)
    assert played.over
    idle = 1 - Fraction(3 * microbatches, max(played.clock))
    assert float(idle) == pytest.approx(bubble_share(stages, microbatches))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_every_microbatch_goes_forward_and_back_once_on_every_stage(
    schedule: ScheduleName, stages: int, microbatches: int
) -> None:
    for stage in range(stages):
        actions = actions_of(schedule, stage, stages, microbatches)
        for kind in ("forward", "backward"):
            assert [a.microbatch for a in actions if a.kind == kind] == list(range(microbatches))
        for index in range(microbatches):
            assert actions.index(Action("forward", index)) < actions.index(Action("backward", index))


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_1f1b_holds_no_more_microbatches_than_there_are_stages_left_and_gpipe_all(
    stages: int, microbatches: int
) -> None:
    held = [most_held(actions_of("1f1b", stage, stages, microbatches)) for stage in range(stages)]
    assert held == [min(microbatches, stages - stage) for stage in range(stages)]
    assert most_held(actions_of("gpipe", 0, stages, microbatches)) == microbatches


def test_what_is_sent_after_one_action_goes_together_with_what_the_next_one_needs() -> None:
    done, then = Action("forward", 3), Action("backward", 1)
    assert transfers_before(done, then, 1, 4) == (Transfer("send", 2, done), Transfer("receive", 2, then))
    assert transfers_before(None, Action("forward", 0), 0, 4) == ()
    assert transfers_before(Action("backward", 1), None, 0, 4) == ()


@pytest.mark.parametrize(("layers", "stages"), [(8, 2), (8, 3), (4, 4), (9, 8)])
def test_stages_share_the_layers_in_order_and_none_goes_without(layers: int, stages: int) -> None:
    parts = [list(layers_of_stage(layers, stage, stages)) for stage in range(stages)]
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert min(map(len, parts)) >= 1
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
