"""What a run's figures mean: the right rank and cause, and no alarm on what is fine."""

from __future__ import annotations

import re
from functools import partial
from math import inf

import msgspec
import pytest

from gpudoctor.diagnose.diagnosis import Cause
from gpudoctor.run.findings.progress import stood_to_the_end
from gpudoctor.run.findings.rare_steps import rare_steps
from gpudoctor.run.observer.layout import BACKWARD, DATA, FORWARD, HOST, PHASES, WAIT
from gpudoctor.run.record_reader import SampledLine
from gpudoctor.run.report import FlatFinding, as_finding, judged, rank_report, throughput
from gpudoctor.run.step_series import StepSeries, TimedStep, without_stalls
from gpudoctor.run.text import render_text
from gpudoctor.run.watched import RunStall, StoppedRank, Watched, WatchedRank
from tests.run.runs import USUAL_MS, more, only, problems, rank, report_of


def watched(*ranks: WatchedRank, **fields: object) -> Watched:
    return msgspec.structs.replace(Watched(ranks=ranks, world_size=len(ranks)), **fields)


def found_by(finding: FlatFinding) -> str:
    return finding.found.text if finding.found else ""


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_equal_ranks_are_fine(size: int) -> None:
    for seed in range(20):
        assert problems(watched(*(rank(n, seed=seed, noise=0.3) for n in range(size)))) == []


@pytest.mark.wide
def test_a_rank_that_computes_15_percent_longer_is_named_every_time() -> None:
    for seed in range(20):
        ranks = [rank(n, seed=seed, noise=0.2) for n in range(4)]
        ranks[2] = rank(2, seed=seed, noise=0.2, wall=more(BACKWARD, 0.15 * sum(USUAL_MS[1:4])))
        assert only(watched(*ranks))[:2] == ("run.balance", 2)


@pytest.mark.parametrize(
    ("phase", "check", "words"), [(DATA, "run.data", "slow data"), (HOST, "run.host", "host time")]
)
def test_the_part_of_the_step_decides_the_cause(phase: int, check: str, words: str) -> None:
    found = only(watched(rank(0), rank(1, wall=more(phase, 4.0))))
    assert found[:2] == (check, 1)
    assert words in found[2]


def test_larger_batches_explain_slow_compute() -> None:
    slow = rank(1, wall=more(BACKWARD, 5.0), elements=lambda n: 96.0)
    assert only(watched(rank(0), slow))[:2] == ("run.batch", 1)


def test_batches_of_which_now_one_now_another_rank_has_the_largest_name_no_rank() -> None:
    ranks = [rank(n, wall=more(WAIT, 6.0), elements=lambda step, n=n: (40.0, 100.0)[(step + n) % 2]) for n in range(2)]
    assert only(watched(*ranks))[:2] == ("run.batch", None)


def test_a_rank_that_always_has_the_largest_batch_is_named_even_if_its_compute_is_a_small_part() -> None:
    found = only(watched(rank(0, wall=more(WAIT, 6.0)), rank(1, wall=more(WAIT, 6.0), elements=lambda n: 96.0)))
    assert found[:2] == ("run.batch", 1)
    assert "rank 1 has the largest" in found[2]


def test_batches_that_are_mostly_equal_name_no_rank() -> None:
    # two steps of three are equal, and then the first rank has no larger one than the others
    def rows(step: int, number: int) -> float:
        return 400.0 if step % 3 == 0 and step % 2 == number else 40.0

    ranks = [rank(n, wall=more(WAIT, 6.0), elements=partial(rows, number=n)) for n in range(3)]
    assert only(watched(*ranks))[:2] == ("run.batch", None)


def test_a_forward_that_sleeps_is_no_more_work() -> None:
    slow = rank(1, wall=more(FORWARD, 5.0), cpu=USUAL_MS)
    assert "stands still" in only(watched(rank(0), slow))[2]


def line_of(phase: str) -> SampledLine:
    return SampledLine(phase, "/home/a/train.py", 88, "compute_more", 3)


