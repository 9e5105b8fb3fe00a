"""CUDA refuses a GPU (error 46, "busy or unavailable"): because of its setting, because it is in use, or because it is
broken.

The machines: a node with one GPU in exclusive mode under Spectrum LSF or Slurm; E3SM 8699 and TensorRT 3822, where a
GPU in Default mode answers this to every process until it is reset.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import GpuProcess, Settings
from gpudoctor.facts.model.measurements import Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.probes.runner.errors import meaning_of
from gpudoctor.probes.runner.messages import RankFailure
from gpudoctor.probes.runner.rank_state import RankState, failure_problems
from tests.checks.measured import measured
from tests.checks.one_check import expect, finds, gpus, judge, words
from tests.narrowed import present

CORRECT, SYNC, BANDWIDTH = "collective.correct", "train.sync", "collective.bandwidth"
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"


def eight(index: int, mode: Any = "default", **leaves: Any) -> Node:
    """Eight GPUs, all idle and in default mode, except for the one at `index`."""
    idle: dict[str, Any] = {"processes": (), "memory_used_mib": 4, "settings": Settings(compute_mode="default")}
    odd = {"settings": Settings(compute_mode=mode), **leaves}
    return Node(gpus=tuple(msgspec.structs.replace(g, **(idle | (odd if g.index == index else {}))) for g in gpus(8)))


def refused(*ranks: int, phase: str = "ask torch") -> tuple[ProbeProblem, ...]:
    """The verdict if these ranks, of eight, got this error at their start."""
    states = [RankState(number, phase=phase) for number in range(8)]
    for number in ranks:
        meaning = present(meaning_of(BUSY))
        states[number].failure = RankFailure(meaning.kind, f"{meaning.plain} ({BUSY})", blocked=False)
    return failure_problems(states)


def on_gpus(problems: tuple[ProbeProblem, ...]) -> Measurements:
    not_run = dict.fromkeys(("collective", "train"), Missing(problems[0].text, "failed"))
    return measured(Node(gpus=gpus(8)), problems=problems, not_run=not_run)


@pytest.mark.parametrize("check_id", [CORRECT, SYNC])
def test_a_gpu_in_default_mode_that_takes_no_process_fails(check_id: str) -> None:
    result = judge(check_id, eight(3), on_gpus(refused(3)))
    finds([f for f in result.findings if f.status is not Status.PASS], Status.FAIL, gpu=3)
    assert "busy or unavailable" in words(result)


@pytest.mark.parametrize("mode", ["exclusive-process", "exclusive-thread", "prohibited"])
@pytest.mark.parametrize("check_id", [CORRECT, SYNC, BANDWIDTH])
def test_a_gpu_that_is_set_to_take_none_is_not_tried(mode: str, check_id: str) -> None:
    expect(judge(check_id, eight(3, mode), on_gpus(refused(3))), Status.SKIP, f"compute mode is {mode}")


@pytest.mark.parametrize(
    "leaves",
    [
        {"mode": Missing("asked in vain", "failed")},
        {"mode": Missing("not supported", "unsupported")},
        {"processes": (GpuProcess(4711, "python"),)},
        {"memory_used_mib": 79_000},  # of a job in another container, which `--force` loads
    ],
)
def test_where_something_else_may_be_the_cause_nobody_is_convicted(leaves: dict[str, Any]) -> None:
    assert judge(CORRECT, eight(3, **leaves), on_gpus(refused(3))).status is Status.UNKNOWN


def test_what_lacks_a_figure_for_it_is_no_pass_and_no_second_failure() -> None:
    assert judge(BANDWIDTH, eight(3), on_gpus(refused(3))).status is Status.UNKNOWN


def test_a_gpu_that_is_set_so_does_not_hide_one_that_is_broken() -> None:
    result = judge(CORRECT, eight(1, "exclusive-process"), on_gpus(refused(1, 5)))
    assert {f.subject.gpu: f.status for f in result.findings} == {1: Status.SKIP, 5: Status.FAIL}


def test_a_refusal_does_not_hide_the_crash_of_another_gpu() -> None:
    broken, closed = RankState(6), RankState(0)
    broken.failure = RankFailure("crash", "uncorrectable ECC error encountered", blocked=False)
    closed.failure = RankFailure("refused", BUSY, blocked=False)
    assert [(p.kind, p.rank) for p in failure_problems([closed, broken])] == [("crash", 6), ("refused", 0)]


def test_in_the_middle_of_the_link_probe_it_may_be_any_gpus_answer() -> None:
    odd = ProbeProblem("collective", "refused", f"rank 3 failed in copy from GPU 5: {BUSY}", 3, "copy from GPU 5")
    assert judge(CORRECT, eight(3), on_gpus((odd,))).status is Status.UNKNOWN


def test_memory_that_a_job_holds_beside_which_load_was_forced_is_not_the_gpus_fault() -> None:
    full = ProbeProblem("launch", "out-of-memory", "rank 3 failed in ask torch: CUDA error: out of memory", 3)
    assert judge(CORRECT, eight(3), on_gpus((full,))).status is Status.FAIL
    assert judge(CORRECT, eight(3, memory_used_mib=80_000), on_gpus((full,))).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "error"),
        ("CUDA error: out of memory", "out-of-memory"),
        ("CUDA error: initialization error", "error"),
        ("CUDA driver initialization failed, you might not have a CUDA gpu.", "error"),
        ("CUDA error: unspecified launch failure", "crash"),
        ("CUDA error: uncorrectable ECC error encountered", "crash"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "crash"),
        ("CUDA error: invalid device ordinal", "error"),
        ("No CUDA GPUs are available", "error"),
        ("CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server", "error"),
        ("CUDA error: MPS server is not ready to accept new MPS client requests", "error"),
        ("CUDA error: OS call failed or operation not supported on this OS", "error"),
    ],
)
def test_what_cuda_says_is_never_harmless(text: str, kind: str) -> None:
    meaning = present(meaning_of(text))
    assert meaning.kind == kind
    state = RankState(0, phase="ask torch")
    state.failure = RankFailure(meaning.kind, text, blocked=False)
    status = judge(CORRECT, eight(0), on_gpus(failure_problems([state]))).status
    assert status is (Status.UNKNOWN if kind == "error" else Status.FAIL)


def test_words_that_nobody_knows_are_unknown() -> None:
    text = "CUDA error: words of a later version"
    assert meaning_of(text) is None
    state = RankState(0, failure=RankFailure("error", text, blocked=False))
    assert judge(CORRECT, eight(0), on_gpus(failure_problems([state]))).status is Status.UNKNOWN
