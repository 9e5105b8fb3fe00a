"""Logs of whole jobs, made in the forms of torch 2.4 to 2.13, NCCL, Slurm, DeepSpeed, Lightning, Megatron -> the first failure."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gpudoctor.diagnose.text import render_text
from tests.diagnose.asking import answer_of, answer_to, cause_of, said
from tests.narrowed import present


def wd(r: int, seq: int, op: str = "ALLREDUCE", n: int = 100, enq: int | None = None, comp: int | None = None) -> str:
    """The lines of a watchdog that ends its rank."""
    p, t, pg, desc = f"[rank{r}]:", "02:52:53.183", "0", "default_pg"
    a = f"{p}[E816 {t} ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n"
    b = f"{p}[E816 {t} ProcessGroupNCCL.cpp:2268] [PG ID {pg} PG GUID {pg}({desc}) Rank {r}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enq or seq + 3}, last completed work: {comp if comp is not None else seq - 1}\n"
    c = f"{p}[E816 {t} ProcessGroupNCCL.cpp:684] [Rank {r}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n{p}[E816 {t} ProcessGroupNCCL.cpp:690] [Rank {r}] To avoid data inconsistency, we are taking the entire process down.\nterminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) Rank {r}] Process group watchdog thread terminated with exception: [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n"
    return a + b + c


def agent(r: int, code: int, pid: int | None = None) -> str:
    """The line of torchrun's agent; the process ids are 100 and the rank."""
    t, ag = "02:53:10.1", 900
    return f"E0816 {t} {ag} torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: {r} (pid: {pid or 100 + r}) of binary: /usr/bin/python\n"


def closing(pids: list[int]) -> str:
    """What the agent ended itself."""
    t, ag = "02:53:10.0", 900
    return "".join(
        f"W0816 {t} {ag} torch/distributed/elastic/multiprocessing/api.py:897] Sending process {p} closing signal SIGTERM\n"
        for p in pids
    )


def table(codes: dict[int, int]) -> str:
    """Torchrun's table: the exit code of each rank, the root cause first."""
    rows = [
        f"[{i}]:\n  time      : 2024-08-16_02:53:10\n  host      : n1\n  rank      : {r} (local_rank: {r % 8})\n"
        f"  exitcode  : {code} (pid: {100 + r})\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/\n"
        for i, (r, code) in enumerate(codes.items())
    ]
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n===\ntrain.py FAILED\n---\nFailures:\n"
    others = "".join(rows[1:]) or "  <NO_OTHER_FAILURES>\n"
    return head + others + "----\nRoot Cause (first observed failure):\n" + rows[0] + "====\n"


def tb(r: int | None, exc: str) -> str:
    """A traceback, with torch's label of a rank or without."""
    p = f"[rank{r}]: " if r is not None else ""
    return f'{p}Traceback (most recent call last):\n{p}  File "/w/train.py", line 9, in main\n{p}    f(x)\n{p}{exc}\n'


STEPS = "".join(f"step {i} loss {9 - i * 0.1:.3f}\n" for i in range(0, 60, 10))
JOBS: list[tuple[str, int | None, str]] = []


def j(what: str, rank: int | None, *parts: str) -> None:
    """One more job: the right word, the right rank, its log."""
    JOBS.append((what, rank, "".join(parts)))


