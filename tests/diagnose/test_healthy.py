"""Long, noisy logs of jobs that are well: nothing is found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.diagnose.asking import answer_of, answer_to, cause_of, said

NOISE = """\
gpu-n01:2325066:2325349 [3] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)
gpu-n01:2325066:2325349 [3] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so
gpu-n01:2325066:2325349 [3] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.
gpu-n01:2325066:2325349 [3] NCCL INFO NET/IB : No device found.
gpu-n01:2325066:2325349 [3] NCCL INFO NVLS multicast support is not available on dev 3
gpu-n01:2325066:2325349 [3] NCCL INFO Failed to open libibverbs.so[.1]
gpu-n01:2325066:2325349 [0] misc/cudawrap.cc:179 NCCL WARN Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='') :
gpu-n01:2325066:2325349 [0] graph/xml.cc:119 NCCL WARN Could not find real path of /sys/class/net/eth0/device
gpu-n01:2325066:2325349 [0] init.cc:144 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!
[W1122 10:59:48.058920817 socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).
[rank2]:[W1122 10:59:48.05 ProcessGroupNCCL.cpp:4571] [PG ID 0 PG GUID 0 Rank 2]  using GPU 2 as device used by this process is currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.
W1122 10:59:48.054000 13053 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default
WARNING:root:retry 2 of 5: HTTPError 503, Connection reset by peer
Exception ignored in: <function Loader.__del__ at 0x7f>
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1506, in __del__
AttributeError: 'Loader' object has no attribute '_workers'
--- Logging error ---
Traceback (most recent call last):
  File "/usr/local/lib/python3.11/logging/__init__.py", line 1110, in emit
