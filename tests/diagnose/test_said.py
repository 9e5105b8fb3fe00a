"""What programs say in words that no table knows, and what must not be taken for it: defects with the tools' own words."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpudoctor.cli.main import main
from tests.diagnose.asking import answer_of, answer_to, cause_of, said
from tests.narrowed import present

_STEPS = "".join(f"step {n} loss 1.2\n" for n in range(5))
_KEY_ERROR = (
    "step 9 loss 2.0\nTraceback (most recent call last):\n  File \"train.py\", line 3, in f\n    x\nKeyError: 'label'\n"
)
_BIND = (
    "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use).\n"
    "[E socket.cpp:462] [c10d] The server socket has failed to listen on any local network address.\n"
)
_ALLOC = "n1:7:9 [4] misc/socket.cc:415 NCCL WARN socketTryAccept: Accept failed: Bad file descriptor\n"


@pytest.mark.parametrize(
    ("text", "what", "words"),
    [
        ('srun: unrecognized option "--gpus-per-nod"\n', "failed_saying", "unrecognized option"),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\nfailed (exitcode: 2) local_rank: 0 (pid: 7)"
         " of binary: python\n", "failed_saying", "train.py: error: unrecognized arguments: --x"),
        (_BIND, "port_in_use", "failed to listen"),
        (_ALLOC + "n1:7:9 [4] NCCL INFO init.cc:1388 -> 2\n", "failed_saying", "Accept failed: Bad file descriptor"),
        ("terminate called after throwing an instance of 'x::E'\n  what():  MPI error 6\n[box:02815] Signal: Aborted (6)\n",
         "failed_saying", "what():  MPI error 6"),
        ("/a.cu:106: void f(T *) [with T = float]: block: [0,0,0] Assertion `t >= 0` failed.\n", "cuda_device_assert", "t >= 0"),
        ("python: loader.cc:106: void f(int): Assertion `n > 0' failed.\n", "failed_saying", "n > 0"),
        (_KEY_ERROR.replace("KeyError: 'label'", "UnavailableError: recvmsg:Connection timed out"),
         "failed_saying", "recvmsg:Connection timed out"),
        (_KEY_ERROR.replace("KeyError: 'label'", "ValueError: host not found: Name or service not known"),
         "failed_saying", "host not found"),
        ("srun: error: task 0 launch failed: Unspecified error\nsrun: error: task 1 launch failed: Unspecified error\n",
         "failed_saying", "task 0 launch failed"),
        ("slurmstepd: error:  mpi/pmix_v3: ring.c:742: collective timeout seq=0\n"
         "slurmstepd: error:  mpi/pmix_v3: coll.c:281: Dumping collective state\n", "failed_saying", "timeout seq=0"),
        (_KEY_ERROR.replace("KeyError: 'label'", "RuntimeError: no import because of this error:\n/lib/a.so: undefined symbol: f"),
         "user_exception", "undefined symbol: f"),
        (_KEY_ERROR.replace("KeyError: 'label'", "RuntimeError: The node is a straggler and exits."),
         "failed_saying", "straggler"),
        (_KEY_ERROR.replace("KeyError: 'label'", "RuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 196.00M."),
         "cuda_oom", "196.00M"),
        ("2026-10-22 02:48:58 10.128.0.33 [3]   (1) Resource exhausted: Attempting to allocate 180.59M. (0x3x0_HBM1)\n",
         "cuda_oom", "180.59M"),
        ("ERROR 02-21 11:25:10 base.py:581]     weights = model.load_weights(\n"
         'ERROR 02-21 11:25:10 base.py:581]   File "/usr/local/lib/python3.10/vllm-0.7.4.dev8\n'
         '+cu124.egg/vllm/model_executor/models/deepseek_v2.py", line 773, in load_weights\n'
         "ERROR 02-21 11:25:10 base.py:581]     param = params_dict[name]\n"
         "ERROR 02-21 11:25:10 base.py:581] KeyError: 'model.layers.55'\n", "user_exception", "KeyError: 'model.layers.55'"),
        ("[2026-05-27T10:42:30.509] sched: Allocate JobId=127441 NodeList=c014 #CPUs=2 Partition=gpu\n"
         "[2026-05-27T11:37:57.377] _job_complete: JobId=127441 WTERMSIG 9\n", "killed_sigkill", "SIGKILL"),
        ("2026-05-04 08:11:02.117001: F tensorflow/core/kernels/random_op_gpu.h:227] Non-OK-status: GpuLaunchKernel(f, "
         "num_blocks, d.stream(), dist) status: Internal: out of memory\n", "cuda_oom", "out of memory"),
        ("Train on all nodes: error: unrecognized arguments: --fast\n", "failed_saying", "unrecognized arguments: --fast"),
        ("loader.c(88):ERROR:7: no module of the name 'gpu'\n", "failed_saying", "no module of the name"),
        # the text is cut off in its traceback: what was warned of right above it
        ("2026-04-04 13:09:09.579104: W core/save.cc:12] WRITE failed at save.cc:10 : Permission denied: /data\n"
         'Traceback (most recent call last):\n  File "save.py", line 3, in save\n    write(x)\n', "failed_saying", "Permission denied: /data"),
        ("│ ❱ 3   load(x)   │\n╰─────────╯\nException: no token at line 4\n"
         "failed (exitcode: 1) local_rank: 0 (pid: 24) of binary: python\n", "user_exception", "no token at line 4"),
        ("It looks like pmix_init failed for some reason; your parallel process is\nlikely to abort.\n",
         "mpi_failed", "pmix_init failed"),
        ("bash: /opt/mpi/bin/orted: No such file or directory\n------\nORTE was unable to start a daemon.\n",
         "mpi_failed", "; before it: bash: /opt/mpi/bin/orted: No such file"),
        # what a launcher tells people stands between rules
        (f"{_STEPS}{'-' * 60}\nOne daemon was unable to open a TCP connection\nto its parent:\n  Local host: a1\n{'-' * 60}\n",
         "failed_saying", "unable to open a TCP connection"),
        # the end of a traceback whose lines have lost their indent
        ("ERROR 02-21 11:25:10 base.py:581] self.load(part,\nERROR 02-21 11:25:10 base.py:581] raise KeyError(name)\n"
         "ERROR 02-21 11:25:10 base.py:581] KeyError: 'layers.55'\n", "user_exception", "KeyError: 'layers.55'"),
    ],
)  # fmt: skip
def test_what_a_program_said_last_before_it_failed_is_quoted(text: str, what: str, words: str, tmp_path: Path) -> None:
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, said(answer)) == ("cause", (what, None))
    assert words in present(answer.cause).text


def test_who_died_first_comes_before_what_others_say_of_it(tmp_path: Path) -> None:
    worker = (
        "ERROR 11-08 11:01:29 [multiproc_executor.py:135] Worker proc VllmWorker-3 died unexpectedly, shutting down.\n"
    )
    engine = "ERROR 11-08 11:01:30 [core.py:502] EngineCore encountered a fatal error.\napp: error: cannot go on\n"
    cause = cause_of(worker + engine, tmp_path)
    assert (cause.what, cause.rank) == ("process_died_unknown", None)
    assert "VllmWorker-3" in cause.text
    own = cause_of("app: error: the flux is empty\n" + worker + engine, tmp_path)
    assert own.text == "app: error: the flux is empty"


@pytest.mark.parametrize(
    "exception",
    [
        "RuntimeError: x.cpp:281 OPS function error: HcclAllreduce, error code is 6",
        "RuntimeError: INTERNAL: From /job:c_localservice/replica:0/task:0:",
        "RuntimeError: Nrt::Load failed on NeuronCores 0-0(2): nrt_load status=1",
        "RuntimeError: synStatus=26 [Generic failure] Device acquire failed on HPU",
        "ValueError: level_zero backend failed: UR_RESULT_ERROR_DEVICE_LOST",
        "RuntimeError: timed out while the workers wait for a peer",
    ],
)
def test_what_an_accelerators_runtime_or_a_peer_raised_is_never_certainly_the_program(
    exception: str, tmp_path: Path
) -> None:
    cause = cause_of(_KEY_ERROR.replace("KeyError: 'label'", exception), tmp_path)
    assert (cause.what != "user_exception", cause.confidence != "certain") == (True, True)


def test_what_others_say_of_a_worker_that_died_is_not_its_reason(tmp_path: Path) -> None:
    died = (
        "2026-01-31 01:53:03,438\tWARNING driver.py:12 -- A worker died or was killed while executing a task. "
        "Worker IP address: 10.0.0.2 Worker port: 42 Worker PID: 85\n"
    )
    other = (
        "2026-01-31 01:53:03,440\tERROR driver.py:85 -- Unhandled error: Reader.read() (pid=8)\n"
        '  File "/home/me/reader.py", line 3, in read\n    get(x)\nray.exceptions.RayActorError: The actor died.\n'
    )
    assert said(answer_to(died + other, tmp_path)) == ("process_died_unknown", None)


def test_an_exit_status_that_a_script_raises_is_no_reason(tmp_path: Path) -> None:
    text = _KEY_ERROR.replace("KeyError: 'label'", "RuntimeError: stage 2 exited with non-zero status 2")
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, said(answer)) == ("unknown", ("launcher_table_only", None))


def test_who_interrupts_a_job_ends_it_even_while_an_object_is_deleted(tmp_path: Path) -> None:
    text = (
        "step 3 loss 1.0\nException ignored in: <function Iter.__del__ at 0x7f33d805aa20>\n"
        'Traceback (most recent call last):\n  File "/home/me/load.py", line 3, in __del__\n    self.lock()\nKeyboardInterrupt:\n'
    )
    assert said(answer_to(text, tmp_path)) == ("terminated_signal", None)
    assert said(answer_to(text.replace("KeyboardInterrupt:", "OSError: busy"), tmp_path)) == ("healthy", None)


@pytest.mark.parametrize(
    "raised",
    [
        "ValueError: download finished with status 404",
        "my.DataError: record 5 ended with code 0xff, file corrupt",
        "RuntimeError: the evaluation returned with code 5",
    ],
)
def test_a_code_that_is_of_no_process_is_the_programs_own(raised: str, tmp_path: Path) -> None:
    answer = answer_to(_KEY_ERROR.replace("KeyError: 'label'", raised), tmp_path)
    assert (answer.verdict, answer.cause and answer.cause.what) == ("cause", "user_exception")


def test_a_level_inside_a_word_is_none(tmp_path: Path) -> None:
    steps = "".join(f"step {step} loss 1.2\n" for step in range(30))
    assert said(answer_to(f"{steps}module:ERR:3\n", tmp_path)) == ("healthy", None)
    assert said(answer_to(f"{steps}loader.c:88:ERROR: the shard is empty\n", tmp_path)) == ("failed_saying", None)


def test_step_0_is_no_proof_that_a_job_moved(tmp_path: Path) -> None:
    start = "INFO Loading checkpoint shards: 100%|█████| 4/4 [01:19<00:00,  5.69s/it]\nINFO starting from step 0\nINFO starting the loop\n"
    assert answer_to(start, tmp_path).verdict == "unknown"
    assert answer_to(start + "step 0 loss 1.2\n", tmp_path).verdict == "nothing"


def test_a_part_that_a_launcher_can_do_without_is_no_cause(tmp_path: Path) -> None:
    text = f"srun: job 3 starts\n{'-' * 60}\nA wanted component was not found, or was unable to be opened.  This\nmeans little.\n{'-' * 60}\n"
    assert answer_to(text, tmp_path).verdict == "unknown"


def test_the_places_under_a_sentence_and_its_next_line_belong_to_it(tmp_path: Path) -> None:
    rule = "-" * 60
    text = f"mpirun: job 3 starts\n{rule}\nA task was unable to complete a UDP connection\nto its partner:\n  Local host:   n7\n  Remote host:  n8\nAsk somebody.\n{rule}\n"
    cause = cause_of(text, tmp_path)
    assert (
        cause.text == "A task was unable to complete a UDP connection to its partner: Local host: n7, Remote host: n8"
    )
    ended = text.replace("UDP connection\nto its partner:", "UDP connection. Or\nso it seems.")
    assert (found := answer_to(ended, tmp_path).cause) is not None
    assert found.text == "A task was unable to complete a UDP connection. Or"
    under = "srun: error: the partner is gone for good\n  Node: n9\n"
    assert (found := answer_to(under, tmp_path).cause) is not None
    assert found.text == "srun: error: the partner is gone for good; Node: n9"


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (("/usr/bin/torchrun", "/v/lib/python3.11/site-packages/torch/distributed/run.py"), "failed_saying"),
        (
            ("/v/lib/python3.11/site-packages/ray/_private/node.py", "/usr/lib/python3.11/json/decoder.py"),
            "failed_saying",
        ),
        (
            ("/v/lib/python3.11/site-packages/ray/_private/node.py", "/v/lib/python3.11/site-packages/modelsoup/a.py"),
            "user_exception",
        ),
        (("train.py", "/v/lib/python3.11/site-packages/accelerate/state.py"), "user_exception"),
    ],
)
def test_what_a_launcher_raised_without_a_frame_of_the_program_is_not_the_programs(
    frames: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    shown = "".join(f'  File "{file}", line 8, in f\n    x()\n' for file in frames)
    cause = cause_of(f"Traceback (most recent call last):\n{shown}ValueError: 7 of 9 parts are odd\n", tmp_path)
    assert (cause.what, cause.confidence == "certain") == (what, what == "user_exception")
    assert "7 of 9 parts are odd" in cause.text


def test_a_bar_at_0_is_no_proof_that_a_job_moved(tmp_path: Path) -> None:
    bar = "torchrun: world size 2\nEpoch 0:   {0}%|          | {0}/90 [00:00<?, ?it/s]\n"
    assert answer_to(bar.format(0), tmp_path).verdict == "unknown"
    assert answer_to(bar.format(1), tmp_path).verdict == "nothing"


@pytest.mark.parametrize("words", ["Floating point exception", "Trace/breakpoint trap", "Bad system call"])
def test_each_word_of_a_shell_for_a_death_is_read(words: str, tmp_path: Path) -> None:
    assert cause_of(f"torchrun: world size 2\n{words} (core dumped)\n", tmp_path).what == "process_died_unknown"


def test_a_line_of_docker_that_may_go_on_is_shown_as_it_is(tmp_path: Path) -> None:
    words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLREDUCE, Timeout(ms)=1800000)"
    line = f'{{"log":"[rank3]:[E816 02:52:53.183 ProcessGroupNCCL.cpp:607] [Rank 3] {words}\\n","stream":"stderr"}}'
    assert [each.text for each in cause_of(f"{line}\n", tmp_path).evidence] == [line]


def test_a_status_of_http_is_no_exit_code(tmp_path: Path) -> None:
    steps = "".join(f"step {step} loss 2.5\n" for step in range(9))
    assert answer_to(f"{steps}INFO upload: request returned status 404\n", tmp_path).verdict == "nothing"


def test_what_another_writer_puts_right_behind_a_bar_is_a_line_of_its_own(tmp_path: Path) -> None:
    bar = "[Info: epoch 3: loss 2.5]:  20%|##        | 11/56 [00:02<00:08,  5.02it/s]"
    assert answer_to(f"{bar}\n", tmp_path).verdict == "nothing"
    cause = cause_of(f"{bar}Segmentation fault (core dumped)\n", tmp_path)
    assert cause.what == "segfault"


@pytest.mark.parametrize(
    "line",
    [
        "epoch 0 step {0} lr 0.001",
        "[2026-01-01 00:00:{0:02},000] [INFO] [timer.py:199:stop] epoch=0/micro_step={0}/global_step={0}, MemAllocated=1.2GB",
        "Epoch: [0]  [{0:4}0/1251]  eta: 0:10:00  lr: 0.1  time: 0.3",
        "epoch 0.{0:02} lr 0.001",
    ],
)
def test_a_job_in_its_epoch_0_moves(line: str, tmp_path: Path) -> None:
    steps = [line.format(step) + "\n" for step in range(1, 60)]
    caught = "[rank1]: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\nskipping batch after OOM\n"
    answer = answer_to("".join(["[rank0]: world_size 4\n", *steps[:19], caught, *steps[19:]]), tmp_path)
    assert (answer.verdict, answer.cause) == ("nothing", None)


@pytest.mark.parametrize(
    "line", ["epoch 0 of 10", "epoch 0/10", "Epoch: [0] [0/1251]", "step 0 on 8 GPUs", "epoch=0, max_steps=9"]
)
def test_a_total_or_a_size_behind_a_0_is_no_step(line: str, tmp_path: Path) -> None:
    assert answer_to(f"torchrun: world size 2\nINFO starting at {line}\n", tmp_path).verdict == "unknown"


def test_of_two_loud_lines_the_first_is_shown(tmp_path: Path) -> None:
    cause = cause_of("app: error: the flux is empty\napp: error: cannot go on\n", tmp_path)
    assert cause.text == "app: error: the flux is empty"


def test_a_death_is_told_with_what_the_process_had_said(tmp_path: Path) -> None:
    text = "[rank2]: app: error: the flux is empty\n[rank2]: Fatal Python error: Segmentation fault\n"
    cause = cause_of(text, tmp_path)
    assert (cause.what, cause.rank) == ("segfault", 2)
    assert cause.text.endswith("before that it said: app: error: the flux is empty")


def test_the_rest_of_a_logging_error_is_no_exception(tmp_path: Path) -> None:
    text = (
        "step 1 loss 2.0\nstep 2 loss 2.0\n--- Logging error ---\nTraceback (most recent call last):\n"
        '  File "/usr/lib/python3.10/logging/__init__.py", line 1100, in emit\nTypeError: not all arguments converted\n'
        "Call stack:\n  File \"/w/train.py\", line 9, in <module>\n    main()\nMessage: 'saved'\nArguments: (1,)\n"
    )
    assert said(answer_to(text, tmp_path)) == ("healthy", None)


def test_a_loss_of_nan_in_a_bar_beside_a_finite_loss_is_no_nan(tmp_path: Path) -> None:
    bar = (
        "Epoch 0:   3%|#  | {0}/20101 [2:12:32<76:14:33, 14.05s/it, loss=nan, v_num=, reduced_train_loss=3.910, lr=1]\n"
    )
    assert said(answer_to("".join(bar.format(n) for n in range(9)), tmp_path)) == ("healthy", None)
    assert said(answer_to(bar.format(3).replace("3.910", "nan"), tmp_path))[0] == "nan"
    of_training = bar.format(3).replace("loss=nan, ", "", 1).replace("lr=1", "val_loss={}")
    for training, validation, cause in (("nan.0", "7.04", "nan"), ("3.910", "nan", None)):
        answer = answer_to(of_training.replace("3.910", training).format(validation), tmp_path)
        assert said(answer)[0] == (cause or "healthy")
    for healthy in (
        "loss=nan, v_num=0, val_loss=0.312",
        "loss=2.31, best_val_loss=nan",
        "train_loss=nan, train_loss_step=2.3",
    ):
        assert (
            said(answer_to(f"Epoch 1: 100%|###| 9/9 [00:10<00:00,  9.80it/s, {healthy}]\n", tmp_path))[0] == "healthy"
        )


def test_the_number_of_a_job_step_is_no_training_step(tmp_path: Path) -> None:
    answer = answer_to("srun: Terminating job step 929053.0\n", tmp_path)
    assert answer.verdict == "unknown"


def test_a_barrier_that_counts_fewer_missing_ranks_than_are_silent_names_none(tmp_path: Path) -> None:
    line = (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: {0}, for key: "
        "store_based_barrier_key:1 (world_size=288, worker_count=287, timeout=0:30:00)\n"
    )
    cause = cause_of("".join(line.format(n) * 2 for n in (0, *range(6, 288))), tmp_path)
    assert (cause.what, cause.rank) == ("missing_rank", None)
    assert "1-5" not in cause.text
    assert "1, 2" not in cause.text


def test_a_barrier_that_counts_more_ranks_than_are_named_misses_none_of_the_unnamed(tmp_path: Path) -> None:
    line = (
        "I0510 07:28:04.417845 1398 distributed_c10d.py:337] Waiting in store based barrier to initialize process group "
        "for rank: {}, key: store_based_barrier_key:2 (world_size=8, worker_count=7, timeout=0:30:00)\n"
    )
    answer = answer_to(line.format(2) + line.format(7), tmp_path)
    assert (answer.verdict, said(answer)) == ("unknown", ("init_hang", None))
    assert present(answer.cause).text.startswith("7 of 8 ranks came")


def test_an_introduction_is_quoted_only_if_nothing_follows(tmp_path: Path) -> None:
    introduction = "The tool prints this error message:\n"
    for text, words in (
        (introduction, "this error"),
        (f"{introduction}the shards of it are not available\n", "shards"),
    ):
        cause = cause_of(text, tmp_path)
        assert (cause.what, cause.rank) == ("unknown_error", None)
        assert words in str(cause.evidence[0])


@pytest.mark.parametrize(
    ("exception", "following", "what"),
    [
        ("BackendCompilerFailed: raised:", "RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_ecc"),
        ("RuntimeError: failed:", "[E1128 12:00:00.0 ProcessGroupNCCL.cpp:1000] [PG 0 Rank 3] Process group watchdog "
         "thread terminated with exception: CUDA error: uncorrectable ECC error encountered", "gpu_ecc"),
        ("RuntimeError: failed:", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "cuda_oom"),
    ],
)  # fmt: skip
def test_an_error_below_an_exception_that_ends_in_a_colon_counts_for_itself(
    exception: str, following: str, what: str, tmp_path: Path
) -> None:
    answer = answer_to(_KEY_ERROR.replace("KeyError: 'label'", f"{exception}\n{following}"), tmp_path)
    assert answer.cause is not None
    assert what in (answer.cause.what, *(each.what for each in answer.others), *(each.what for each in answer.also))
    assert "CUDA" not in answer.cause.text or answer.cause.what == what


def test_a_watchdog_that_ended_its_rank_is_no_launcher(tmp_path: Path) -> None:
    line = "[rank6]:[E624 04:14:29.224 ProcessGroupNCCL.cpp:684] [Rank 6] "
    answer = answer_to(f"{line}To avoid data inconsistency, we are taking the entire process down.\n", tmp_path)
    assert (answer.verdict, said(answer)) == ("unknown", ("nccl_unknown", None))
    assert "the watchdog of rank 6" in present(answer.cause).text


def test_events_of_torchelastic_without_an_error_are_the_launchers_words(tmp_path: Path) -> None:
    line = '{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "metadata": {"global_rank": 3, "state": "FAILED"}}'
    answer = answer_to(f"{line}\n", tmp_path)
    assert (answer.verdict, said(answer)) == ("unknown", ("launcher_table_only", None))


def test_steps_with_a_rate_or_a_perplexity_are_a_job_that_moves(tmp_path: Path) -> None:
    lines = "".join(f"  step {n}00 lr 1 step-time 0.07s wps 83.14K ppl 545.74 gN 6.52\n" for n in (1, 2, 3))
    answer = answer_to(lines, tmp_path)
    assert (answer.verdict, answer.recognised) == ("nothing", True)


def test_a_number_in_the_name_of_one_file_is_no_rank(tmp_path: Path) -> None:
    assert said(answer_to(_KEY_ERROR, tmp_path, "lora_rank16_train.log")) == ("user_exception", None)
    (tmp_path / "lora_rank8_train.log").write_text(_STEPS)
    assert said(answer_of(tmp_path)) == ("user_exception", None)


def test_the_name_of_a_logger_is_no_host(tmp_path: Path) -> None:
    line = "[2024-01-01 10:00:0{0},0] torch.distributed.elastic.multiprocessing.api: [WARNING] Sending process {0} closing signal SIGTERM\n"
    cause = cause_of("".join(line.format(n) for n in range(8)), tmp_path)
    assert cause.host is None


def test_the_same_line_again_and_again_at_the_end_is_a_stall(tmp_path: Path) -> None:
    line = "(EngineCore_DP0 pid=7) INFO 12-09 11:2{0}:53 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.\n"
    answer = answer_to(
        "INFO:     Application startup complete.\n" + "".join(line.format(n) for n in range(5)), tmp_path
    )
    assert (answer.verdict, said(answer)) == ("unknown", ("stalled", None))


def test_what_could_not_be_read_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.log").write_text(_STEPS + "Training finished\n")
    assert main(["diagnose", str(tmp_path)]) == 0
    (tmp_path / "bad.log.gz").write_bytes(gzip.compress(_KEY_ERROR.encode() * 99)[:40])
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path)]) == 3
    assert "bad.log.gz" in capsys.readouterr().out


_GUIDE = """## What a full disk looks like