def shown(run: Watched) -> tuple[str, list[list[str]]]:
    """The report as text, and the table of its ranks."""
    lines = render_text(report_of(run)).splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("rank  steps"))
    return "\n".join(lines), [line.split() for line in lines[head : head + 3]]


def test_the_finding_and_the_table_show_the_same_figures_on_a_busy_machine_too() -> None:
    busy = rank(0, lacks={FORWARD: 8.0, WAIT: 4.0})
    text, (names, first, second) = shown(watched(busy, rank(1, wall=more(FORWARD, 9.0))))
    assert "its compute takes 27.5 ms a step, theirs 18.5 ms" in text
    assert "waits = 1.0 ms a step for the others, they 1.0 ms" in text
    assert " ".join(names).endswith("host no CPU memory MiB")
    assert (first[3], second[3]) == ("18.5", "27.5")
    assert (first[-2], second[-2]) == ("12.0", "0.0")


def test_the_table_of_the_ranks_fits_80_columns() -> None:
    busy = rank(0, lacks={FORWARD: 8.0, WAIT: 4.0})
    lines = render_text(report_of(watched(busy, rank(1))), width=80).splitlines()
    assert any(line.endswith("host no CPU memory MiB") for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_checkpoint_of_another_rank_does_not_hide_what_a_step_takes() -> None:
    saves = rank(0)
    slow_step = rank(0, wall=more(HOST, 5000.0)).steps[7]
    saves = msgspec.structs.replace(saves, steps=(*saves.steps[:7], slow_step, *saves.steps[8:]))
    (found,) = (each for each in problems(watched(saves, rank(1, wall=more(HOST, 4.0)))) if each.subject.rank == 1)
    assert "it spends 4.5 ms in most steps" in found_by(found)


@pytest.mark.parametrize("gpu", [None, 0])
@pytest.mark.parametrize("places", [(), (line_of("forward"),)])
def test_the_advice_speaks_only_of_what_is_there(gpu: int | None, places: tuple[SampledLine, ...]) -> None:
    ranks = (rank(0, gpu=gpu), rank(1, gpu=None if gpu is None else 1, wall=more(FORWARD, 9.0), places=places))
    advice = " ".join(each.text for each in only_flat(watched(*ranks)).advice)
    assert ("line of code" in advice) == bool(places)
    assert ("GPU" in advice) == (gpu is not None)
    host = only_flat(watched(rank(0), rank(1, wall=more(HOST, 9.0), places=(line_of("host"),) if places else ())))
    assert ("line of code" in host.advice[0].text) == bool(places)


def test_what_is_fine_and_what_was_not_judged_take_a_line_each_and_a_rate_has_no_exponent() -> None:
    text, _ = shown(watched(rank(0, elements=lambda n: 400.0), rank(1, elements=lambda n: 400.0)))
    assert "\nfine: progress, finite, balance, batch, data, host, memory\n" in text
    assert "\nnot judged: utilization (no rank computes on a GPU)" in text
    assert re.search(r" steps/s, 38\d\d\d rows/s of all", text)


def test_a_busy_machine_makes_no_straggler() -> None:
    # all lack CPUs, one a little more: chance
    assert problems(watched(*(rank(n, lacks={FORWARD: 20.0 + n}) for n in range(2)))) == []


def starved(number: int, own: tuple[float, ...], queued_ms: float) -> WatchedRank:
    """A rank that had no CPU for so long in each step."""
    return rank(number, wall=own, lacks={FORWARD: queued_ms}, cpu=own)


def test_on_a_machine_with_more_to_run_than_cores_a_core_on_which_all_is_slower_is_no_straggler() -> None:
    slower = tuple(1.2 * usual for usual in USUAL_MS)
    (found,) = problems(watched(starved(0, USUAL_MS, 200.0), starved(1, slower, 200.0)))
    assert (found.id, found.status.value, found.subject.rank) == ("run.balance", "unknown", 1)
    assert "had no CPU for 89%" in (found.reason or "")
    run = watched(rank(0), rank(1, wall=slower))
    (found,) = problems(run)
    assert (found.status.value, found.subject.rank) == ("unknown", 1)
    assert "in all phases alike" in (found.reason or "")
    # beside a hang that is no news
    stood = msgspec.structs.replace(run, stalls=(RunStall(after_s=10, stood_s=12, ranks=(WAITS, STANDS)),))
    assert [each.id for each in problems(stood)] == ["run.progress"]
    assert "not judged: balance (too uneven to judge before the run stood still)" in shown(stood)[0]


def test_a_rank_that_is_slower_in_all_phases_is_named_if_it_is_bound_to_its_core_or_slower_by_half() -> None:
    slower = tuple(1.2 * usual for usual in USUAL_MS)
    assert only(watched(rank(0, cpus=(0,)), rank(1, cpus=(1,), wall=slower)))[:2] == ("run.balance", 1)
    assert only(watched(rank(0, gpu=0), rank(1, gpu=1, wall=slower)))[:2] == ("run.balance", 1)
    slower = tuple(1.6 * usual for usual in USUAL_MS)
    assert only(watched(rank(0), rank(1, wall=slower)))[:2] == ("run.balance", 1)


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD])
def test_more_work_in_one_phase_stands_out_from_the_rest_of_the_step_on_any_machine(phase: int) -> None:
    for seed in range(5):
        ranks = [starved(n, tuple(ms * (1.0 + 0.1 * ((n + seed) % 3)) for ms in USUAL_MS), 200.0) for n in range(3)]
        assert [found for found in problems(watched(*ranks)) if found.status.value == "warn"] == []
        ranks[1] = starved(1, more(phase, 0.18 * sum(USUAL_MS)), 200.0)
        (found,) = (found for found in problems(watched(starved(0, USUAL_MS, 200.0), *ranks[1:2])))
        assert (found.id, found.status.value, found.subject.rank) == ("run.balance", "warn", 1)