ValueError: I/O operation on closed file.
/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py:841: UserWarning: c10d::broadcast_: an autograd kernel was not registered
wandb: ERROR Error while calling W&B API: timed out
validation error 0.31, false positive rate 0.02, failed samples: 0, killed branches: 0
early_stopping: true, patience: 5
(raylet) Warning: 1 worker died? no: restarted
0 errors, 0 warnings
slurmstepd: info: Setting TmpFS
"""
GOODBYE = (
    '[rank1]:[W1122 11:59:48.05 ProcessGroupNCCL.cpp:1826] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" flag '
    "on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n"
    "[rank0]:[W1122 11:59:48.05 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before "
    "program exit, which can leak resources.\n"
)


def noisy(seed: int, lines: int = 3000) -> str:
    chance = random.Random(seed)
    noise = NOISE.split("\n")
    made: list[str] = []
    for step in range(lines):
        made.append(f"[rank{step % 4}]: step {step} loss {3 / (step + 1):.4f} grad norm: 0.3")
        if chance.random() < 0.02:
            made += noise
    return "\n".join([*noise, *made, *noise]) + "\n"


@pytest.mark.wide(every=5)
@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_job_that_ended_well_is_well(seed: int, tmp_path: Path) -> None:
    assert said(answer_to(noisy(seed) + "training finished\n" + GOODBYE, tmp_path)) == ("healthy", None)


def test_noise_of_the_start_alone_is_nothing(tmp_path: Path) -> None:
    for line in NOISE.split("\n"):
        if not line.startswith(("Traceback", "  File", "Attrib", "Value", "Exception", "---")):
            answer = answer_to(line + "\n", tmp_path)
            assert answer.verdict != "cause", line


def test_counts_with_a_time_to_their_end_are_work(tmp_path: Path) -> None:
    counts = "".join(f"  [{n:3}/782]  eta: 0:01:24    time: 0.170265  data: 0.000275\n" for n in range(290, 400, 10))
    assert answer_to(counts, tmp_path).verdict == "nothing"
    served = "INFO 11-28 15:34:26 [loggers.py:236] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: {} tokens/s, Running: 4 reqs\n"
    assert answer_to(3 * served.format("163.2"), tmp_path).verdict == "nothing"
    assert answer_to(3 * served.format("0.0"), tmp_path).verdict == "unknown"
    timed = "[Rank 0] rank=0 time (ms) | forward_microstep: {} | backward_microstep: 0.00\n"
    assert answer_to("".join(timed.format(1330 + n / 7) for n in range(4)), tmp_path).verdict == "nothing"
    assert answer_to(timed.format("0.00"), tmp_path).verdict == "unknown"
    for other in ("load-checkpoint: 3521.56", "forward: 33.2 | backward: FAILED", "forward: 33.2 failed to read"):
        assert answer_to(3 * f"time (ms) | {other}\n", tmp_path).verdict != "nothing"


def test_steps_without_loss_and_gradient_are_no_healthy_job(tmp_path: Path) -> None:
    step = "{{'loss': {}, 'grad_norm': {}, 'learning_rate': 4e-07, 'epoch': 0.{:02}}}\n"
    for values, verdict in (
        ([("0.0", "0.0")] * 5, "unknown"),
        ([("1.3", "0.2")] * 9 + [("0.0", "0.0")] * 5, "unknown"),
        ([("0.0", "0.0")] * 9 + [("1.3", "0.2")], "nothing"),
        ([("0.0", "0.31")] * 9, "nothing"),
        ([("0.0", "0.0")] * 4, "nothing"),
    ):
        log = "".join(step.format(*pair, number + 1) for number, pair in enumerate(values))
        answer = answer_to(log, tmp_path)
        assert (answer.verdict, "learns nothing" in answer.reason) == (verdict, verdict == "unknown"), values


def test_a_job_that_still_runs_is_well(tmp_path: Path) -> None:
    assert said(answer_to(noisy(9), tmp_path)) == ("healthy", None)


@pytest.mark.wide
def test_an_xid_of_some_program_does_not_matter_to_a_job_that_ended_well(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(noisy(3) + "training finished\n")
    (tmp_path / "dmesg.txt").write_text(
        "[Fri Aug 16 02:43:00 2024] NVRM: Xid (PCI:0000:dc:00): 31, pid=7, name=demo, Ch 8, MMU Fault\n"
    )
    assert said(answer_of(tmp_path)) == ("healthy", None)


_RANK_3_RAISED = (
    '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/t.py", line 3, in f\n[rank3]:     f()\n'
    "[rank3]: ValueError: bad shape\n"
)


@pytest.mark.parametrize("killed", ["", "[ 1234.6] Killed process 999 (chrome) total-vm:1kB\n"], ids=["cut", "whole"])
@pytest.mark.parametrize(
    ("end", "expected"),
    [("training finished\n", ("healthy", None)), (_RANK_3_RAISED, ("user_exception", 3))],
    ids=["healthy", "failed"],
)
def test_who_asked_the_kernel_for_memory_is_not_whom_it_killed(
    end: str, expected: tuple[str, int | None], killed: str, tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text("n1:77:78 [0] NCCL INFO Using network IB\nstep 1 loss 2.0\n" + end)
    asked = "python" if killed or "finished" in end else "chrome"
    (tmp_path / "dmesg.txt").write_text(f"[ 1234.5] {asked} invoked oom-killer: gfp_mask=0xcc0, order=0\n{killed}")
    assert said(answer_of(tmp_path)) == expected


_INIT = "n1:{0}:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank {1} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x1 - Init COMPLETE\n"
_OPTION = "n1:7:9 [0] misc/x.cc:1 NCCL WARN Call to cudaGetDriverEntryPoint failed\n"
_COMMUNICATORS = _INIT.format(7, 0) + _INIT.format(8, 1)


@pytest.mark.parametrize(
    "text",
    [
        _OPTION + _COMMUNICATORS,
        "WARNING: which nvcc returned non-zero exit status 1.\n" + _COMMUNICATORS,
        "step 1 loss 2.0\nTraining finished\nwandb: upload helper exited with code 1\n",
        "[rank0]: ConnectionError: upload not possible\nCould not reach the hub, model saved to /x; training to epoch 9 finished.\n",
        "ValueError: no such key, using the default\nstep 1 loss 2.0\n",
        "step 1 loss 2.0\nTraining finished\nAttributeError: NoneType has no attribute close\n",
        "step 1 loss 2.0\nHTTPError: 503, retrying in 5 s\n",
        "step 1 loss 2.0\nException ignored in: <f>\nTraceback (most recent call last):\n"
        '  File "/a.py", line 2, in f\nAttributeError: NoneType has no attribute close\n',
    ],
    ids=[
        "NCCL lacks an option",
        "a tool is missing",
        "a helper behind the end",
        "an error before the end",
        "an exception before work",
        "an exception behind the end",
        "a retry",
        "an ignored exception",
    ],
)
def test_what_failed_and_stopped_nothing_is_nothing(text: str, tmp_path: Path) -> None:
    assert said(answer_to(text, tmp_path)) == ("healthy", None)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("step 1 loss 2.0\nTraining finished\nContainer train exited with code 1\n", "launcher_table_only"),
        ("step 1 loss 2.0\nupload helper exited with code 1\n", "launcher_table_only"),
    ],
    ids=["the job itself", "nothing behind it"],
)
def test_what_failed_and_may_have_stopped_the_job_is_said(text: str, what: str, tmp_path: Path) -> None:
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, said(answer)) == ("unknown", (what, None))


def test_a_warning_of_a_process_that_has_no_communicator_is_quoted(tmp_path: Path) -> None:
    cause = cause_of(_OPTION + _INIT.format(8, 1), tmp_path)
    assert (cause.what, cause.rank, cause.text) == ("failed_saying", None, "Call to cudaGetDriverEntryPoint failed")


_ELASTIC = "INFO:torch.distributed.elastic.agent.server.api:[default] "


@pytest.mark.parametrize(
    "text",
    [
        f"{_ELASTIC}Detected 1 new nodes from group_rank=0; will restart worker group\n{_ELASTIC}Stopping worker group\n"
        "Sending process 77 closing signal SIGTERM\n  restart_count=1\n",
        "n1:7:9 [0] graph/flux.cc:1 NCCL WARN The flux of device 3 is low\n" + _COMMUNICATORS,
        "#       size         count      type   redop    root     time   algbw\n       8             2     float     sum      -1\n",
        "GPU available: True (cuda), used: True\nWARNING: an error of the tracker was ignored\n",
        "[2024-09-11 17:52:18,030] [INFO] [loss_scaler.py:183:update_scale] OVERFLOW! Skipping step. Attempted loss scale: 4, "
        "reducing to 2\n",
        "time=2025-11-12T03:11:01Z level=INFO source=t.go:42 msg=compute id=GPU-cdf library=CUDA error=nil\n",
        "2021-10-12 20:59:07.6: W tensorflow/core/common_runtime/bfc_allocator.cc:272] Allocator (GPU_0_bfc) ran out of memory "
        "trying to allocate 16.00MiB with freed_by_count=0. The caller indicates that this is not a failure.\n"
        + "".join(f"Epoch {n}/4 - loss: 1.2\n" for n in range(4)),
        "[    6.123456] ERST: Error Record Serialization Table (ERST) support is initialized.\n",
        "[Mon Jun  3 12:00:00 2024] EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro, error policy: none\n",
        "INFO 08-12 01:36:10 [core.py:58] Failed to import the tuner, going on\nINFO 08-12 01:36:10 core.py:58] error: none\n",
        "[batch=10/100]:\n         Train time/epoch: 0\n         Test Error: 12.3%\n",
        "epoch 3 loss 2.1\nTest Error:\n Accuracy: 71.2%, Avg loss: 0.79\n",
        "NAME     READY   STATUS    RESTARTS   AGE\nw-0         1/1     Running   0          2m32s\n",
        "INFO 08-12 01:36:10 [core.py:58] Starting the engine\nINFO:     Application startup complete.\n",
        "(PlacementGroupCleaner pid=3) Failed to query the controller. Continuing to monitor.\n",
        "Failed to import flash_attn\n  5%|#         | 5/100 [00:10<03:20,  2.11s/it]\n",
        "Training finished\n[2024-01-22 16:50:49,553] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 1080\n",
    ],
    ids=[
        "a group grows",
        "NCCL goes on",
        "nccl-tests",
        "a warning",
        "a loss scale",
        "a server",
        "less memory than wished",
        "a kernel starts",
        "dmesg -T",
        "a server's information",
        "Composer",
        "an error rate",
        "pods that run",
        "a server's logger",
        "Ray's cleaner",
        "a bar moves on",
        "the launcher clears up",
    ],
)
def test_a_known_log_in_which_nothing_fails_has_no_cause(text: str, tmp_path: Path) -> None:
    answer = answer_to(text, tmp_path)
    assert answer.cause is None
    signs = ("Epoch ", "epoch ", "5/100", "10/100", "finished", "COMPLETE", "startup complete")
    moved = any(word in text for word in signs)
    assert answer.verdict == ("nothing" if moved else "unknown")  # without work or an end, nothing found proves nothing


_STEPS = "".join(f"step {n} loss 1.2\n" for n in range(300))


@pytest.mark.parametrize("command", ["nvidia-smi", "python"])
@pytest.mark.parametrize(
    ("end", "expected"),
    [(_STEPS, ("healthy", None)), (_RANK_3_RAISED, ("user_exception", 3))],
    ids=["healthy", "failed"],
)
def test_a_check_that_took_too_long_before_the_job_is_not_its_time_limit(
    command: str, end: str, expected: tuple[str, int | None], tmp_path: Path
) -> None:
    text = f"timeout: sending signal TERM to command '{command}'\nWorld size: 8\n{end}"
    assert said(answer_to(text, tmp_path)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "[1]+  Killed                  nvidia-smi dmon > train.log",
        "Aborted",
        "KeyboardInterrupt",
        "Process 3 exit with status code 1.",
        "malloc(): jemalloc 5.3 preloaded",
        "job.sh: line 17: 12345 Terminated              nvidia-smi dmon",
        "If the node was preempted: resume from the last checkpoint",
        "Known reasons: TERM_PREEMPT, TERM_RUNLIMIT, TERM_MEMLIMIT",
    ],
)
def test_the_end_of_a_helper_in_a_job_that_works_on_is_nothing(line: str, tmp_path: Path) -> None:
    assert said(answer_to(f"{_STEPS}{line}\n{_STEPS}training finished\n", tmp_path)) == ("healthy", None)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-20 10:00:00,000] [INFO] [launch.py:319:sigkill_handler] Main process received SIGTERM, exiting",
        "[1]+  Killed                  nvidia-smi dmon > train.log",
    ],
)
def test_a_signal_behind_the_end_of_the_job_is_nothing(line: str, tmp_path: Path) -> None:
    assert said(answer_to(f"{_STEPS}Training completed successfully\n{line}\n", tmp_path)) == ("healthy", None)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Killed", "killed_sigkill"),
        ("[1]+  Killed                  CUDA_VISIBLE_DEVICES=0 python pretrain.py > a.log", "killed_sigkill"),
        ("malloc(): unaligned tcache chunk detected", "process_died_unknown"),
        ("Killed\nstep 301 loss 1.2\nstep 302 loss 1.2", "killed_sigkill"),  # written late
    ],
)
def test_the_done_of_a_script_does_not_hide_that_its_job_was_killed(line: str, what: str, tmp_path: Path) -> None:
    assert said(answer_to(f"{_STEPS}{line}\nJob finished\n", tmp_path)) == (what, None)


_NO_KERNELS = (
    "/opt/cuda.py:230: UserWarning: Quadro K2000 with CUDA capability sm_30 is not compatible with the current PyTorch "
    "installation."
)


@pytest.mark.parametrize(
    "work", ["{0}%|##  | {0}/100 [00:01<00:05, 1it/s]\n", "loss: 2.{0} lr 1e-4\n"], ids=["bar", "loss"]
)
@pytest.mark.parametrize(
    "line",
    [
        _NO_KERNELS,
        "Failed to initialize NVML: Unknown Error",
        "PytorchStreamReader failed reading zip archive: failed finding central directory, using legacy loader",
        "WARNING: could not import flash_attn: /x.so: version `GLIBCXX_3.4.29' not found (required by /x.so)",
        "ERROR uncaught RuntimeError: in thread MetricsUploader, ignored",
        "2026-11-20 10:00:00.1: W tensorflow/core/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to "
        "allocate 2.3GiB with freed_by_count=0. The caller indicates that this is not a failure",
        "n1:77:78 [0] NCCL WARN NET/IB : Unable to open device mlx5_3",
    ],
)
def test_a_warning_before_work_without_the_number_of_a_step_is_nothing(line: str, work: str, tmp_path: Path) -> None:
    text = f"{line}\nWorld size: 8\n" + "".join(work.format(n) for n in range(1, 101))
    assert said(answer_to(text, tmp_path)) == ("healthy", None)


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (_RANK_3_RAISED, ("user_exception", 3)),
        ("[ 1234.5] NVRM: Xid (PCI:0000:dc:00): 79, pid=7, GPU has fallen off the bus.\n", ("gpu_lost", None)),
        ("Exception: Current loss scale already at minimum - cannot decrease it. Exiting.\n", ("nan", None)),
    ],
    ids=["traceback", "a lost GPU", "its last line"],
)
def test_a_bar_behind_an_exception_or_a_fault_of_a_gpu_is_no_proof_of_work(
    exception: str, expected: tuple[str, int | None], tmp_path: Path
) -> None:
    assert said(answer_to(exception + "5%|#   | 5/100 [00:01<00:05, 1it/s]\n" * 8, tmp_path)) == expected


@pytest.mark.parametrize("start", ["[default] Rendezvous'ing worker group\n", "Init torch distributed begin.\n"])
def test_a_start_behind_which_a_bar_moves_is_over(start: str, tmp_path: Path) -> None:
    bars = "".join(f"{n}%|#  | {n}/15 [00:01<00:05, 1it/s]\n" for n in range(1, 16))
    assert said(answer_to(start + bars, tmp_path)) == ("healthy", None)


def test_right_results_and_small_errors_of_nccl_tests_are_nothing(tmp_path: Path) -> None:
    row = "  {0}    256  float  sum  -1    12.90    0.00    0.00  {1}    12.87    0.00    0.00  {1}\n"
    rows = "".join(row.format(1024 * n, wrong) for n, wrong in enumerate(("0", "5e-07", "1e-06", "N/A", "0e+00"), 1))
    answer = answer_to(rows + "# Out of bounds values : 0 OK\n", tmp_path)
    assert (answer.verdict, said(answer)) == ("nothing", ("healthy", None))


def test_a_stall_that_was_overcome_is_nothing(tmp_path: Path) -> None:
    stall = "[2020-12-30 16:35:15.18: W horovod/common/stall_inspector.cc:107] waiting for remainder of ranks\n"
    text = f"{stall}Missing ranks:\n2: [broadcast.noname.1]\n" + "".join(
        f"Epoch {n}/40 - loss: 1.2\n" for n in range(40)
    )
    assert said(answer_to(text, tmp_path)) == ("healthy", None)


def test_a_log_that_ends_in_mid_line_before_any_end_tells_so(tmp_path: Path) -> None:
    steps = "".join(f"step {step} loss {3 / (step + 1):.4f}\n" for step in range(40))
    told = "job.log has no end: it is still being written"
    # whoever buffers its output writes parts of lines
    cut = answer_to(steps[:-4], tmp_path)
    assert (cut.verdict, told in cut.reason) == ("nothing", True)
    # a bar has no line end while the job runs; escapes, and zeros that a file system left, are no line
    bar = "\r 41/100 [00:10<00:12]\r 42/100 [00:10<00:12]"
    for end in ("", "training finished", bar, "\x1b[0m", "\0" * 9):
        answer = answer_to(steps + end, tmp_path)
        assert (answer.verdict, told in answer.reason) == ("nothing", False)
    # without a step it is as unknown as with the end of its line
    assert answer_to("torchrun: world size 2\nstarting the lo", tmp_path).verdict == "unknown"


def test_an_epoch_is_no_step_and_the_summary_of_a_trainer_is_an_end(tmp_path: Path) -> None:
    step = "{'loss': 2.01, 'grad_norm': 1.1, 'learning_rate': 2e-05, 'epoch': 1.0}\n"
    end = "{'train_runtime': 312.4, 'train_steps_per_second': 2.0, 'train_loss': 2.1, 'epoch': 1.0}\n"
    unfinished, finished = answer_to(step, tmp_path), answer_to(step + end, tmp_path)
    assert "its last epoch is 1, no end is seen" in unfinished.reason
    assert "no end is seen" not in finished.reason
    assert (unfinished.verdict, finished.verdict) == ("nothing", "nothing")


def test_a_trainer_that_stopped_at_its_limit_has_ended(tmp_path: Path) -> None:
    answer = answer_to("`Trainer.fit` stopped: `max_steps=40` reached.\n", tmp_path)
    assert (answer.verdict, answer.recognised) == ("nothing", True)


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        (" [2026-11-28 18:48:17] iteration       50/    5000 | elapsed time per iteration (ms): 616.3 |\n", False),
        (
            "***** train metrics *****\n  epoch                    =        3.0\n  train_runtime            = 0:36:58.55\n",
            True,
        ),
    ],
)
def test_a_padded_counter_of_iterations_and_a_table_of_metrics_are_of_a_training(
    text: str, ended: bool, tmp_path: Path
) -> None:
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, answer.recognised) == ("nothing", True)
    assert ("no end is seen" not in answer.reason) is ended


def test_prose_about_iterations_is_no_log(tmp_path: Path) -> None:
    answer = answer_to("In each iteration (3/4) we look at the GPU\nStep 1/3: install the driver\n", tmp_path)
    assert not answer.recognised


@pytest.mark.parametrize("line", ["step            1  install driver", "Docs: iteration            5 of the protocol"])
def test_a_number_far_behind_a_word_is_no_progress(line: str, tmp_path: Path) -> None:
    assert answer_to(f"n1:1:2 [0] NCCL INFO Bootstrap\n{line}\n", tmp_path).verdict == "unknown"
