"""Jobs that were preempted, requeued or stalled for a while: what came after decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.asking import HOROVOD_STALLS, answer_to, cause_of, said

_PREEMPTION = "slurmstepd: error: *** JOB 7 ON gpu01 CANCELLED AT 2025-01-01T00:00:00 DUE TO PREEMPTION ***\n"
_PREEMPTED = (
    "".join(f"step {n} loss 2.1\n" for n in range(20))
    + _PREEMPTION
    + "node1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 - Init COMPLETE\n"
    + "".join(f"step {n} loss 2.0\n" for n in range(18, 40))
)


@pytest.mark.parametrize(
    ("end", "what", "rank"),
    [
        ("Training finished\n", "recovered", None),
        ('[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/t.py", line 9, in f\n[rank1]: KeyError: 3\n', "user_exception", 1),
    ],
    ids=["finished", "failed later"],
)  # fmt: skip
def test_a_requeued_job_is_judged_by_what_came_after(end: str, what: str, rank: int | None, tmp_path: Path) -> None:
    assert said(answer_to(_PREEMPTED + end, tmp_path)) == (what, rank)


@pytest.mark.parametrize(
    ("failure", "what", "rank"),
    [
        ("[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "gpu_ecc", 3),
        ("srun: error: node1: task 3: Segmentation fault (core dumped)\n", "segfault", None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n", "host_oom", None),
    ],
    ids=["a GPU", "a process", "memory"],
)  # fmt: skip
def test_a_step_that_slurm_cancelled_since_it_had_failed_is_no_requeue(
    failure: str, what: str, rank: int | None, tmp_path: Path
) -> None:
    cancelled = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2025-01-01T00:00:00 ***\n"
    text = _PREEMPTED.replace(_PREEMPTION, failure + cancelled)
    text += (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/t.py", line 9, in f\n[rank1]: KeyError: 3\n'
    )
    assert said(answer_to(text, tmp_path)) == (what, rank)


_WORK = "".join(f"step {n} loss 2.0\n" for n in range(8))


_OUT_OF_MEMORY = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
)
_RESUMES = "Resuming from checkpoint /ckpt/7\n" + "".join(f"step {n} loss 2.0\n" for n in range(8, 12))


@pytest.mark.parametrize(
    ("before", "behind", "what"),
    [
        (_WORK, _WORK, "host_oom"),
        (_WORK, f"Loading checkpoint /ckpt/7\n{_WORK}", "host_oom"),
        (_WORK, f"{_WORK}Training finished\n", None),
        (_WORK, _RESUMES, None),
        (f"{_WORK}Training finished\n", _WORK, None),
        ("shards are written\n", _WORK, None),
    ],
    ids=["works on", "is evaluated", "ends", "resumes", "had ended", "had not begun"],
)
def test_slurm_tells_of_memory_when_a_step_has_ended(
    before: str, behind: str, what: str | None, tmp_path: Path
) -> None:
    cause = answer_to(f"{before}{_OUT_OF_MEMORY}{behind}", tmp_path).cause
    assert (cause and cause.what) == what


@pytest.mark.parametrize(
    "told",
    [
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 7.0 cgroup. Some of your processes may have been killed.\n",
        "slurmstepd: error: Step 7.0 exceeded job memory limit at some point.\n",
        "srun: error: gpu01: task 3: Out Of Memory\n",
        "[2025-01-01T00:00:00.123] error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n",
    ],
    ids=["a hyphen", "a limit", "a task", "without its name"],
)  # fmt: skip
def test_slurm_tells_of_memory_in_other_words(told: str, tmp_path: Path) -> None:
    assert said(answer_to(f"{_WORK}{told}{_WORK}", tmp_path))[0] == "host_oom"


@pytest.mark.parametrize("ended", ["Terminated", "Killed", "Hangup", "Interrupt"])
def test_a_process_that_others_ended_before_a_preemption_had_not_failed(ended: str, tmp_path: Path) -> None:
    text = _PREEMPTED.replace(_PREEMPTION, f"srun: error: node1: task 1: {ended}\n{_PREEMPTION}")
    text += (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/t.py", line 9, in f\n[rank1]: KeyError: 3\n'
    )
    assert said(answer_to(text, tmp_path)) == ("user_exception", 1)


@pytest.mark.parametrize(
    ("end", "what", "rank"),
    [
        ("Stalled ops:\nallreduce.b [missing ranks: 3]\n", "rank_behind", 3),
        ("[rank2]: RuntimeError: Connection closed by peer [10.0.0.3]:1234\n", "victims_only", None),
    ],
    ids=["another one stalls later", "a peer was lost later"],
)
def test_a_tensor_that_came_late_blames_no_rank(end: str, what: str, rank: int | None, tmp_path: Path) -> None:
    """Rank 0 wrote a checkpoint while the others waited: Horovod warns, and the work goes on."""
    text = f"{_WORK}{HOROVOD_STALLS}\nStalled ops:\nallreduce.a [missing ranks: 0]\n{_WORK}{end}"
    assert said(answer_to(text, tmp_path)) == (what, rank)


def test_work_of_another_attempt_does_not_end_a_stall(tmp_path: Path) -> None:
    """The next attempt goes further, but what this one hung on is what failed first."""
    stall = f"{HOROVOD_STALLS}\nStalled ops:\nallreduce.a [missing ranks: 1]\n"
    cancelled = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2025-01-01T00:00:00 ***\n"
    text = (
        _PREEMPTED.replace(_PREEMPTION, stall + cancelled)
        + "[rank0]: RuntimeError: Connection closed by peer [10.0.0.3]:1\n"
    )
    assert said(answer_to(text, tmp_path)) == ("rank_behind", 1)


def test_a_requeued_job_that_resumes_is_recovered_while_it_still_runs(tmp_path: Path) -> None:
    text = "".join(f"step {n} loss 2.1\n" for n in range(40)) + _PREEMPTION + "Loaded checkpoint /ckpt/step_38\n"
    cause = cause_of(text + "".join(f"step {n} loss 2.0\n" for n in range(38, 60)), tmp_path)
    assert (cause.what, cause.rank) == ("recovered", None)
    assert "DUE TO PREEMPTION" in cause.text
    assert cause.text.endswith("attempt 1 went further")


@pytest.mark.parametrize(
    "text",
    [
        "  Normal  Preempted  2m  default-scheduler  Preempted by kube-system/critical on node gpu-7\n",
        "  DisruptionTarget  True  PreemptionByScheduler  preempting to accommodate a higher priority pod\n",
    ],
)
def test_kubernetes_says_that_it_preempted_a_pod(text: str, tmp_path: Path) -> None:
    assert said(answer_to(text, tmp_path)) == ("preempted", None)


def test_a_time_limit_is_no_requeue_where_no_new_start_follows(tmp_path: Path) -> None:
    """Standard error before standard output in one file: steps come behind the scheduler's line."""
    text = "Epoch 3: step 9\nslurmstepd: error: *** JOB 7 ON gpu01 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    text += "".join(f"step {n} loss 2.1\n" for n in range(12))
    assert said(answer_to(text, tmp_path)) == ("time_limit", None)