def test_a_rank_on_a_busy_core_is_named_for_that() -> None:
    crowded = rank(1, lacks={FORWARD: 18.0}, cpus=(0,), cpu_neighbour="pid 7 (stress)")
    found = only(watched(rank(0), crowded))
    assert found[:2] == ("run.balance", 1)
    assert "pid 7 (stress)" in found[2]


def test_which_of_equal_processes_lacks_a_cpu_is_chance() -> None:
    assert problems(watched(rank(0, cpus=(0, 1)), rank(1, lacks={FORWARD: 18.0}, cpus=(0, 1)))) == []


@pytest.mark.parametrize("phase", [DATA, HOST])
def test_a_share_that_only_lacks_a_cpu_is_no_share(phase: int) -> None:
    assert problems(watched(rank(0, lacks={phase: 20.0}))) == []
    assert problems(watched(rank(0, wall=more(phase, 20.0)))) != []


@pytest.mark.parametrize("phase", [DATA, HOST])
@pytest.mark.parametrize(("factor", "steps", "status"), [(0.1, 400, "pass"), (1.0, 20, "skip"), (1.0, 400, "warn")])
def test_a_share_is_judged_by_what_it_costs(phase: int, factor: float, steps: int, status: str) -> None:
    """Less than a batch costs anyway is no finding, and a short run says too little."""
    wall = tuple(factor * ms for ms in more(phase, 8.0))
    found = next(f for f in judged(watched(rank(0, steps=steps, wall=wall))) if f.id == f"run.{PHASES[phase]}")
    assert found.status.value == status


def test_workers_of_a_loader_lack_cpus_too_so_that_little_more_waiting_for_them_is_chance() -> None:
    lacks = partial(rank, lacks={FORWARD: 20.0}, cpu=USUAL_MS)
    for workers, status in ((2, "unknown"), (0, "warn")):  # without workers it is the rank itself that waits
        slow = lacks(1, wall=more(DATA, 8.0), loader_workers=workers)
        found = problems(watched(lacks(0, loader_workers=workers), slow))
        assert [each.status.value for each in found if each.subject.rank == 1] == [status]


