"""Failures to start, what may stand beside a cause, and its host, rank and GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.diagnose.html import render_html
from gpudoctor.diagnose.text import render_text
from tests.diagnose.asking import answer_of, answer_to, cause_of, said


def test_a_cancelled_job_was_not_ended_by_the_signals_that_follow(tmp_path: Path) -> None:
    text = "step 3 loss 1.2\nslurmstepd: error: *** JOB 7 ON n7 CANCELLED AT 2026-01-02T03:04:05 ***\n"
    answer = answer_to(f"{text}Main process received SIGTERM, exiting\n", tmp_path)
    assert said(answer) == ("cancelled", None)
    assert answer.others == ()


@pytest.mark.parametrize(
    "later",
    [
        "Killed",
        "[rank3]:[E1103 11:22:33.1 ProcessGroupNCCL.cpp:1500] [PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's "
        "watchdog got stuck for 600 seconds without making progress",
    ],
    ids=["the end of nobody in particular", "less sure"],
)
def test_beside_a_certain_cause_stands_no_weaker_one(later: str, tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "/w/t.py", line 9, in f\n    go()\n'
    answer = answer_to(f"{text}OSError: [Errno 28] No space left on device: '/tmp/x'\n{later}\n", tmp_path)
    assert said(answer) == ("disk_full", None)
    assert answer.others == ()


_KILLED_BY_THE_HOST = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
)
_WORKER_GONE = (
    'Traceback (most recent call last):\n  File "/w/t.py", line 9, in f\n    go()\nRuntimeError: a worker is gone\n'
)


@pytest.mark.parametrize("before", [True, False])
def test_what_else_a_text_tells_beside_a_certain_cause_is_no_other_cause(before: bool, tmp_path: Path) -> None:
    parts = [_WORKER_GONE, _KILLED_BY_THE_HOST]
    answer = answer_to("".join(parts if before else parts[::-1]), tmp_path)
    assert said(answer) == ("host_oom", None)
    assert answer.others == ()
    assert [(each.what, each.line, each.text, each.before) for each in answer.also] == [
        ("user_exception", 4 if before else 5, "RuntimeError: a worker is gone", before)
    ]
    words = " ".join(render_text(answer, width=80).split())
    assert f" also {answer.also[0].file}:{answer.also[0].line}{', before it' * before} RuntimeError: a worker" in words
    assert " OR " not in words
    assert "a worker is gone" in render_html(answer)


def test_two_certain_causes_on_two_hosts_are_both_causes(tmp_path: Path) -> None:
    lost = "{0} kernel: NVRM: Xid (PCI:0000:4B:00): 79, pid=1, GPU has fallen off the bus.\n"
    (tmp_path / "n1.log").write_text("May  1 10:00:00 " + lost.format("n1"))
    (tmp_path / "n2.log").write_text(
        "May  1 10:00:01 n2 kernel: Out of memory: Killed process 7 (python) total-vm:9kB\n"
    )
    answer = answer_of(tmp_path)
    assert answer.cause is not None
    assert {(each.what, each.host) for each in (answer.cause, *answer.others)} == {
        ("gpu_lost", "n1"),
        ("host_oom", "n2"),
    }


@pytest.mark.parametrize(("host", "gpu", "is_other"), [("n1", "1b", True), ("n2", "4b", True), ("n1", "4b", False)])
def test_a_second_fault_is_never_left_out(host: str, gpu: str, is_other: bool, tmp_path: Path) -> None:
    answer = answer_to(
        "May  1 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:4b:00): 79, pid=1, GPU has fallen off the bus.\n"
        f"May  1 10:00:04 {host} kernel: NVRM: Xid (PCI:0000:{gpu}:00): 48, pid=1, DBE\n",
        tmp_path,
    )
    assert said(answer)[0] == "gpu_lost"
    assert [each.what for each in answer.others] == ["gpu_ecc"] * is_other
    assert [(each.what, each.line) for each in answer.also] == [("gpu_ecc", 2)] * (not is_other)


def test_one_kind_of_failure_is_told_once_and_no_more_than_four(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/t.py", line 9, in f\n    go()\n'
    raised = [f"{name}Error: no {name}" for name in ("Key", "Value", "Type", "Index", "Name", "Key")]
    answer = answer_to("".join(f"{trace}{each}\n" for each in raised) + _KILLED_BY_THE_HOST, tmp_path)
    assert [each.text for each in answer.also] == raised[:4]


def test_the_words_of_an_exception_end_where_another_traceback_begins_in_its_line(tmp_path: Path) -> None:
    begin = "Traceback (most recent call last) File"
    glued = f"During handling of the above exception, another exception occurred {begin}"
    ended = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: /p"
    )
    for rest in (glued, begin):
        cause = cause_of(f'JobError: ErrorMessage "TypeError: a bad value {rest} "/w/t.py", line 4 {ended}\n', tmp_path)
        assert cause.text == "TypeError: a bad value"


def test_a_gpu_that_is_lost_while_the_driver_starts_has_its_bus_id(tmp_path: Path) -> None:
    text = (
        "[ 18.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this "
        "system has\n               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    cause = cause_of(text, tmp_path)
    assert (cause.what, cause.rank) == ("gpu_lost", None)
    assert cause.gpu == "0000:b3:00.0"


def test_an_xid_that_follows_another_shows_that_one(tmp_path: Path) -> None:
    text = "[ 7.1] NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149\n"
    cause = cause_of(text, tmp_path)
    assert (cause.what, cause.rank) == ("gpu_xid", None)
    assert cause.text.startswith("Xid 149")
    assert cause.gpu == "0000:dc:00.0"


def test_the_same_rank_in_the_tables_of_two_hosts_names_no_host(tmp_path: Path) -> None:
    table = "Failures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  host      : {0}\n"
    table += "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: {1})\n"
    cause = cause_of(table.format("n1", 71) + table.format("n2", 72), tmp_path)
    assert (cause.what, cause.rank) == ("launcher_table_only", None)
    assert cause.host is None


def test_an_assertion_without_a_message_shows_its_statement(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "/w/t.py", line 9, in f\n    assert len(kinds) == 1\nAssertionError\n'
    cause = cause_of(text, tmp_path)
    assert cause.text == "AssertionError: assert len(kinds) == 1 (raised from /w/t.py:9)"


def test_exit_code_2_is_an_argument_that_the_program_does_not_know(tmp_path: Path) -> None:
    table = "Failures:\n[1]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 2 (pid: 72)\nRoot Cause (first observed failure):\n"
    cause = cause_of(table + "[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 2 (pid: 71)\n", tmp_path)
    assert (cause.what, cause.rank) == ("launcher_table_only", None)
    assert "code 2" in cause.text


_RAN = "World size: 8\n" + "".join(f"step {n} loss {2 / n:.2f}\n" for n in range(1, 9))
_ENDED = f"{_RAN}Training completed successfully\n"
_WAITED = "Events:\n  Warning  FailedScheduling  9m  default-scheduler  0/5 nodes are available: 5 Insufficient gpu.\n"
_ASSIGNED = "  Normal   Scheduled  8m  default-scheduler  Successfully assigned ml/train-0 to gpu01\n"
_NO_IMAGE = "Events:\n  Warning  Failed  9m  kubelet  Error: ErrImagePull\n"
_PODS = "NAME      READY   STATUS    RESTARTS   AGE\ntrain-0   1/1     Running   0          9m\nold-0     0/1     Error     0          9d\n"
_RAISED = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "t.py", line 3, in f\n[rank3]: ValueError: odd shape\n'


@pytest.mark.parametrize(
    ("what", "log", "listing"),
    [
        ("healthy", _ENDED + "git@github.com: Permission denied (publickey).\n", ""),
        ("healthy", _ENDED + "ssh: connect to host archive01 port 22: Connection refused\n", ""),
        ("healthy", _ENDED + "sudo: Permission denied, please try again.\n", ""),
        ("user_exception", "git@github.com: Permission denied (publickey).\n" + _RAISED, ""),
        ("user_exception", "ssh: connect to host store01 port 22: Connection refused\n" + _RAISED, ""),
        ("unknown_error", _RAN + "ssh: connect to host store01 port 22: Connection refused\n", ""),
        ("ssh_failed", "n5: ssh: connect to host n5 port 22: Connection refused\n", ""),
        ("healthy", _ENDED, _WAITED + _ASSIGNED),
        ("healthy", _ENDED, _WAITED),
        ("healthy", _RAN, "Status:           Running\n" + _NO_IMAGE),
        ("healthy", "", _WAITED + _ASSIGNED),
        ("pod_not_scheduled", "", _ASSIGNED + _WAITED),
        ("pod_not_scheduled", "", _WAITED.replace("9m", "9m pod/b") + _ASSIGNED.replace("8m", "8m pod/a")),
        ("container_failed", "", _NO_IMAGE + _ASSIGNED),
        ("healthy", _ENDED, _PODS),
        ("launcher_table_only", "", _PODS),
    ],
)
def test_a_failure_to_start_counts_unless_the_work_shows_that_it_was_overcome(
    what: str, log: str, listing: str, tmp_path: Path
) -> None:
    (tmp_path / "pods.txt").write_text(listing)
    (tmp_path / "job.log").write_text(log)
    assert said(answer_of(tmp_path))[0] == what


@pytest.mark.parametrize(("killed_at", "what"), [("13:03:29", "launcher_table_only"), ("13:02:58", "killed_sigkill")])
def test_the_agents_own_sigkill_after_its_grace_time_is_no_cause(killed_at: str, what: str, tmp_path: Path) -> None:
    def row(number: int, at: str, code: int) -> str:
        return (
            f"[{number}]:\n  time      : 2026-09-07_{at}\n  host      : n1\n"
            f"  rank      : {number} (local_rank: {number})\n  exitcode  : {code} (pid: {70 + number})\n"
        )

    table = "Failures:\n" + row(0, killed_at, -9) + "Root Cause (first observed failure):\n" + row(1, "13:02:58", 1)
    (tmp_path / "a.log").write_text(table, encoding="utf-8")
    assert said(answer_of(tmp_path))[0] == what


def test_a_host_with_and_without_its_domain_is_one(tmp_path: Path) -> None:
    init = "gpu07.cluster:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 18000 - Init COMPLETE\n"
    answer = answer_to(f"{init}[rank0]: step 5 loss 3.2\nslurmstepd: error: Node failure on gpu07\n", tmp_path)
    assert {entry.host for entry in answer.timeline if entry.host} == {"gpu07"}
    died = "gpu07:1:9 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
    answer = answer_to(init + died, tmp_path)
    assert {entry.host for entry in answer.timeline} == {"gpu07"}
