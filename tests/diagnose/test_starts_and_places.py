"""Starts that went on accuse nobody; the host, rank and GPU are those of the line that tells the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.diagnose.html import render_html
from gpudoctor.diagnose.text import render_text
from tests.diagnose.asking import answer_of, answer_to, cause_of, said

_LIGHTNING = "initializing distributed: GLOBAL_RANK: {0}, MEMBER: {1}/2\n"


@pytest.mark.parametrize(
    "text",
    [
        _LIGHTNING.format(0, 1) + _LIGHTNING.format(1, 2) + "-" * 90 + "\ndistributed_backend=nccl\n"
        "All distributed processes registered. Starting with 2 processes\n",
        _LIGHTNING.format(1, 2) + "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0]\n",
        _LIGHTNING.format(0, 1) + _LIGHTNING.format(0, 1) + "Epoch 0:  12%|#   | 12/100 [00:03<00:22, loss=1.2]\n",
        "2025-02-01 10:00:00.1: E xla/service/rendezvous.cc:38] This thread has been waiting for `x` for 10 seconds and may be "
        "stuck.\n2025-02-01 10:00:09.1: E xla/service/rendezvous.cc:44] Thread is unstuck! Warning above was a false-positive.\n",
        "n1:3:4 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : GID table change\n",
        "[  721.028170] INFO: task rsync:5403 blocked for more than 120 seconds.\nstep 1\nstep 2\nstep 3\nTraining finished\n",
        "step 1\nn1:7:9 [0] transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_0\nstep 2\nstep 3\nstep 4\n",
        "W tensorflow/core/gpu_device.cc:15] Unable to enable peer access between device ordinals 0 and 9: peer mapping "
        "resources exhausted\n",
        "  Warning  Failed   9m (x2 over 9m)  kubelet  Error: ErrImagePull\n  Normal   Pulled   2m  kubelet  Pulled image\n"
        "  Normal   Started  2m  kubelet  Started container pytorch\n",
        "WARNING:hub:HTTPSConnectionPool(host='hub', port=443): Max retries exceeded with url: /x, retrying\n",
    ],
    ids=[
        "a start",
        "a start on the second node",
        "a start and work",
        "unstuck",
        "an event of a change",
        "a slow disk",
        "sockets do",
        "TensorFlow goes on",
        "a pull",
        "a retry",
    ],
)
def test_a_start_that_went_on_and_its_warnings_are_nothing(text: str, tmp_path: Path) -> None:
    assert said(answer_to(text, tmp_path)) == ("healthy", None)


@pytest.mark.parametrize(
    ("what", "host", "text"),
    [
        (
            "launch_failed",
            "n1",
            "srun: error: Task launch for StepId=96.0 failed on node n2: No such process\n"
            "srun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out on send/recv operation\n",
        ),
        (
            "node_lost",
            "10.0.0.3",
            "2025-02-15 16:53:52,096\tWARNING worker.py:1462 -- The node with node id: 8f20 and ip: 10.0.0.3 has been marked "
            "dead because the detector has missed too many heartbeats from it.\n",
        ),
        (
            "process_died_unknown",
            "10.0.0.9",
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. Node ID: 84 Worker IP "
            "address: 10.0.0.9 Worker port: 10185 Worker PID: 907 Worker exit type: SYSTEM_ERROR Worker exit detail: eof\n",
        ),
        (
            "process_died_unknown",
            "10.0.0.9",
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tpid: 11\n"
            "\tname: aBWorkerDict_2:5\n\tip: 10.0.0.9\nThe actor is dead because its worker process has died.\n",
        ),
        (
            "user_exception",
            None,
            "n001: FileNotFoundError: no '/data/idx.npy'\nn001: exiting\nn002: FileNotFoundError: no '/data/idx.npy'\n"
            "n002: exiting\n",
        ),
        (
            "ofi_error",
            "n2",
            "n1:31:9 [7] NCCL INFO NET/OFI Selected provider efa\n"
            "n2:23:9 [7] create_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument\n",
        ),
        (
            "ib_registration_failed",
            "n1",
            "[rank10]: RuntimeError: NCCL Error 2: unhandled system error\nn1:8:9 [0] misc/ibvwrap.cc:182 NCCL WARN Call to "
            "ibv_reg_mr_iova2 failed with error Invalid argument\nn1:15:16 [7] NCCL INFO Trees [0] -1/-1/-1->7->6\n",
        ),
        (
            "ssh_failed",
            "n5",
            "[2024-01-06 11:41:34,489] [INFO] [real_accelerator.py:161:get_accelerator] Setting ds_accelerator to cuda\n"
            'Traceback (most recent call last):\n  File "/l/deepspeed/launcher/runner.py", line 437, in main\n'
            "    raise CalledProcessError(retcode, cmd)\nsubprocess.CalledProcessError: Command 'ssh -o "
            "PasswordAuthentication=no n5 hostname' returned non-zero exit status 255.\n",
        ),
        ("ssh_failed", "n5", "n5: Host key verification failed.\nn5: x\nn5: y\nn5: z\n"),
        ("ssh_failed", "n5", "pdsh@n1: n5: ssh exited with exit code 255\n"),
        ("failed_saying", None, "sbatch: error: no server is known\n" * 2 + "sbatch: error: the list is empty\n" * 2),
    ],
    ids=[
        *("Slurm", "Ray", "Ray's worker", "on a third node", "two hosts", "a plugin's warning", "another rank's label"),
        *("DeepSpeed's runner", "a host's label", "pdsh", "a program"),
    ],
)
def test_the_host_is_the_one_of_the_line_and_no_rank_is_borrowed(
    what: str, host: str | None, text: str, tmp_path: Path
) -> None:
    cause = cause_of(text, tmp_path)
    assert (cause.what, cause.rank) == (what, None)
    assert cause.host == host


_PEER_GONE = "n1:77:78 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n2.lan<4507>\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_PEER_GONE, ("victims_only", "n2.lan")),
        # who aborted had lost the other, whose end the scheduler tells
        (
            f"{_PEER_GONE}srun: error: n2: task 1: Exited with exit code 1\nrun.sh: line 7: 77 Aborted  (core dumped) python t.py\n",
            ("victims_only", "n2.lan"),
        ),
        (
            "An MPI communication peer process has unexpectedly disconnected.  This may be\nits own fault.\n\n"
            "  Local host: n1\n  Peer host:  n2\n",
            ("victims_only", "n2"),
        ),
        (
            "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other "
            "reasons at node (ID: 3c4f, IP: 10.9.8.7) over the last time period.\n",
            ("host_oom", "10.9.8.7"),
        ),
        (
            "ray::Worker.start() (pid=77, ip=10.9.8.7, actor_id=3c4f, repr=<w>)\n"
            '  File "/w/t.py", line 9, in start\n    go()\nKeyError: 3\n',
            ("user_exception", "10.9.8.7"),
        ),
        (
            "(Worker pid=77, ip=10.9.8.7) *** SIGSEGV received at time=1700000000 on cpu 1 ***\n",
            ("segfault", "10.9.8.7"),
        ),
        # the address that somebody could not reach is no place of a fault
        (
            'Traceback (most recent call last):\n  File "/w/t.py", line 9, in f\n    go()\n'
            "OSError: could not connect to the store on host n7: Connection refused\n",
            ("failed_saying", None),
        ),
    ],
    ids=["NCCL", "aborted", "Open MPI", "Ray's daemon", "Ray's traceback", "Ray's label", "not reached"],
)
def test_the_place_is_the_side_that_the_line_tells_of(
    text: str, expected: tuple[str, str | None], tmp_path: Path
) -> None:
    cause = cause_of(text, tmp_path)
    assert (cause.what, cause.host) == expected


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "mpirun noticed that process rank 1 with PID xxx on node n7 exited on signal 9 (Killed).\n",
            ("killed_sigkill", 1, "n7"),
        ),
        # a test of accelerate's prints what its command wrote
        (
            "stderr: Root Cause (first observed failure):\nstderr: [0]:\nstderr:   host      : n7\n"
            "stderr:   rank      : 1 (local_rank: 1)\nstderr:   exitcode  : 1 (pid: 77)\n",
            ("launcher_table_only", None, "n7"),
        ),
        # with its rules alone it looks like a page with headings
        (
            f"{'-' * 74}\nprterun noticed that process rank 3 with PID 77 on node n7 exited on signal 9 (Killed).\n{'-' * 74}\n",
            ("killed_sigkill", 3, "n7"),
        ),
        (
            f"ChildFailedError:\n{'=' * 30}\nt.py FAILED\n{'-' * 30}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 30}\n"
            "Root Cause (first observed failure):\n[0]:\n  host      : n7\n  rank      : 0 (local_rank: 0)\n"
            f"  exitcode  : 1 (pid: 77)\n{'=' * 30}\n",
            ("launcher_table_only", None, "n7"),
        ),
    ],
)
def test_a_launchers_words_are_read_without_what_was_made_unknown_or_left_out(
    text: str, expected: tuple[str, int | None, str], tmp_path: Path
) -> None:
    answer = answer_to(text, tmp_path)
    assert answer.cause is not None
    assert (*said(answer), answer.cause.host) == expected


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
