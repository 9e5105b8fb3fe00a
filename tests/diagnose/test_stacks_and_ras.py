"""Stacks of all ranks, and NCCL's RAS: the odd one out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.asking import answer_of, answer_to, cause_of, said
from tests.narrowed import present

WAITS = "    _engine_run_backward (torch/autograd/graph.py:841)\n    backward (torch/_tensor.py:625)\n    main (train.py:41)\n"


def stack(pid: int, frames: str) -> str:
    return f'Process {pid}: python3 -u train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n{frames}'


def test_the_rank_that_stands_elsewhere_hangs(tmp_path: Path) -> None:
    for rank in range(4):
        frames = WAITS if rank != 2 else "    read (data.py:7)\n    main (train.py:30)\n"
        (tmp_path / f"rank{rank}.txt").write_text(stack(100 + rank, frames))
    answer = answer_of(tmp_path)
    assert said(answer) == ("rank_hung", 2)
    assert "read (data.py:7)" in present(answer.cause).text


def test_all_in_the_same_place_names_nobody(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(stack(100 + rank, WAITS))
    answer = answer_of(tmp_path)
    assert answer.cause is None or answer.cause.rank is None


def test_stacks_in_one_file_name_the_process_and_leave_out_the_launcher(tmp_path: Path) -> None:
    agent = stack(99, "    _invoke_run (torch/distributed/elastic/agent/server/api.py:838)\n")
    dumps = [stack(100 + n, WAITS if n != 1 else "    decode (data.py:7)\n") for n in range(3)]
    cause = cause_of("$ for p in $(pgrep python); do py-spy dump --pid $p; done\n" + agent + "".join(dumps), tmp_path)
    assert (cause.what, cause.rank) == ("rank_hung", None)
    assert "process 101 stands in decode (data.py:7)" in cause.text


def test_titles_above_stacks_name_the_ranks(tmp_path: Path) -> None:
    """Rank 0 waits for a thread of its own, not for the others."""
    frames = "    wait (threading.py:302)\n    get (queue.py:170)\n    __next__ (iterators.py:648)\n"
    text = f'rank0:\nThread 0x7FA6 (idle): "MainThread"\n{frames}\nall the other ranks:\nThread 0x7F8C (active): "MainThread"\n{WAITS}'
    cause = cause_of(text, tmp_path)
    assert (cause.what, cause.rank) == ("rank_hung", 0)
    assert "__next__ (iterators.py:648)" in cause.text


def test_ras_names_who_launched_fewer_operations(tmp_path: Path) -> None:
    text = (
        "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n"
        "      2          2            1          4        4\n\nCommunicators... (0.00s)\n=============\n\nErrors\n======\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  Rank 1 has launched up to operation 1140 -- GPU 1 managed by process 5519 on node 172.16.64.213\n"
        "  Rank 0 has launched up to operation 1146 -- GPU 0 managed by process 5518 on node 172.16.64.213\n"
        "  2 ranks have launched up to operation 1146\n"
    )
    assert said(answer_to(text, tmp_path)) == ("rank_behind", 1)


_FAULTHANDLER = """Thread 0x00007f4fe54b0480 (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 320 in wait
  File "/usr/lib/python3.10/site-packages/tqdm/_monitor.py", line 60 in run

Thread 0x00007f4fe54b0481 (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 607 in wait
  File "/w/scheduler.py", line 1147 in next_batch
  File "/w/scheduler.py", line 519 in event_loop
"""


@pytest.mark.parametrize("text", [_FAULTHANDLER, _FAULTHANDLER.partition("\n")[2]], ids=["whole", "without its head"])
def test_one_stack_tells_where_the_process_stands_and_not_why(text: str, tmp_path: Path) -> None:
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, said(answer)) == ("unknown", ("stalled", None))
    assert answer.cause is not None
    assert "next_batch" in answer.cause.text
    assert "Traceback" not in str(answer.cause.evidence)


def test_a_stack_of_a_job_that_reached_its_end_tells_of_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "stack.txt").write_text(_FAULTHANDLER)
    (tmp_path / "train.log").write_text("[rank0]: step 1\n[rank0]: step 2\n[rank0]: Training completed\n")
    assert said(answer_of(tmp_path))[0] == "healthy"


def test_a_crash_that_faulthandler_tells_of_stays_a_crash(tmp_path: Path) -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f4f (most recent call first):\n"
        + _FAULTHANDLER
    )
    assert said(answer_to(text, tmp_path))[0] == "segfault"
