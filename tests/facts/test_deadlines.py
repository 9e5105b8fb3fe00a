"""The table of deadlines: its guarantees to callers."""

from __future__ import annotations

from gpudoctor.facts import deadlines
from gpudoctor.facts.deadlines import CALL, COLLECTION, START, Deadline

ROWS = {name: row for name, row in vars(deadlines).items() if isinstance(row, Deadline)}


def test_every_deadline_has_a_source() -> None:
    assert len(ROWS) >= 7
    assert all(row.seconds > 0 and len(row.source.split()) >= 5 for row in ROWS.values())


def test_a_call_may_stall_for_as_long_as_ranks_hold_the_drivers_lock() -> None:
    assert CALL.seconds >= 10.0


def test_sixteen_gpus_that_sleep_may_wake_one_after_the_other() -> None:
    assert START.seconds >= 16 * 3.0


def test_a_start_and_a_call_that_both_hang_are_told_in_about_a_minute() -> None:
    assert START.seconds + CALL.seconds <= COLLECTION.seconds <= 60.0