def test_loaders_on_a_machine_where_a_rank_hardly_ever_has_a_cpu_are_not_judged() -> None:
    lacks = partial(rank, 0, wall=more(DATA, 10.0), lacks={FORWARD: 150.0}, cpu=USUAL_MS)
    (found,) = problems(watched(lacks(loader_workers=2)))
    assert (found.id, found.status.value) == ("run.data", "unknown")
    assert "too busy" in (found.reason or "")
    (found,) = problems(watched(lacks()))  # its own time, not that of workers
    assert (found.id, found.status.value) == ("run.data", "warn")


def test_too_few_steps_are_not_compared() -> None:
    run = watched(rank(0, steps=9), rank(1, steps=9, wall=more(FORWARD, 50.0)))
    assert ("run.balance", "skip") in [(found.id, found.status.value) for found in judged(run)]


def test_memory_that_grows_with_every_step_is_a_leak_and_a_cache_that_fills_is_not() -> None:
    leak = rank(1, memory=lambda n: 400.0 + n)
    assert only(watched(rank(0), leak))[:2] == ("run.memory", 1)
    cache = rank(1, memory=lambda n: 400.0 + min(n, 60) * 2)
    assert problems(watched(rank(0), cache)) == []
    settles = rank(1, steps=60, memory=lambda n: 431.0 + 0.54 * n)  # a clean training's, seen
    assert problems(watched(rank(0, steps=60), settles)) == []
    assert only(watched(rank(0, steps=60), rank(1, steps=60, memory=lambda n: 431.0 + n)))[:2] == ("run.memory", 1)


def test_the_rank_with_the_first_bad_loss_is_named() -> None:
    assert only(watched(rank(0, bad_loss=41), rank(1, bad_loss=40)))[:2] == ("run.finite", 1)
    together = watched(rank(0, bad_gradient=40, bad_loss=41), rank(1, bad_gradient=40, bad_loss=41))
    assert only(together)[:2] == ("run.finite", None)


def test_the_memory_limit_of_a_cgroup_is_named() -> None:
    gone = rank(1, ending="abrupt", ended_s=5.0)
    found = problems(watched(rank(0), gone, oom_kills=1, exit_code=1))
    assert [(f.id, f.subject.rank) for f in found if f.status.value == "fail"][-1] == ("run.memory", 1)


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6816. This is typical"


@pytest.mark.parametrize(
    ("ending", "error", "words"),
    [
        ("exception", "ValueError: boom", "raised ValueError: boom"),
        ("abrupt", None, "killed by a signal, or by os._exit"),
        ("normal", None, "left by itself"),
    ],
)
def test_the_first_to_end_is_named_and_not_who_lost_it(ending: str, error: str | None, words: str) -> None:
    # the end of a killed rank is noticed after the other has raised
    culprit = rank(1, ending=ending, error=error, ended_s=5.2)
    victim = rank(0, ending="exception", error=LOST, ended_s=5.1)
    (finding,) = problems(watched(victim, culprit, exit_code=1))
    assert (finding.id, finding.subject.rank, finding.status.value) == ("run.progress", 1, "fail")
    assert words in found_by(finding)


TIMED_OUT = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation"
HUNG = Cause("rank_hung", 1, None, None, "likely", "the others timed out waiting")


def timed_out(number: int) -> WatchedRank:
    return rank(number, ending="exception", error=TIMED_OUT, ended_s=37.92)


def killed(number: int, ended_s: float) -> WatchedRank:
    return rank(number, ending="abrupt", ended_s=ended_s, lived_s=ended_s - 0.2)


@pytest.mark.parametrize("ending", ["abrupt", "normal"])  # by the launcher's signal, which a rank may handle
def test_who_still_ran_when_another_rank_gave_up_waiting_is_not_the_first_to_end(ending: str) -> None:
    left = rank(1, ending=ending, ended_s=42.04, lived_s=41.9)
    (finding,) = problems(watched(timed_out(0), left, exit_code=1))
    assert (finding.id, finding.subject.rank, finding.status.value) == ("run.progress", 1, "fail")
    assert "rank 0 waited for it, after step 120, and gave up: it raised" in found_by(finding)
    assert finding.likely == "it hung or fell far behind; it still ran when rank 0 ended"
    assert ("4.1 s after rank 0" in finding.evidence[1].value) == (ending == "abrupt")