* **What you see:** `OSError: [Errno 28] No space left on device`, and `slurmstepd: error: Detected 1 oom_kill event`.

### 2. What a crash looks like

* **What you see:** `Segmentation fault (core dumped)`; see [the queue's page](queue.md).
"""


def test_a_document_about_errors_is_no_log_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "guide.txt").write_text(_GUIDE)
    for file in (Path(__file__).parents[2] / "README.md", tmp_path / "guide.txt"):
        assert main(["diagnose", str(file)]) == 2
        assert "no log of a job" in capsys.readouterr().out


_XID = "NVRM: Xid (PCI:0000:4b:00): 79, pid=7, GPU has fallen off the bus."


def test_what_a_job_prints_of_hardware_is_likely_and_to_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"{_STEPS}{_XID}\nsrun: error: gpu07: task 3: Killed\n")
    assert main(["diagnose", str(log)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "confidence likely" in shown
    assert "Look before you drain" in shown
    assert "power-cycle" not in shown
    (tmp_path / "dmesg.txt").write_text(f"[ 1234.567890] {_XID}\n")
    cause = present(answer_of(tmp_path).cause)
    assert (cause.what, cause.confidence) == ("gpu_lost", "certain")


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("n7:194:194 [0] transport/p2p.cc:237 NCCL WARN Cuda failure 'invalid argument'\n", "cause"),
        (
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled cuda error, NCCL version 2.18.1\n",
            "unknown",
        ),
    ],
)
def test_a_cuda_error_of_nccl_is_a_cause_if_the_text_names_it(tmp_path: Path, line: str, verdict: str) -> None:
    answer = answer_to(line, tmp_path)
    assert (answer.verdict, answer.cause and answer.cause.what) == (verdict, "nccl_cuda_unknown")


def test_the_words_behind_last_error_are_why_nccl_failed(tmp_path: Path) -> None:
    lines = (
        "RuntimeError: NCCL error in: P.cpp:1197, internal error, NCCL version 2.18.3",
        "ncclInternalError: Internal check failed.",
        "Last error:",
    )
    assert said(answer_to("\n".join(lines) + "\n", tmp_path))[0] == "nccl_unknown"
    answer = answer_to("\n".join((*lines, "Error : ring 1 does not contain rank 0")) + "\n", tmp_path)
    assert (answer.verdict, answer.cause and answer.cause.what) == ("cause", "failed_saying")
    assert present(answer.cause).text == "Error : ring 1 does not contain rank 0"
    for other in (
        "------",
        "none",
        "",
        "Traceback (most recent call last):",
        "wandb: Waiting for W&B process to finish",
    ):
        assert said(answer_to("\n".join((*lines, other)) + "\n", tmp_path))[0] == "nccl_unknown"
    assert (
        said(answer_to("\n".join((*lines, "Done waiting for the peer of channel 2")) + "\n", tmp_path))[0]
        == "failed_saying"
    )


def test_who_aborts_after_nccl_failed_has_told_why(tmp_path: Path) -> None:
    end = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 (pid: 517) of binary: p\n"
    what = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  NCCL error: unhandled system error\n"
    for text, cause in ((what + end, "nccl_unknown"), (end, "process_died_unknown")):
        assert said(answer_to(f"step 1 loss 2\n{text}", tmp_path))[0] == cause
    crash = "double free or corruption (!prev)\n"
    other = "[rank5]: step 7 loss 2\n"
    for between, cause in ((crash, "process_died_unknown"), ("step 9 loss 2\n", "process_died_unknown")):
        assert said(answer_to(f"step 1 loss 2\n{what}{between}{end}", tmp_path))[0] == cause
    assert said(answer_to(f"{other}{what}{end}", tmp_path))[0] == "process_died_unknown"
    # the agent names one of four that ended, and not the first
    answer = answer_to(f"world size: 4\n{what}{end}", tmp_path)
    assert (answer.verdict, answer.cause and answer.cause.rank) == ("unknown", None)


_LSF = """
------------------------------------------------------------
Sender: LSF System <lsfadmin@hpc.example>
Subject: Job 19: <run> in cluster <c> Exited

# LSBATCH: User input
#!/bin/sh
#BSUB -q gpu
# end of BSUB options
python main.py
------------------------------------------------------------

{}

Resource usage summary:
    CPU time :                                   0.66 sec.
"""


@pytest.mark.parametrize(
    ("own", "end", "verdict", "what"),
    [
        (
            "python: can't open file '/x/main.py': [Errno 2] No such file\n",
            "Exited with exit code 2.",
            "cause",
            "launch_failed",
        ),
        ("", "Exited with exit code 2.", "unknown", "launcher_table_only"),
        ("", "Exited with signal termination: 6.", "cause", "process_died_unknown"),
        ("", "Exited with exit code 137.", "cause", "killed_sigkill"),
        ("", "Successfully completed.", "nothing", None),
    ],
)
def test_a_report_of_lsf_is_an_end(tmp_path: Path, own: str, end: str, verdict: str, what: str | None) -> None:
    answer = answer_to(f"{own}{_LSF.format(end)}", tmp_path)
    assert (answer.verdict, answer.recognised, answer.cause and answer.cause.what) == (verdict, True, what)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("40\timages/sec: 154.4 +/- 0.7 (jitter = 4.0)\t8.280\ntotal images/sec: 308.27\n", "nothing"),
        ("NCCL version 2.19\nERROR: worker 3 lost\nsummary: total images/sec: 0.00\n", "cause"),
        ("NCCL version 2.19\n[rank0] target throughput tokens/s: 1200\n", "unknown"),
        ("NCCL version 2.19\n" + "40\timages/sec: 0.0\n" * 9, "unknown"),
        ("NCCL version 2.19\nSuccessfully completed 3 of 8 shards\n", "unknown"),
    ],
)
def test_a_step_with_its_rate_is_work(tmp_path: Path, text: str, verdict: str) -> None:
    assert answer_to(text, tmp_path).verdict == verdict


_BOMBS = {
    "an index of 4 GiB": b"\x80\x02]r\xff\xff\xff\x7fX\x04\x00\x00\x00aaaa.",
    "shared lists": b"\x80\x02}(X\x07\x00\x00\x00entries](}X\x0b\x00\x00\x00input_sizes]q\x00"
    + b"".join(b"](h%ch%ce" % (n, n) + b"q%c" % (n + 1) for n in range(60))
    + b"seu.",
    "depth": b"\x80\x02" + b"(" * 100_000 + b".",
}


@pytest.mark.parametrize("name", list(_BOMBS))
def test_a_dump_that_would_exhaust_its_reader_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(_BOMBS[name])
    (tmp_path / "job.log").write_text(_KEY_ERROR)
    answer = answer_of(tmp_path)
    assert said(answer)[0] == "user_exception"


@pytest.mark.parametrize(
    ("text", "what", "words"),
    [
        (
            "Exception in device=TPU:6: mesh_service.cc:294 : Failed to meet rendezvous 'loss_reduce': Socket closed (14)\n",
            "unknown_error",
            "Socket closed (14): a connection was closed by the other end",
        ),
        ("the shards of it are not available\n", "unknown_error", "are not available: it looks like an error"),
        (
            "[rank6]:[E421 04:13:43.4 ProcessGroupGloo.cpp:143] Rank 6 successfully reached monitoredBarrier, but received "
            "errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n",
            "victims_only",
            "rank 6 only lost a connection: rank 0 ended before that",
        ),
        (
            f"{_STEPS}ABORT!!! Out of all 4 trainers, the trainer process with rank=[1, 2, 3] was aborted. Please check "
            "its log.\n",
            "launcher_table_only",
            "ranks 1, 2 and 3 failed; their own words are in logs that are not in this text",
        ),
    ],
)
def test_what_only_points_elsewhere_is_unknown_and_says_whereto(
    text: str, what: str, words: str, tmp_path: Path
) -> None:
    answer = answer_to(text, tmp_path)
    assert answer.cause is not None
    assert (answer.verdict, answer.cause.what, answer.cause.rank) == ("unknown", what, None)
    assert words in answer.cause.text


def test_who_says_that_other_ranks_failed_is_not_blamed_for_it(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/w/model_runner.py", line 417, in load_model\n    raise ValueError(\n'
        "ValueError: rank 1 has its shards, but there are other ranks that hold none of them\n"
    )
    cause = cause_of("".join(f"[rank1]: {line}\n" for line in text.splitlines()), tmp_path)
    assert (cause.what, cause.rank) == ("user_exception", None)


def test_of_a_traceback_that_is_cut_the_words_are_told_and_not_its_last_frame(tmp_path: Path) -> None:
    frame = '  File "/p/ray/worker.py", line 937, in get_objects\n'
    cause = cause_of(f"{frame}ray.exceptions.RayTaskError(OutOfMemoryError): ray::W.f() (pid=9)\n{frame}", tmp_path)
    assert cause.text.startswith("ray.exceptions.RayTaskError(OutOfMemoryError)")


def test_a_death_that_a_page_wrote_with_escaped_stars_is_one(tmp_path: Path) -> None:
    line = "**\\* SIGSEGV (@0x73f160000) received by PID 2911 (TID 0x7f) from PID 1058406400; stack trace: ***\n"
    assert said(answer_to(line, tmp_path)) == ("segfault", None)


def test_a_signal_to_the_group_ends_it_at_once_and_leaves_no_worker(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    line = b"x" * 126 + b"\n"
    with log.open("wb") as file:
        for _ in range(110):
            file.write(line * 8192)
    argv = [sys.executable, "-c", _WAITS_IN_A_WORKER, str(log)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == 143
    assert not Path(f"/proc/{worker}").exists()


# the first worker tells its pid and waits
_WAITS_IN_A_WORKER = """
import os, sys, time
from gpudoctor.__main__ import run
from gpudoctor.diagnose import gather
def wait(*part):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)
gather._packed_hits = wait
sys.argv = ["gpudoctor", "diagnose", sys.argv[1]]
sys.exit(run())
"""


def test_an_exception_without_words_tells_of_the_known_error_in_the_next_line(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 264, in predict\n    x = x.cuda()\n'
        "AssertionError: \n{}\n"
    )
    answer = answer_to(text.format("The NVIDIA driver on your system is too old (found version 10010)."), tmp_path)
    assert said(answer) == ("cuda_driver_too_old", None)
    assert present(answer.cause).text.startswith("AssertionError: The NVIDIA driver on your system is too old")
    for other in (
        "see the log",
        "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2024-01-01T10:00:00 DUE TO TIME LIMIT ***",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "Connection closed by peer [10.0.0.2]:33",
    ):
        cause = cause_of(text.format(other), tmp_path)
        assert (cause.what, cause.text[:14]) == ("user_exception", "AssertionError"), other


def test_two_ranks_in_one_line_are_read_as_two(tmp_path: Path) -> None:
    line = (
        "[rank{0}]:[E1123 00:52:57.70470395{0} ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=1516, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600057 milliseconds before timing out."
    )
    for between in ("\n", " ", ""):
        answer = answer_to(between.join(line.format(rank) for rank in range(3)) + "\n", tmp_path)
        assert said(answer) == ("timeout_all_same_seq", None)
    access = "[rank2]:[E1123 00:52:57.8 ProcessGroupNCCL.cpp:1785] [Rank 2] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"
    log = "[pod/worker-1/pytorch] step 4 loss=2.0\n[pod/worker-2/pytorch] {}\n[pod/worker-1/pytorch] {}\n"
    found = answer_to(log.format(access, line.format(1)), tmp_path).cause
    assert found is not None
    assert (found.what, found.rank, found.host) == ("cuda_illegal_access", 2, "worker-2")


def test_a_line_of_the_driver_is_no_exception_of_a_traceback_that_is_cut_off(tmp_path: Path) -> None:
    text = (
        "ERROR 09-12 04:32:05 engine.py:159] Traceback (most recent call last):\nTraceback (most recent call last):\n"
        '  File "/w/engine.py", line 157, in start\n    self.run()\n'
        "[Thu Sep 12 04:32:04 2024] NVRM: GPU at PCI:0000:41:00: GPU-3d0d5ac7-6e7c-1e7e-7a30-5f0a42c8b6b9\n"
        "[Thu Sep 12 04:32:04 2024] NVRM: Xid (PCI:0000:41:00): 79, pid=7, name=x, GPU has fallen off the bus.\n"
    )
    answer = answer_to(text, tmp_path)
    assert (present(answer.cause).what, answer.others) == ("gpu_lost", ())


@pytest.mark.parametrize(
    "last",
    ["[n4:22071] *** End of error message ***", " 2 0x000000000001e8c4 c10::Error::Error()  ???:0"],
    ids=["Open MPI", "UCX"],
)
def test_the_report_of_a_crash_is_not_what_a_process_said_before_it(last: str, tmp_path: Path) -> None:
    ended = "mpirun noticed that process rank 11 with PID 22071 on node n4 exited on signal 11 (Segmentation fault).\n"
    assert cause_of(f"[1,11]<stderr>:{last}\n{ended}", tmp_path).text == "rank 11 crashed with SIGSEGV"


_CRASHED = "srun: error: gpu01: task 3: Segmentation fault (core dumped)\n"
_RAISES = '  File "train.py", line 25, in <module>\n    main()\n  File "train.py", line 13, in main\n    raise {}\n'


@pytest.mark.parametrize(
    ("text", "verdict", "what", "words"),
    [
        (_RAISES.format("ValueError(") + "the map of devices is no mesh\n", "cause", "user_exception", "ValueError: the map of devices is no mesh (raised from train.py:13)"),
        (_RAISES.format("torch.OutOfMemoryError(") + "CUDA out of memory.\n", "cause", "cuda_oom", "CUDA out of memory."),
        (_RAISES.format("ValueError(") + "ValueError: no mesh\n", "cause", "user_exception", "ValueError: no mesh (raised from train.py:13)"),
        (_RAISES.format("ValueError(") + "[rank1]: no mesh\nlate\nValueError: x\n", "cause", "user_exception", "ValueError: x (raised from train.py:13)"),
    ],
    ids=["its message", "a known error", "whole", "another writer between"],
)  # fmt: skip
def test_behind_a_raise_whose_exception_was_not_printed_its_message_may_stand(
    text: str, verdict: str, what: str, words: str, tmp_path: Path
) -> None:
    answer = answer_to(text, tmp_path)
    cause = present(answer.cause)
    assert (answer.verdict, cause.what, cause.text) == (verdict, what, words)


@pytest.mark.parametrize(
    "text",
    [
        *("loss: 2.1", "\nthe map of devices is no mesh", "[rank1]: no mesh", "[INFO] no mesh", "* INFO no mesh"),
        "2025-01-01 00:00:00 SHARD 7",
        *("SHARD 7 is written\nstep 9 loss 1.2", f"SHARD 7 is written\n{_CRASHED}"),
    ],
)
def test_another_line_behind_a_raise_is_not_its_message(text: str, tmp_path: Path) -> None:
    answer = answer_to(f"{_RAISES.format('ValueError(')}{text}\n", tmp_path)
    assert answer.cause is None or answer.cause.what != "user_exception"


def test_behind_the_end_of_a_job_no_line_is_the_message_of_what_was_raised(tmp_path: Path) -> None:
    text = f"{_STEPS}Training finished.\n{_RAISES.format('ValueError(')}SHARD 7 is written\n"
    assert answer_to(text, tmp_path).verdict == "nothing"


_CAUGHT = (
    "WARNING sample skipped:\n    Traceback (most recent call last):\n"
    '      File "/w/data.py", line 20, in get\n        raise ValueError("bad")\n    ValueError: bad label\n'
)
_TOLD_OF = _CAUGHT.replace("WARNING sample skipped", "the run says")
_LIMIT = "slurmstepd: error: *** JOB 7 ON gpu01 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
_FULL = (
    '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/train.py", line 9, in f\n'
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


@pytest.mark.parametrize(
    ("text", "what", "rank"),
    [
        (f"{_STEPS}{_TOLD_OF}step 9 loss 1.2\nSaved model\n", "healthy", None),
        (f"{_STEPS}Training finished.\n{_TOLD_OF}", "healthy", None),
        (f"{_STEPS}{_TOLD_OF.replace('the run says:', '    Exception ignored in: <function x>')}", "healthy", None),
        (f"{_STEPS}{_CAUGHT}wandb: run history\n", "unknown_error", None),
        (f"{_STEPS}{_TOLD_OF}", "user_exception", None),
        (_STEPS + _TOLD_OF.replace("    ValueError", "GOOD: saved\n    ValueError"), "user_exception", None),
        (f"{_STEPS}{_TOLD_OF}{_CRASHED}", "segfault", None),
        (f"{_STEPS}{_TOLD_OF}{_LIMIT}", "time_limit", None),
        (f"{_STEPS}{''.join(f'[rank0]: {line}' for line in _TOLD_OF.splitlines(True))}{_FULL}", "cuda_oom", 3),
    ],
    ids=[
        *("a step", "behind the end", "ignored", "of a warning", "at the end", "another writer between"),
        *("a crash", "a time limit", "another rank"),
    ],
)  # fmt: skip
def test_whoever_prints_a_traceback_with_a_margin_has_caught_the_exception(
    text: str, what: str, rank: int | None, tmp_path: Path
) -> None:
    answer = answer_to(text, tmp_path)
    assert said(answer) == (what, rank)
    if what == "user_exception":
        assert present(answer.cause).text == "ValueError: bad label (raised from /w/data.py:20)"
        assert present(answer.cause).confidence == "possible"
