"""Lines with a clock that go on behind the last step: a job that stands still, and one that does something else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.diagnose.asking import answer_to

_PRINTED = "[default7]: iteration  450/  9000 | elapsed time per iteration (s): 40.00 | lm loss: 2.1E+00 |\n"
_SEEN = "".join(f"[2026-03-01 09:{minute:02}:00] step {minute} loss 2.1\n" for minute in range(0, 50, 10))
_BEATS = "[2026-03-01 {:02}:{:02}:11] beat: run 7 goes on since {:02}:{:02}:00\n[2026-03-01 {:02}:{:02}:12] beat: 3 nodes are spare\n"


def _beats(minutes: Iterable[int], begin: int = 10) -> str:
    clocks = (divmod(begin * 60 + minute, 60) for minute in minutes)
    return "".join(_BEATS.format(*clock, *clock, *clock) for clock in clocks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_PRINTED + _beats(range(0, 121, 60)), "no step for 2 h"),
        (_SEEN + _beats(range(0, 121, 10)), "no step for 2 h"),
        (
            _SEEN + "Saving checkpoint\n" + _SEEN.replace(" 09:", " 10:") + _beats(range(0, 300, 60), 11),
            "no step for 4 h",
        ),
        (_SEEN + "".join(f"[2026-03-01 {hour}:00:11] rank {n} waits\n" for hour in (10, 11, 12) for n in range(256)), "no step for 2 h"),
        (_SEEN + "".join(f"[2026-03-01 {hour}:00:11] rank {n} waits\n----\n" for hour in (10, 11, 12) for n in range(20)), "no step for 2 h"),
    ],
    ids=["as printed", "as clocks show", "a checkpoint before the last step", "of many ranks", "with rules between"],
)  # fmt: skip
def test_a_heartbeat_for_hours_behind_the_last_step_is_a_stall(text: str, words: str, tmp_path: Path) -> None:
    answer = answer_to(text, tmp_path)
    assert answer.verdict == "unknown"
    assert answer.cause is not None
    assert (answer.cause.what, words in answer.cause.text) == ("stalled", True), answer.cause.text


@pytest.mark.parametrize(
    "text",
    [
        _SEEN + _beats(range(0, 25, 5)),
        (_SEEN + _beats([0, 10], 23)).replace("-03-01", "-04-30") + _beats([0, 10], 0).replace("-03-01", "-05-01"),
        _SEEN + _beats([0, 30, 60]),  # a step took 10 minutes
        _PRINTED.replace("40.00", "400.0") + _beats([0, 60, 120]),
        _SEEN + _beats([0, 60, 120]) + "[2026-03-01 13:00:00] step 60 loss 2.0\n",
        _SEEN + "Saving checkpoint\n" + _beats([0, 60, 120]),
        _SEEN + _beats([0, 60]) + "[2026-03-01 11:30:00] evaluated 400 of 9000 samples\n" + _beats([120, 180, 240]),
        _SEEN + _beats([0, 60]) + "".join(f"shard {n} of 9 is packed\n" for n in range(9)) + _beats([120, 180]),
        _SEEN + "training finished\n" + _beats([0, 60, 120]),
        _SEEN.replace("step 40", "step   40/   40") + _beats([0, 60, 120]),
        _SEEN + _beats([0, 60, 120], 6),
        _SEEN + "$ cat beats.log\n" + _beats([0, 60, 120]),
        _beats([0, 60, 120]) + _SEEN.replace(" 09:", " 13:"),
        "Epoch 1 loss 2.1\n" + _beats([0, 60, 120]),
    ],
    ids=[
        *(
            "minutes",
            "a month's end",
            "slow steps",
            "slow steps, printed",
            "a later step",
            "a checkpoint",
            "an evaluation",
            "other work",
        ),
        *(
            "its end",
            "its last step",
            "times before the last step",
            "another text",
            "before the steps",
            "unknown steps",
        ),
    ],
)
def test_a_heartbeat_of_a_job_that_may_work_is_none(text: str, tmp_path: Path) -> None:
    assert answer_to(text, tmp_path).verdict == "nothing"