def test_of_several_that_still_ran_the_one_that_the_logs_name_was_waited_for() -> None:
    left = [rank(n, ending="abrupt", ended_s=42.0, lived_s=41.9) for n in (1, 2)]
    run = watched(timed_out(0), *left, exit_code=1)
    (finding,) = problems(run)
    assert (finding.subject.rank, "which one is not known" in (finding.likely or "")) == (None, True)
    (finding,) = problems(msgspec.structs.replace(run, cause_in_logs=HUNG))
    assert finding.subject.rank == 1


def test_a_rank_that_its_watchdog_ended_waited_for_the_one_that_the_logs_name() -> None:
    run = watched(killed(0, 600.0), killed(1, 605.0), exit_code=1)
    assert only_flat(run).subject.rank == 0
    assert only_flat(msgspec.structs.replace(run, cause_in_logs=HUNG)).subject.rank == 1


def test_who_was_killed_long_after_another_had_lost_a_peer_is_not_the_first_to_end() -> None:
    lost = rank(0, ending="exception", error=LOST, ended_s=5.1)  # a rank of another node
    (finding,) = problems(watched(lost, killed(1, 9.0), exit_code=1))
    assert (finding.subject.rank, "first to end" in (finding.likely or "")) == (0, True)


def test_who_ended_in_the_same_look_as_a_rank_gave_up_was_waited_for_since_a_dead_peer_is_lost_at_once() -> None:
    (finding,) = problems(watched(timed_out(0), killed(1, 38.0), exit_code=1))
    assert (finding.subject.rank, finding.likely) == (1, "it hung or fell far behind")


def test_an_error_that_only_speaks_of_a_timeout_is_the_rank_s_own() -> None:
    own = rank(1, ending="exception", error="ReadTimeout: HTTPSConnectionPool: Read timed out", ended_s=5.0)
    (finding,) = problems(watched(killed(0, 9.0), own, exit_code=1))
    assert (finding.subject.rank, "raised ReadTimeout" in found_by(finding)) == (1, True)


def test_the_first_to_end_does_not_contradict_what_the_logs_say() -> None:
    run = watched(rank(0, ending="abrupt", ended_s=5.0), killed(1, 9.0), exit_code=1)
    assert "follows from that" in (only_flat(run).likely or "")
    cause = msgspec.structs.replace(HUNG, what="gpu_xid")
    assert "its logs name rank 1" in (only_flat(msgspec.structs.replace(run, cause_in_logs=cause)).likely or "")


def test_a_rank_that_leaves_the_loop_early_is_a_warning_if_the_run_ends_well() -> None:
    found = problems(watched(rank(0), rank(1, finished=60), rank(2)))
    assert [(f.id, f.subject.rank, f.status.value) for f in found] == [("run.progress", 1, "warn")]


def test_a_signal_from_outside_is_no_failure_of_a_rank() -> None:
    assert problems(watched(rank(0), rank(1), exit_code=130, sent=(2,))) == []


WAITS = StoppedRank(rank=0, finished=20, waits=True, phase="wait", collective="all_reduce", place="train.py:9 in main")
STANDS = StoppedRank(rank=1, finished=20, phase="forward", place="train.py:29 in forward", code="x = wait_for_ever()")


def test_the_rank_that_does_not_come_to_the_collective_is_named_with_its_line() -> None:
    stall = RunStall(after_s=10, stood_s=12, ranks=(WAITS, STANDS), ended_by_us=True)
    (finding,) = problems(watched(rank(0), rank(1), stalls=(stall,), exit_code=1))
    assert (finding.id, finding.subject.rank) == ("run.progress", 1)
    assert "train.py:29 in forward: x = wait_for_ever()" in found_by(finding)


