"""Which ranks are named when ranks hang, die or fail together."""

from __future__ import annotations

import signal
from typing import Any

from gpudoctor.probes.runner.board import BoardEntry
from gpudoctor.probes.runner.messages import RankFailure
from gpudoctor.probes.runner.rank_state import RankState, failure_problems, slow_problem, timeout_problem


def _state(number: int, moves: int, phase: str = "all_reduce of 64 MiB", step: int = 0, **known: Any) -> RankState:
    return RankState(number, "collective", phase, BoardEntry(moves, step), **known)


def test_the_rank_behind_all_others_hangs_and_the_others_wait() -> None:
    states = [_state(0, 12), _state(1, 12), _state(2, 12), _state(3, 11)]
    problem = timeout_problem(states, 20.0)
    assert problem.text == "rank 3 did not leave all_reduce of 64 MiB within 20 s; ranks 0, 1, 2 wait for it"
    assert (problem.rank, problem.waiting, problem.kind) == (3, (0, 1, 2), "timeout")


def test_ranks_that_still_move_are_slow_and_nobody_hangs() -> None:
    problem = slow_problem([_state(0, 40, "train step", 9), _state(1, 39, "train step", 8)], 30.0)
    assert (problem.kind, problem.rank, problem.phase) == ("error", None, "train step 8")
    assert "no rank hangs" in problem.text


def test_where_all_ranks_are_in_the_same_call_nobody_is_named() -> None:
    problem = timeout_problem([_state(0, 12), _state(1, 12)], 20.0)
    assert problem.text == "no rank left all_reduce of 64 MiB within 20 s: all of them are in it"
    assert (problem.rank, problem.waiting) == (None, ())


def test_several_ranks_behind_are_all_named() -> None:
    problem = timeout_problem([_state(0, 3, "join"), _state(1, 3, "join"), _state(2, 4, "join")], 5.0)
    assert problem.text == "ranks 0, 1 did not leave join within 5 s; rank 2 waits for them"


def test_a_rank_that_has_left_neither_hangs_nor_waits() -> None:
    problem = timeout_problem([_state(0, 99, left=True), _state(1, 12, "train step", 7)], 5.0)
    assert (problem.rank, problem.phase, problem.waiting) == (1, "train step 7", ())


def test_a_rank_that_died_explains_the_errors_of_those_that_waited_for_it() -> None:
    held_up = _state(0, 12, failure=RankFailure("error", "Connection closed by peer", blocked=True))
    for number, kind in ((signal.SIGSEGV, "crash"), (signal.SIGKILL, "error"), (signal.SIGTERM, "error")):
        [problem] = failure_problems([held_up, _state(1, 11, status=-number)])
        assert (problem.kind, problem.rank, problem.waiting) == (kind, 1, (0,))
        assert number.name in problem.text


def test_a_rank_that_failed_by_itself_explains_those_that_failed_while_waiting() -> None:
    full = _state(1, 11, failure=RankFailure("out-of-memory", "CUDA out of memory", blocked=False))
    held_up = _state(0, 12, failure=RankFailure("error", "Connection reset by peer", blocked=True))
    [problem] = failure_problems([held_up, full])
    assert (problem.kind, problem.rank, problem.waiting) == ("out-of-memory", 1, (0,))


def test_a_crash_is_told_with_the_last_line_that_the_rank_wrote() -> None:
    dead = _state(0, 3, status=1, output=("Traceback (most recent call last):", "KeyError: 'x'"))
    [problem] = failure_problems([dead])
    assert problem.text == "rank 0 died in all_reduce of 64 MiB: exit code 1 (KeyError: 'x')"
    assert problem.output == dead.output


def test_a_rank_that_ends_by_itself_before_any_probe_is_no_crash_of_a_gpu() -> None:
    for status, kind in ((1, "error"), (-11, "crash")):
        early = RankState(0, status=status)
        [problem] = failure_problems([early, RankState(1)])
        assert (problem.kind, problem.rank) == (kind, 0)


def test_ranks_that_run_or_have_left_are_no_failure() -> None:
    assert failure_problems([_state(0, 99, left=True, status=0), _state(1, 5)]) == ()


def test_a_watchdog_that_ends_a_process_says_what_it_met() -> None:
    of_memory = (
        "[rank2]:[E1121 ProcessGroupNCCL.cpp:2068] NCCL watchdog thread terminated with exception: "
        "CUDA error: uncorrectable ECC error encountered",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57",
    )
    of_software = ("[rank2]: CUDA error: device-side assert triggered",)
    [problem] = failure_problems([_state(2, 11, status=-6, output=of_memory)])
    assert (problem.kind, problem.rank) == ("crash", 2)
    assert "ended by SIGABRT: the GPU met an error in its memory that ECC cannot correct" in problem.text
    for status, kind in ((-6, "error"), (-11, "crash")):  # a defect of software, unless the kernel ended it
        [problem] = failure_problems([_state(2, 11, status=status, output=of_software)])
        assert problem.kind == kind


def test_a_gpus_own_error_explains_those_that_failed_while_waiting_for_it() -> None:
    broken = _state(3, 12, failure=RankFailure("crash", "the GPU stopped in the middle of the work", blocked=False))
    held_up = _state(0, 12, failure=RankFailure("error", "NCCL: remote process exited", blocked=True))
    [problem] = failure_problems([held_up, broken])
    assert (problem.kind, problem.rank, problem.waiting) == ("crash", 3, (0,))