# exception on rank 3 then 30 min later others time out
j(
    "user_exception",
    3,
    STEPS,
    tb(3, "KeyError: 'x'"),
    *(wd(r, 900) for r in range(8) if r != 3),
    closing([103]),
    agent(0, -6),
    table({0: -6, 1: -6, 2: -6}),
)
# hang rank 5 of 8, NCCL
j(
    "rank_hung",
    5,
    "world size: 8\n",
    STEPS,
    *(wd(r, 900) for r in range(8) if r != 5),
    closing([105]),
    agent(0, -6),
    table({0: -6, 1: -6, 2: -6, 3: -6, 4: -6, 6: -6, 7: -6}),
)
# same but torch 2.13 table lists rank 5 -15, no world
j(
    "rank_hung",
    5,
    STEPS,
    *(wd(r, 900) for r in range(8) if r != 5),
    closing([105]),
    agent(0, -6),
    table({0: -6, 1: -6, 2: -6, 3: -6, 4: -6, 6: -6, 7: -6, 5: -15}),
)
# all the same
j(
    "timeout_all_same_seq",
    None,
    "world size: 4\n",
    STEPS,
    *(wd(r, 900) for r in range(4)),
    agent(0, -6),
    table({0: -6, 1: -6, 2: -6, 3: -6}),
)
# mismatch minority
j(
    "collective_mismatch",
    2,
    STEPS,
    *(wd(r, 900, op="BROADCAST" if r == 2 else "ALLREDUCE") for r in range(4)),
    agent(0, -6),
    table({0: -6}),
)
# size mismatch
j("collective_mismatch", 1, STEPS, *(wd(r, 900, n=7 if r == 1 else 4) for r in range(4)), agent(0, -6))
# behind
j(
    "rank_behind",
    1,
    STEPS,
    *(wd(r, 900 if r != 1 else 899, enq=903 if r != 1 else 899, comp=899 if r != 1 else 898) for r in range(4)),
    agent(0, -6),
    table({0: -6, 1: -6}),
)
# CUDA error on rank 2, rest victims by nccl remote
j(
    "cuda_illegal_access",
    2,
    STEPS,
    tb(2, "RuntimeError: CUDA error: an illegal memory access was encountered"),
    "[rank2]:[E816 02:52:50.1 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n",
    tb(
        0,
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:2251, remote process exited or there was a network error, NCCL version 2.20.5",
    ),
    closing([100, 101, 103]),
    agent(2, -6),
    table({2: -6}),
)
# SIGKILL rank 1 + OOM kernel w/ pid
j(
    "host_oom",
    1,
    STEPS,
    closing([100, 102, 103]),
    agent(1, -9),
    table({1: -9}),
    "[Fri Aug 16 02:53:09 2024] Memory cgroup out of memory: Killed process 101 (python3) total-vm:1492232kB, anon-rss:816140kB\n",
)
# SIGKILL of other pid by OOM (unrelated chrome)
j(
    "killed_sigkill",
    1,
    STEPS,
    closing([100, 102, 103]),
    agent(1, -9),
    table({1: -9}),
    "[Fri Aug 16 02:53:09 2024] Out of memory: Killed process 7777 (chrome) total-vm:1492232kB, anon-rss:816140kB\n",
)
# Xid 79 with nccl init lines and watchdog timeouts
j(
    "gpu_lost",
    3,
    *(
        f"n1:{100 + r}:{200 + r} [{r}] NCCL INFO ncclCommInitRank comm 0x55 rank {r} nranks 4 cudaDev {r} nvmlDev {r} busId {b} commId 0xabc - Init COMPLETE\n"
        for r, b in enumerate(("1a000", "3d000", "ad000", "dc000"))
    ),
    STEPS,
    *(wd(r, 900) for r in range(3)),
    "[Fri Aug 16 02:43:00 2024] NVRM: Xid (PCI:0000:dc:00): 79, pid=103, name=python3, GPU has fallen off the bus.\n",
)
# Xid 13 beside illegal access
j(
    "cuda_illegal_access",
    2,
    STEPS,
    tb(2, "RuntimeError: CUDA error: an illegal memory access was encountered"),
    "[Fri Aug 16 02:43:00 2024] NVRM: Xid (PCI:0000:dc:00): 31, pid=102, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS\n",
    closing([100]),
    agent(2, 1),
    table({2: 1}),
)
# time limit on hang-free
j(
    "time_limit",
    None,
    STEPS,
    "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2024-08-16T03:00:00 DUE TO TIME LIMIT ***\n",
    "W0816 03:00:00.1 900 torch/distributed/elastic/agent/server/api.py:741] Received Signals.SIGTERM death signal, shutting down workers\n",
    closing([100, 101]),
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 900 got signal: 15\n",
)
# hang then time limit
j(
    "rank_hung",
    1,
    "world size: 4\n",
    STEPS,
    *(wd(r, 900) for r in (0, 2, 3)),
    "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2024-08-16T03:00:00 DUE TO TIME LIMIT ***\n",
)
# terminated torchrun (SIGTERM)
j(
    "terminated_signal",
    None,
    STEPS,
    "W0816 03:00:00.1 900 torch/distributed/elastic/agent/server/api.py:741] Received Signals.SIGTERM death signal, shutting down workers\n",
    closing([100, 101]),
    tb(None, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 900 got signal: 15"),
)
# all ranks same exception
j(
    "user_exception_all",
    None,
    *(tb(r, "TypeError: f() missing 1 required positional argument: 'x'") for r in range(4)),
    closing([103]),
    agent(0, 1),
    table({0: 1, 1: 1, 2: 1, 3: 1}),
)
# same exception nameless x4
j(
    "user_exception_all",
    None,
    *(tb(None, "TypeError: f() missing 1 required positional argument: 'x'") for r in range(4)),
    agent(0, 1),
    table({0: 1, 1: 1, 2: 1, 3: 1}),
)
# import error nameless one rank
j(
    "import_error",
    2,
    tb(None, "ModuleNotFoundError: No module named 'flash_attn'"),
    closing([100, 101, 103]),
    agent(2, 1),
    table({2: 1}),
)
# OOM on two of 4
j(
    "cuda_oom",
    None,
    tb(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has"),
    tb(3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has"),
    closing([100]),
    agent(1, 1),
    table({1: 1, 3: 1}),
)
# two first failures
j(
    "user_exception",
    None,
    STEPS,
    tb(1, "KeyError: 'x'"),
    tb(2, "KeyError: 'x'"),
    tb(0, "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"),
    tb(3, "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"),
    agent(1, 1),
    table({1: 1}),
)
# IB 12 then watchdog
j(
    "ib_completion_error",
    None,
    STEPS,
    "n2:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<51234> with status=12 opcode=0 len=0 vendor err 129 (Send)\n",
    *(wd(r, 900) for r in range(4)),
    agent(0, -6),
)
# IB12 because peer rank was SIGKILLed
j(
    "killed_sigkill",
    2,
    STEPS,
    "n2:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<51234> with status=12 opcode=0 len=0 vendor err 129 (Send)\n",
    closing([100, 101, 103]),
    agent(2, -9),
    table({2: -9}),
)
# DeepSpeed
j(
    "user_exception",
    1,
    "[2025-12-18 20:27:22,783] [INFO] [launch.py:245:main] process 501 spawned with command: ['/usr/bin/python3', '-u', 'train.py', '--local_rank=0']\n[2025-12-18 20:27:22,783] [INFO] [launch.py:245:main] process 502 spawned with command: ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1']\n",
    STEPS,
    tb(1, "ValueError: bad"),
    "[2025-12-18 20:28:22,783] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 501\n[2025-12-18 20:28:22,783] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 502\n[2025-12-18 20:28:22,783] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1'] exits with return code = 1\n",
)
j(
    "launcher_table_only",
    None,
    STEPS,
    "[2025-12-18 20:28:22,783] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 501\n[2025-12-18 20:28:22,783] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1'] exits with return code = 1\n",
)
j(
    "killed_sigkill",
    None,
    STEPS,
    "[2025-12-18 20:28:22,783] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 501\n[2025-12-18 20:28:22,783] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1'] exits with return code = -9\n",
)
# lightning
j(
    "user_exception",
    1,
    "[rank: 0] Seed set to 42\n[rank: 1] Seed set to 42\nEpoch 0:   1%|          | 10/1000 [00:01<02:00,  8.2it/s, loss=2.3]\r",
    tb(1, "AttributeError: 'NoneType' object has no attribute 'shape'"),
    "[rank: 1] Child process with PID 4712 terminated with code 1. Forcefully terminating all other processes to avoid zombies\n",
)
# megatron healthy with nan skip lines
j(
    "healthy",
    None,
    "".join(
        f" iteration {i:8d}/  500000 | consumed samples: {i * 512} | elapsed time per iteration (ms): 1234.5 | lm loss: 2.345E+00 | loss scale: 1.0 | grad norm: 0.345 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
        for i in range(40)
    ),
)
# healthy with nccl info flood & TB handled
j(
    "healthy",
    None,
    *(
        f"n1:10{r}:20{r} [{r}] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
        for r in range(4)
    ),
    tb(None, "FileNotFoundError: [Errno 2] No such file or directory: 'cache.json'"),
    "WARNING cache missing, rebuilding\n",
    STEPS,
    "Training finished\n",
)
# kubernetes SIGKILL 137
j("killed_sigkill", None, "    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    137\n")
# slurm exit codes, python err in task 3
j(
    "user_exception",
    3,
    *(f"{r}: rank {r}/4 on gpu0{r // 2} pid 10{r}\n" for r in range(4)),
    "".join("3: " + line + "\n" for line in tb(3, "ZeroDivisionError: division by zero").splitlines()),
    "srun: error: gpu01: task 3: Exited with exit code 1\nsrun: Terminating StepId=5.0\n0: slurmstepd-gpu00: error: *** STEP 5.0 ON gpu00 CANCELLED AT 2026-11-22T11:04:18 ***\nsrun: error: gpu00: tasks 0-1: Terminated\nsrun: error: gpu01: task 2: Terminated\n",
)
# segfault by srun
j(
    "segfault",
    1,
    *(f"{r}: rank {r}/4 on gpu0{r // 2} pid 10{r}\n" for r in range(4)),
    "srun: error: gpu00: task 1: Segmentation fault (core dumped)\nsrun: Terminating StepId=5.0\nsrun: error: gpu00: task 0: Terminated\nsrun: error: gpu01: tasks 2-3: Terminated\n",
)


# a rank leaves with 0 at once and without a word: torch 2.13 lists all others, even those that it ended
j(
    "early_exit",
    1,
    *(
        tb(r, "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1")
        for r in (0, 2, 3)
    ),
    closing([102, 103]),
    agent(0, 1),
    table({0: 1, 2: -15, 3: -15}),
)
# the same, but all others failed by themselves and the agent had nobody to end
j(
    "early_exit",
    1,
    *(tb(r, "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1") for r in (0, 2)),
    agent(0, 1),
    table({0: 1, 2: 1}),
)
# of two ranks, nobody knows whether there was a second one
j(
    "victims_only",
    None,
    tb(0, "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"),
    agent(0, 1),
    table({0: 1}),
)
# process ids with gaps between them: as many were ended before it as have lower numbers
j("killed_sigkill", 5, STEPS, closing([14, 15, 16, 17, 20, 26, 29]), agent(5, -9, 22))
# the agent lists one of those that died by themselves, and ended the few that were left
j("segfault", None, STEPS, closing([100, 103, 107]), agent(1, -11))
# all others were ended: the one that the agent names died alone
j("segfault", 1, STEPS, closing([100, 102, 103]), agent(1, -11))
# the head is missing: who failed without words here had said them there
j(
    "launcher_table_only",
    None,
    "[rank2]:     loss.backward()\n",
    "[rank2]: RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1\n",
    closing([100, 102]),
    agent(1, 1),
    table({1: 1}),
)
# the head is missing, and by its exit code another rank failed as well: nobody knows which was alone
j(
    "disk_full",
    None,
    '[rank1]:   File "/w/save.py", line 3, in save\n[rank1]: OSError: [Errno 28] No space left on device\n',
    closing([100, 101, 103]),
    agent(2, 1),
    table({2: 1}),
)
# the begin of the table is missing: who else failed stood there
j("segfault", None, *table({1: -11, 0: -11}).partition("Root Cause")[1:])
j("segfault_all", None, *table({1: -11, 0: -11, 2: -11}).partition("[2]:")[1:])
IDS = [f"{n}-{job[0]}" for n, job in enumerate(JOBS)]


@pytest.mark.parametrize(("what", "rank", "text"), JOBS, ids=IDS)
def test_a_job_gets_its_first_failure(what: str, rank: int | None, text: str, tmp_path: Path) -> None:
    assert said(answer_to(text, tmp_path)) == (what, rank)


@pytest.mark.parametrize(("what", "rank", "text"), JOBS, ids=IDS)
@pytest.mark.parametrize("prefix", ["2025-04-04T16:57:05.7153695Z ", "Jun 01 12:00:05 n7 python3[77]: ", "> "])
def test_prefixes_of_a_runtime_change_nothing(
    prefix: str, what: str, rank: int | None, text: str, tmp_path: Path
) -> None:
    lines = text.rstrip("\n").split("\n")
    assert said(answer_to("".join(f"{prefix}{line}\n" for line in lines), tmp_path)) == (what, rank)


@pytest.mark.parametrize(("what", "rank", "text"), JOBS[::4], ids=IDS[::4])
def test_windows_line_ends_colours_and_gzip_change_nothing(
    what: str, rank: int | None, text: str, tmp_path: Path
) -> None:
    coloured = "".join(f"\x1b[36m{line}\x1b[0m\r\n" for line in text.split("\n"))
    assert said(answer_to(gzip.compress(coloured.encode()), tmp_path)) == (what, rank)


def test_a_rank_without_words_beside_files_of_others_left_silently(tmp_path: Path) -> None:
    closed = "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"
    for rank in range(3):
        folder = tmp_path / "none_x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("" if rank == 0 else tb(rank, closed))
        (folder / "stdout.log").write_text("")
    (tmp_path / "console.log").write_text(closing([101, 102]) + agent(0, 1) + table({0: 1}))
    assert said(answer_of(tmp_path)) == ("silent_exit", 0)


def test_lines_of_nccl_between_those_of_the_watchdog_are_their_own(tmp_path: Path) -> None:
    between = "n1:5:6 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1a000 commId 0x1 - Init COMPLETE\n"
    text = "".join(f"{line}\n{between}" for r in (0, 1, 3) for line in wd(r, 900).rstrip("\n").split("\n"))
    answer = answer_to(STEPS + text, tmp_path)
    assert said(answer) == ("rank_hung", 2)
    assert answer.world_size == 4


def test_the_advice_at_the_end_of_torchs_own_words_is_in_the_answer(tmp_path: Path) -> None:
    said_by_torch = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB "
        "of which 1.06 GiB is free. Process 4123 has 78.08 GiB memory in use. Of the allocated memory 62.32 GiB is "
        "allocated by PyTorch, and 14.10 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
        "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
    log = f'Traceback (most recent call last):\n  File "/home/u/train.py", line 71, in main\n{said_by_torch}\n'
    cause = cause_of(log, tmp_path)
    assert cause.what == "cuda_oom"
    assert "expandable_segments:True" in cause.text


def watchdog(rank: int, group: str = "") -> str:
    return (
        f"[rank{rank}]:[E1128 10:59:48.058920817 ProcessGroupNCCL.cpp:632] [{group}Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1203, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )


OF_ALL = "PG ID 0 PG GUID 0(default_pg) "


@pytest.mark.parametrize(("group", "expected"), [("", ("timeout_all_same_seq", None)), (OF_ALL, ("rank_hung", 2))])
def test_a_rank_below_the_highest_that_says_nothing_of_the_wait_is_named(
    tmp_path: Path, group: str, expected: tuple[str, int | None]
) -> None:
    """Without the name of its group it may be in another one: it is named, not blamed."""
    waits = "".join(watchdog(rank, group) for rank in (0, 1, 3))
    steps = "".join(f"[rank{rank}]: step 500 loss 3.2\n" for rank in range(4))
    answer = answer_to(steps + waits, tmp_path)
    assert said(answer) == expected
    # never heard of, or at its end
    for before in ("", f"{steps}[rank2]: training finished\n"):
        answer = answer_to(before + waits, tmp_path)
        assert said(answer) == ("timeout_all_same_seq", None)
        assert "nothing of the wait is heard of rank 2." in present(answer.cause).text


@pytest.mark.parametrize("size", ["", "world_size 4"])
@pytest.mark.parametrize("group", ["", OF_ALL])
def test_a_wait_without_a_rank_may_be_of_the_rank_that_is_missing(tmp_path: Path, group: str, size: str) -> None:
    waits = "".join(watchdog(rank, group) for rank in (0, 1, 3))
    nameless = watchdog(2, group).removeprefix("[rank2]:").replace("Rank 2", "") if group else ""
    nameless = nameless or watchdog(2).removeprefix("[rank2]:").replace("[Rank 2] ", "")
    steps = "".join(f"[rank{rank}]: step 500 {size}\n" for rank in range(4))
    cause = cause_of(steps + waits + nameless, tmp_path)
    assert (cause.rank, "rank 2" in cause.text) == (None, False)


def test_a_rank_need_not_be_in_a_group_of_others(tmp_path: Path) -> None:
    waits = "".join(watchdog(rank, "PG ID 4 PG GUID 7(mesh_dp) ") for rank in (0, 1, 3))
    cause = cause_of(waits, tmp_path)
    assert "rank 2" not in cause.text


@pytest.mark.parametrize(("ended", "stood_still"), [("13:10:00", True), ("01:00:40", False), ("13:00:30", False)])
def test_a_job_that_was_silent_long_before_its_time_limit_stood_still(
    tmp_path: Path, ended: str, stood_still: bool
) -> None:
    """Twelve hours sharp may be the time zone of the scheduler."""
    steps = "".join(f"2026-11-27 01:00:{second:02} [rank0] step {second} loss 3.2\n" for second in range(0, 40, 10))
    limit = f"slurmstepd: error: *** JOB 4711 ON gpu07 CANCELLED AT 2026-11-27T{ended} DUE TO TIME LIMIT ***\n"
    cause = cause_of(steps + limit, tmp_path)
    assert cause.what == "time_limit"
    assert ("12 h 10 min before that: it stood still" in cause.text) is stood_still


def limit_at(ended: str) -> str:
    return f"slurmstepd: error: *** JOB 4711 ON gpu07 CANCELLED AT {ended} DUE TO TIME LIMIT ***\n"


def steps_from(date: str, hour: int, count: int = 30) -> str:
    return "".join(f"[{date} {hour:02}:{n:02}:00] [rank0]: step {n} lr 0.001\n" for n in range(1, count))


@pytest.mark.parametrize(
    "text",
    [
        steps_from("2026-02-28", 23, 50) + limit_at("2026-03-01T00:01:00"),
        steps_from("2026-04-30", 23, 50) + limit_at("2026-05-01T00:01:00"),
        steps_from("2026-04-12", 6) + limit_at("2026-04-12T12:15:00"),  # UTC+5:45
        steps_from("2026-04-12", 6)
        + "".join(f"Evaluating: {n}%|##    | {n}/100 [43:00<10:00,  1.20s/it]\n" for n in range(50))
        + limit_at("2026-04-12T08:22:10"),
        steps_from("2026-04-12", 6)
        + "".join(f"step {n} lr 0.001\n" for n in range(30, 99))
        + limit_at("2026-04-12T08:22:10"),
        # whatever it says at length, it may work
        steps_from("2026-04-12", 6) + "shard read\n" * 200 + limit_at("2026-04-12T08:22:10"),
    ],
    ids=["28 February", "30 April", "Nepal", "evaluation", "without times", "many lines"],
)
def test_a_job_that_may_have_moved_until_its_time_limit_did_not_stand_still(text: str, tmp_path: Path) -> None:
    cause = cause_of(text, tmp_path)
    assert (cause.what, "stood still" in cause.text) == ("time_limit", False)


def test_a_long_job_stood_still_by_its_own_steps_not_by_those_that_are_not_kept(tmp_path: Path) -> None:
    steps = "".join(steps_from("2026-04-12", hour, 60) for hour in range(6, 11))
    cause = cause_of(steps + limit_at("2026-04-12T14:07:12"), tmp_path)
    assert "last step was logged 3 h 8 min before that: it stood still" in cause.text


def test_a_job_whose_other_ranks_print_no_times_may_have_moved(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(steps_from("2026-04-12", 6) + limit_at("2026-04-12T08:22:10"))
    (tmp_path / "rank1.log").write_text("".join(f"step {n} lr 0.001\n" for n in range(99)))
    assert "stood still" not in present(answer_of(tmp_path).cause).text


def test_a_rank_that_reports_a_wait_did_not_leave_by_itself(tmp_path: Path) -> None:
    start = "n1:100:100 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1a000 commId 0x1 - Init COMPLETE\n"
    answer = answer_to(start + wd(0, 9) + wd(1, 9) + closing([100]) + agent(0, -6), tmp_path)
    assert [other.what for other in answer.others] == []


@pytest.mark.parametrize("label", ["3: ", ""])
def test_the_traceback_of_a_task_need_not_be_labelled_like_all_lines(tmp_path: Path, label: str) -> None:
    trace = "".join(
        f"{label}{line}\n"
        for line in tb(None, "RuntimeError: CUDA error: an illegal memory access was encountered").splitlines()
    )
    log = f"step 10 loss 2.3\nstep 20 loss 2.2\n{trace}step 30 loss 2.1\nstep 40 loss 2.0\n"
    srun = "srun: error: n7: task 3: Exited with exit code 1\nsrun: error: n7: tasks 0-2: Terminated\n"
    answer = answer_to(log + srun, tmp_path)
    assert (said(answer), answer.others) == (("cuda_illegal_access", 3), ())


def test_the_answer_says_a_long_message_once_and_equal_lines_in_one(tmp_path: Path) -> None:
    long = "torch.OutOfMemoryError: CUDA out of memory. " + "Of the allocated memory much is reserved. " * 9
    oom = render_text(answer_to(tb(1, long), tmp_path))
    assert " ".join(oom.split()).count("much is reserved") == 9
    titles = render_text(answer_to(wd(0, 9), tmp_path), width=60).splitlines()
    assert titles[0].startswith("UNKNOWN  timeout_undecidable  a collective timed out")
    assert max(map(len, titles[:2])) <= 60
    waits = render_text(
        answer_to("".join(wd(r, 9).splitlines(keepends=True)[0] for r in range(3)), tmp_path), width=999
    )
    assert waits.count("Watchdog caught") == 1
    assert "job.log:2, 3  the same, with other numbers" in waits