def test_a_hang_is_told_once_and_a_job_that_stood_has_no_rate() -> None:
    stands = msgspec.structs.replace(
        STANDS, phase="data", callers=("train.py:40 in main",), workers=("2 of 2 in read.py:7 in read_file",)
    )
    stall = RunStall(after_s=10, stood_s=12, ranks=(WAITS, stands), ended_by_us=True)
    # how the ranks ended follows from the signal that was sent
    run = watched(rank(0, ending="exception", error="SignalException"), rank(1, ending="abrupt"), stalls=(stall,))
    (finding,) = problems(msgspec.structs.replace(run, exit_code=1))
    shown = {each.source: each.value for each in finding.evidence}
    assert shown.pop("called from") == "train.py:40 in main"
    assert shown.pop("its loader's workers") == "2 of 2 in read.py:7 in read_file"
    assert list(shown) == ["rank 0"]
    assert throughput(run) is None


def test_the_time_of_a_stall_is_no_part_of_a_step() -> None:
    def ended(seconds: float, step_ms: float) -> TimedStep:
        return TimedStep(0, (step_ms, *USUAL_MS[1:]), (), (), end_ns=seconds * 1e9)

    ranks = [[ended(1.0, 10.0), ended(31.0, 30_000.0), ended(31.1, 10.0)] for _ in range(2)]
    assert [len(steps) for steps in without_stalls(ranks, [(1.0e9, 31.0e9)])] == [2, 2]
    assert [len(steps) for steps in without_stalls(ranks, [(1.0e9, inf)])] == [1, 1]
    assert without_stalls(ranks, []) == ranks


def test_a_stall_that_resolved_itself_is_a_warning() -> None:
    stall = RunStall(after_s=10, stood_s=12, ranks=(WAITS, STANDS), resumed=True)
    assert [f.status.value for f in problems(watched(rank(0), rank(1), stalls=(stall,)))] == ["warn"]


@pytest.mark.parametrize("stood_after", [False, True])  # until the launcher had ended the rest
def test_a_stall_after_which_a_rank_only_gave_up_waiting_did_not_resolve_itself(stood_after: bool) -> None:
    stall = RunStall(after_s=8, stood_s=18, ranks=(WAITS, STANDS), resumed=True)
    after = RunStall(after_s=8, stood_s=9, ranks=(StoppedRank(rank=0, finished=20, gone=True), STANDS))
    gave_up = msgspec.structs.replace(timed_out(0), finished=20)
    left = rank(1, finished=20, ending="abrupt", ended_s=52.04, lived_s=51.9)
    run = stood_to_the_end(watched(gave_up, left, stalls=(stall, after)[: 1 + stood_after], exit_code=1))
    (finding,) = problems(run)
    text = found_by(finding)
    assert (finding.subject.rank, finding.status.value, run.stalls[-1].resumed) == (1, "fail", False)
    assert "train.py:29 in forward: x = wait_for_ever()" in text
    assert "; then rank 0 raised RuntimeError" in text
    assert "went on" not in text


@pytest.mark.parametrize("more_steps", [0, 4])
def test_a_stall_that_resolved_itself_before_a_rank_failed_did_so(more_steps: int) -> None:
    stall = RunStall(after_s=8, stood_s=18, ranks=(WAITS, STANDS), resumed=True)
    first = timed_out(0) if more_steps else rank(0, ending="exception", error="ValueError: boom", ended_s=5.0)
    ranks = [first, rank(1, ending="abrupt", ended_s=42.04, lived_s=41.9)]
    ranks = [msgspec.structs.replace(each, finished=20 + more_steps) for each in ranks]
    found = problems(stood_to_the_end(watched(*ranks, stalls=(stall,), exit_code=1)))
    assert [each.status.value for each in found] == ["warn", "fail"]
    assert "then it went on" in found_by(found[0])


@pytest.mark.parametrize(("first", "told"), [(0, [1]), (1, [1, 1])])
def test_how_a_rank_ended_that_waited_in_a_stall_follows_from_it(first: int, told: list[int]) -> None:
    stall = RunStall(after_s=8, stood_s=18, ranks=(WAITS, STANDS))
    ends = [killed(n, 5.0 if n == first else 9.0) for n in range(2)]
    assert [each.subject.rank for each in problems(watched(*ends, stalls=(stall,), exit_code=1))] == told