def test_a_step_and_its_job_end_once(tmp_path: Path) -> None:
    step = _PREEMPTION.replace("JOB 7", "STEP 7.0")
    requeued = _PREEMPTION.replace("PREEMPTION", "JOB REQUEUE")
    text = _PREEMPTED.replace(_PREEMPTION, f"{step}srun: Job step aborted\n{requeued}")
    assert cause_of(f"{text}Training finished\n", tmp_path).text.endswith("; attempt 1 ran to its end")


_TOLD_TO_END = (
    "step 40 loss 2.1\nW0911 21:02:14.001000 9 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, "
    "shutting down workers\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15\n"
    "command terminated with exit code 143\n"
)
_GOES_ON = "Loading model from /ckpt/checkpoint-40.\nstep 41 loss 2.1\nstep 90 loss 1.9\n"
_ENDS = "{'train_runtime': 397.4, 'train_loss': 1.9}\n"


def test_a_job_that_a_signal_ended_and_that_went_on_to_its_end_is_recovered(tmp_path: Path) -> None:
    assert said(answer_to(_TOLD_TO_END + _GOES_ON + _ENDS, tmp_path)) == ("recovered", None)


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (_GOES_ON, "terminated_signal"),
        (_GOES_ON.partition("\n")[2] + _ENDS, "terminated_signal"),
        (_GOES_ON + _TOLD_TO_END, "terminated_signal"),
        (_GOES_ON.replace("step 41", "step 1").replace("step 90", "step 2") + _ENDS, "terminated_signal"),
        (_GOES_ON + _ENDS + "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "gpu_ecc"),
    ],
    ids=["no end", "no checkpoint", "told again", "other steps", "failed later"],
)
def test_a_job_that_a_signal_ended_is_not_recovered_by_less(later: str, what: str, tmp_path: Path) -> None:
    assert said(answer_to(_TOLD_TO_END + later, tmp_path))[0] == what


_CAUGHT = 'Traceback (most recent call last):\n  File "/w/data.py", line 20, in get\n    x()\nKeyError: 3\n'
_LIMIT = _PREEMPTION.replace("PREEMPTION", "TIME LIMIT")
_KILLED = "srun: error: gpu01: task 1: Killed\n"
_FAILED = "srun: error: gpu01: task 3: Exited with exit code 1\n"


@pytest.mark.parametrize("steps", [3, 50])
@pytest.mark.parametrize("end", [_LIMIT, _PREEMPTION, _KILLED, f"{_LIMIT}{_FAILED}", f"{_FAILED}{_KILLED}"])
def test_the_steps_of_others_do_not_show_that_a_rank_survived_its_exception(
    steps: int, end: str, tmp_path: Path
) -> None:
    further = "".join(f"step {n} loss 2.0\n" for n in range(8, 8 + steps))
    assert said(answer_to(f"{_WORK}{_CAUGHT}{further}{end}", tmp_path))[0] == "user_exception"


def test_a_step_that_other_ranks_end_does_not_show_that_a_rank_survived(tmp_path: Path) -> None:
    raised = "".join(f"[rank3]: {line}" for line in _CAUGHT.splitlines(keepends=True))
    further = "".join(f"[rank{n}]: step 8 loss 2.0\n" for n in range(3))
    assert said(answer_to(f"{_WORK}{raised}{further}{_LIMIT}", tmp_path)) == ("user_exception", 3)