def test_a_rank_that_is_gone_or_in_another_collective_is_the_missing_one() -> None:
    gone = StoppedRank(rank=1, finished=12, gone=True)
    other = msgspec.structs.replace(WAITS, rank=2, collective="broadcast")
    for missing, ranks in ((1, (WAITS, gone)), (2, (WAITS, msgspec.structs.replace(WAITS, rank=1), other))):
        stall = RunStall(after_s=10, stood_s=12, ranks=ranks)
        (finding,) = problems(watched(rank(0), rank(1), stalls=(stall,)))
        assert finding.subject.rank == missing


def test_every_millisecond_of_the_step_has_a_name() -> None:
    report = rank_report(rank(0), "node")
    assert report.phases is not None
    assert sum(getattr(report.phases, name) for name in PHASES) == pytest.approx(report.step_ms, abs=0.01)
    assert throughput(watched(rank(0), rank(1))) is not None


def test_a_finding_has_the_shape_of_check() -> None:
    flat = only_flat(watched(rank(0), rank(1, wall=more(DATA, 5.0))))
    assert as_finding(flat).status.value == "warn"


def only_flat(run: Watched) -> FlatFinding:
    return problems(run)[0]


def _with_long_steps(number: int, every: int, ms: float, **changes: object) -> WatchedRank:
    made = rank(number, **changes)  # type: ignore[arg-type]
    wall = tuple(usual + ms * (phase == HOST) for phase, usual in enumerate(made.steps[0].wall_ms))
    long = (
        msgspec.structs.replace(step, wall_ms=wall) if step.number % every == every - 1 else step for step in made.steps
    )
    return msgspec.structs.replace(made, steps=tuple(long))


def test_a_rank_that_holds_others_up_rarely_but_long_is_told_in_a_note_and_changes_no_verdict() -> None:
    waiting = rank(0, wall=more(WAIT, 10.0))
    (line,) = rare_steps(run := watched(waiting, _with_long_steps(1, 40, 300.0, wall=more(WAIT, 10.0))))
    assert line.startswith(
        "rank 1 held the others up in 3 of 120 steps, by up to 300 ms (host; a usual step takes 31 ms)"
    )
    assert [finding for finding in problems(run) if finding.subject.rank == 1] == []
    nothing = (
        watched(waiting, rank(1, noise=0.3)),
        watched(waiting, _with_long_steps(1, 120, 100.0)),  # 4 % of the time
        watched(rank(0, wall=more(WAIT, 80.0)), _with_long_steps(1, 4, 400.0)),  # a finding names it
        watched(rank(0), _with_long_steps(1, 40, 300.0)),  # nobody waited
        watched(_with_long_steps(0, 40, 300.0), _with_long_steps(1, 40, 300.0)),  # both at once
        watched(_with_long_steps(0, 40, 300.0)),
        watched(waiting, _with_long_steps(1, 5, 300.0, steps=10)),
    )
    assert [list(rare_steps(each)) for each in nothing] == [[]] * len(nothing)


def _in_pairs(made: WatchedRank) -> WatchedRank:
    """As a long run keeps it: each two steps are one, their mean."""
    series = StepSeries()
    for step in made.steps:
        series.add(step)
    series.coarsen()
    return msgspec.structs.replace(made, steps=tuple(series.steps().values()))


def test_of_a_long_run_that_keeps_means_of_steps_the_note_tells_the_whole_delay() -> None:
    waiting = rank(0, wall=more(WAIT, 10.0))
    long = _with_long_steps(1, 40, 300.0, wall=more(WAIT, 10.0))
    (line,) = rare_steps(watched(_in_pairs(waiting), _in_pairs(long)))
    assert line.startswith("rank 1 held the others up in 3 of 60 stretches of 2 steps, by up to 300 ms (host; a usual")
