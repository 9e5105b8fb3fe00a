"""Excerpts of frameworks and launchers, as people paste them -> the word, and the rank where the text names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.asking import HOROVOD_STALLS, answer_to, said

_GONE = "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce"
_WATCHDOG = "[rank5]:[E626 16:48:25.44 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 5]  "

CASES: dict[str, tuple[str, int | None, str]] = {
    "horovod, ranks in each line": (
        "rank_behind",
        1,
        f"[1,0]<stderr>:{HOROVOD_STALLS}\n[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1 [missing ranks: 1]\n"
        "[1,0]<stderr>:HorovodBroadcast_dense_2 [missing ranks: 1]\n",
    ),
    "horovod, ranks below a header": (
        "rank_behind",
        2,
        f"{HOROVOD_STALLS}\nMissing ranks:\n2: [allreduce.conv1.weight, allreduce.bn1.bias ...]\n",
    ),
    "horovod 0.18, ranks below a header, each line labelled": (
        "rank_behind",
        6,
        f"step 83999 loss=1.4\n[1,0]<stderr>:{HOROVOD_STALLS}\n[1,0]<stderr>:Stalled ranks:\n"
        "[1,0]<stderr>:6: [horovod_allreduce.0, horovod_allreduce.1 ...]\n",
    ),
    "horovod, the list of tensors cut off": ("timeout_undecidable", None, f"step 83999 loss=1.4\n{HOROVOD_STALLS}\n"),
    "horovod, another tensor on one rank": (
        "collective_mismatch",
        None,
        f"WARNING: {HOROVOD_STALLS}Stalled ops: Allreduce_loss_0 [ready ranks: 3], Allreduce_grad_0 [ready ranks: 2, 0, 1]\n",
    ),
    "horovod, ready ranks behind a progress bar": (
        "rank_behind",
        0,
        f"Epoch 3:  82%|8 | 10/12 [36:43<1:25, 22.91s/it]WARNING: {HOROVOD_STALLS}Stalled ops: allreduce.a [ready ranks: 3, 1], "
        "allreduce.b [ready ranks: 1, 3]\n",
    ),
    "JAX: memory, in other words": (
        "cuda_oom",
        None,
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 61116661760 bytes.\n",
    ),
    "JAX: memory, in newer words": (
        "cuda_oom",
        None,
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on device ordinal 0\n",
    ),
    "gRPC: no memory of a GPU": (
        "user_exception",
        None,
        'Traceback (most recent call last):\n  File "/w/t.py", line 2, in f\n'
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Received message larger than max (12 vs. 4)\n",
    ),
    "HCCL: a reason": (
        "accelerator_error",
        None,
        'Traceback (most recent call last):\n  File "/w/t.py", line 2, in f\n'
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "EJ0001: 2024-05-21-11:57:54.1 Failed to initialize the HCCP process. Reason: Maybe the last process is running.\n",
    ),
    "HCCL: without a reason": (
        "accelerator_error",
        3,
        "RuntimeError: HCCL error in: ProcessGroupHCCL.cpp:64\n"
        "[ERROR] 2024-05-21-11:57:54 (PID:92, Device:3, RankID:3) ERR02200 DIST call hccl api failed.\n",
    ),
    "EFA: no device": (
        "efa_not_found",
        None,
        "libfabric:85:1712:core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list\n"
        "gpu1:85:85 [0] nccl_net_ofi_create_plugin:211 NCCL WARN NET/OFI Unable to find a protocol that worked. Failing initialization.\n",
    ),
    "torch.save: no file": (
        "checkpoint_not_written",
        None,
        'Traceback (most recent call last):\n  File "/w/t.py", line 2, in f\n'
        "RuntimeError: Parent directory /ckpt/run3 does not exist.\n",
    ),
    "Gloo: the loopback address": (
        "bootstrap_no_interface",
        8,
        "[rank8]: Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.\n"
        "[rank8]: RuntimeError: Gloo connectFullMesh failed with timed out connecting\n",
    ),
    "Ray: a worker died after the work": (
        "healthy",
        None,
        "step 1\nstep 2\nstep 3\n2020-04-12 10:00:00,1\tWARNING worker.py:1134 -- A worker died or was killed while "
        "executing task ffff.\nsuccess!\n",
    ),
    "TensorRT-LLM: the rank in the words": (
        "cuda_illegal_access",
        3,
        "[05/27/2025-21:12:36] [TRT-LLM] [E] Failed to initialize executor on rank 3: CUDA runtime error in cudaMemsetAsync(x): "
        "an illegal memory access was encountered\n",
    ),
    "vLLM: an engine is dead": (
        "failed_saying",
        None,
        "[rank0]: step 3\nCRITICAL 02-25 11:11:34 launcher.py:101] MQLLMEngine is already dead, terminating server process\n",
    ),
    "CUDA: an illegal instruction": (
        "cuda_launch_failure",
        None,
        "RuntimeError: CUDA error: an illegal instruction was encountered\n",
    ),
    "TensorRT: memory": (
        "cuda_oom",
        None,
        "[TensorRT-LLM][ERROR] [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)\n",
    ),
    "a container's code": ("killed_sigkill", None, "[f81-n0-0] terminated with exit code (137). Reason [Error].\n"),
    "a queue pair of a library": ("ib_qp_setup_failed", None, "Failed to modify QP to RTR: Connection timed out\n"),
    "a signal in the middle of a line": ("sigbus", None, "call ncclCommInitRank got Signal: Bus error (7)\n"),
    "a time limit of a second": (
        "timeout_too_short",
        None,
        "[rank1]: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, "
        "Timeout(ms)=1000) ran for 1090 milliseconds before timing out.\n",
    ),
    "NCCL: connects that are tried again at the end": (
        "unknown_error",
        None,
        "w:10:19 [0] NCCL INFO Channel 00 : 0[18000] -> 1[18000] [send] via NET/Socket/1\n"
        "w:10:19 [0] NCCL INFO Call to connect returned Connection timed out, retrying\n",
    ),
    "NCCL: connects that came in the end": (
        "healthy",
        None,
        "w:10:19 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
        "w:10:19 [0] NCCL INFO Channel 00 : 0[18000] -> 1[18000] [send] via NET/Socket/1\n",
    ),
    "one word at the end is no proof": (
        "gpu_ecc",
        0,
        "[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered\nSUCCESS\n",
    ),
    "one word at the end explains no last error": (
        "failed_saying",
        None,
        "FATAL: the flux is empty\nworld size 2\nSuccess\n",
    ),
    "Ray's only word on a dead worker": (
        "process_died_unknown",
        None,
        "step 1\nstep 2\nstep 3\n(raylet) WARNING: A worker died or was killed while executing a task. Worker exit type: "
        "SYSTEM_ERROR\n",
    ),
    "a rank that the words only mention": (
        "cuda_oom",
        3,
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory while gathering on rank 0\n",
    ),
    "Gloo: the loopback address, and work": (
        "healthy",
        None,
        "[W1123 10:00:00.0 ProcessGroupGloo.cpp:757] Warning: Unable to resolve hostname to a (local) address.\n"
        "world_size: 2\n",
    ),
    "EFA: no device, and work": (
        "healthy",
        None,
        "libfabric:1:1:core:core:fi_getinfo_():1213<warn> fi_getinfo: provider efa output empty list\naccuracy: 0.9\n",
    ),
    "words that end like a library's": ("healthy", None, "world size 2\nepoch 1 oracle error: 0.1\n"),
    "an error with the letter I": ("process_died_unknown", None, "world size 2\nERROR: worker I died, job failed\n"),
    "a host of letters": (
        "user_exception",
        None,
        'thor: step 1\nthor: step 2\nthor: Traceback (most recent call last):\nthor:   File "/w/t.py", line 10, in f\n'
        "thor: KeyError: 'bar'\n",
    ),
    "MPICH: init fails on a rank": (
        "mpi_failed",
        5,
        "[1642768357.765504] [n2:429:0]  ib_mlx5_dv.c:161  UCX  ERROR  create(QP) failed, syndrome 0: Cannot allocate memory\n"
        "Abort(1091215) on node 5 (rank 5 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n",
    ),
    "MPICH: each process alone, so each is rank 0": (
        "mpi_failed",
        None,
        2
        * "Abort(1090831) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Unknown error class, error stack:\n",
    ),
    "horovodrun": (
        "victims_only",
        None,
        f"Fri Sep 25 16:52:53 2020[0]<stderr>:2020-09-25 16:52:53.6: W tensorflow/core/op_kernel.cc:1651] Unknown: {_GONE}\n",
    ),
    "a peer of MPI": (
        "victims_only",
        None,
        "An MPI communication peer process has unexpectedly disconnected.  This\nusually indicates a failure in the peer\n",
    ),
    "mpirun's abort over two lines": (
        "launcher_table_only",
        None,
        "MPI_ABORT was invoked on rank 2 in communicator MPI COMMUNICATOR 5 DUP FROM 0\nwith errorcode 1.\n",
    ),
    "composer": (
        "segfault",
        0,
        "2024-08-30 11:06:12,928: rank0[208865][MainThread]: INFO: trainer: Run name: llm\n"
        "ERROR:composer.cli.launcher:Rank 0 crashed with exit code -11.\n",
    ),
    "srun could not launch": (
        "launch_failed",
        None,
        "srun: error: Task launch for 36.0 failed on node cn131: Job credential expired\n"
        "srun: error: Timed out waiting for job step to complete\n",
    ),
    "nccl-tests": (
        "nccl_unknown",
        None,
        "gpu01: Test NCCL failure common.cu:959 'internal error - please report this issue to the NCCL developers / '\n",
    ),
    "DeepEP": (
        "timeout_undecidable",
        None,
        "DeepEP dispatch NVL receiver timeout, channel: 0, RDMA: 0, nvl: 7, src RDMA: 1, src nvl: 1, start: 0, end: 0\n",
    ),
    "NVSHMEM": (
        "ib_qp_setup_failed",
        None,
        "/w/nvshmem_src/src/modules/transport/ibgda/ibgda.cpp:3005: non-zero status: 7 ibgda_rc_init2rtr failed on RC #0.\n",
    ),
    "gloo without an interface": (
        "bootstrap_no_interface",
        None,
        "Traceback (most recent call last):\n  File \"/w/t.py\", line 5, in <module>\n    dist.init_process_group('gloo')\n"
        "RuntimeError: [enforce fail at /p/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: bond1\n",
    ),
    "gloo's mesh in the first attempt": (
        "bootstrap_connect_failed",
        None,
        "[rank1]: RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error\n",
    ),
    "an infinite gradient norm, TorchX": (
        "nan",
        4,
        'i.pretrain/0 [rank4]:   File "/w/t.py", line 319, in step\ni.pretrain/0 [rank4]: RuntimeError: Unexpected result '
        "inf (message='found Inf in local grad norm for bucket #6 in backward pass')\n",
    ),
    "an old rendezvous": (
        "rendezvous_unreachable",
        None,
        'Traceback (most recent call last):\n  File "/l/c10d_rendezvous_backend.py", line 155, in _create_tcp_store\n'
        "    store = TCPStore(\nRuntimeError: connect() timed out. Original timeout was 60000 ms.\n",
    ),
    "pdsh with addresses": (
        "cuda_launch_failure",
        19,
        "10.8.12.21: {'loss': 0.24, 'epoch': 0.4}\n10.8.12.21: {'loss': 0.23, 'epoch': 0.4}\n"
        "10.8.13.81: [rank19]:[E808 10:31:07.4 ProcessGroupNCCL.cpp:1895] [PG ID 1 PG GUID 1 Rank 19] Process group watchdog "
        "thread terminated with exception: CUDA error: unspecified launch failure\n",
    ),
    "SGLang: a logger's line begins the traceback": (
        "cuda_device_assert",
        2,
        "[2025-04-23 21:31:41 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/w/driver.py", line 444, in __call__\n    self.launch(*args, **kwargs)\n'
        "RuntimeError: Triton Error [CUDA]: device-side assert triggered\n",
    ),
    "SGLang: the others did not finish": (
        "missing_rank",
        None,
        '[2025-03-17 17:15:55 TP1] Scheduler hit an exception: Traceback (most recent call last):\n  File "/w/r.py", line 4, '
        "in load\n    raise ValueError(\nValueError: TP rank 1 could finish the model loading, but there are other ranks that "
        "didn't finish loading.\n",
    ),
    "a statement is no exception": (
        "nccl_unknown",
        None,
        'File "/w/pynccl.py", line 110, in __init__\nself.comm: ncclComm_t = self.nccl.ncclCommInitRank(\n'
        'File "/w/pynccl_wrapper.py", line 350, in NCCL_CHECK\nraise RuntimeError(f"NCCL error: {error_str}")\n'
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n",
    ),
    "the head is cut before raise": (
        "user_exception",
        None,
        "    raise RuntimeError(\nRuntimeError: Failed to import transformers.models.bloom.modeling_bloom\n",
    ),
    "an exception group": (
        "user_exception",
        1,
        '[rank1]:   + Exception Group Traceback (most recent call last):\n[rank1]:   |   File "/w/t.py", line 3, in f\n'
        "[rank1]:   | ExceptionGroup: unhandled errors (1 sub-exception)\n[rank1]:   +-+---------------- 1 -----\n"
        '[rank1]:     | Traceback (most recent call last):\n[rank1]:     |   File "/w/t.py", line 8, in g\n'
        "[rank1]:     | ValueError: bad sample\n[rank1]:     +-----------\n",
    ),
    "a watchdog without its first line": (
        "timeout_undecidable",
        None,
        f"{_WATCHDOG}failure detected by watchdog at work sequence id: 120049 PG status: last enqueued work: 120051, "
        "last completed work: 120048\n",
    ),
    "an internal error below which a peer is gone": (
        "victims_only",
        None,
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1275, internal error, NCCL version 2.14.3\n"
        "ncclInternalError: Internal check failed.\nLast error:\nNet : Connection closed by remote peer n2<50260>\n",
    ),
    "the code that NCCL returned, without a warning": (
        "nccl_unknown",
        None,
        "n1:191:219 [0] NCCL INFO bootstrap.cc:270 -> 2\nn1:191:219 [0] NCCL INFO init.cc:1303 -> 2\n"
        "n1:191:191 [0] NCCL INFO group.cc:106 -> 2\n",
    ),
    "a wrapper names no rank": (
        "nccl_cuda_unknown",
        None,
        "(VllmWorker rank=1 pid=77) ERROR 06-29 19:19:58 [multiproc_executor.py:488]     raise RuntimeError(e)\n"
        "(VllmWorker rank=1 pid=77) ERROR 06-29 19:19:58 [multiproc_executor.py:488] RuntimeError: NCCL error: unhandled "
        "cuda error (run with NCCL_DEBUG=INFO for details)\n",
    ),
    "a table whose head is cut": (
        "segfault",
        None,
        " iteration 2/ 100 | lm loss: 1.2\n  rank      : 0 (local_rank: 0)\n  exitcode  : -11 (pid: 6421)\n"
        "  error_file: <N/A>\n",
    ),
    "a node's eight processes, their numbers not in a row": (
        "killed_sigkill",
        0,
        "".join(
            f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {pid} closing signal SIGTERM\n"
            for pid in (376, 378, 379, 380, 381, 383, 384)
        )
        + "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 375) of binary: x\n",
    ),
    "a kernel log of one driver": (
        "gpu_xid",
        None,
        "".join(
            f"> [Fri Aug 30 11:43:0{n} 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics\n"
            for n in range(5)
        ),
    ),
    "an application's logger before torch's label": (
        "user_exception",
        7,
        "2025-10-31 03:11:02,473 - Tuner - INFO - [rank7]: Traceback (most recent call last):\n"
        '2025-10-31 03:11:02,474 - Tuner - INFO - [rank7]:   File "/w/t.py", line 250, in step\n'
        "2025-10-31 03:11:02,474 - Tuner - INFO - [rank7]: AssertionError\n",
    ),
    "torchelastic's error handler": (
        "user_exception",
        None,
        'ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{\n  "message": {\n'
        '    "message": "RuntimeError: Permission denied",\n',
    ),
    "a warning of NCCL that is not known": (
        "failed_saying",
        None,
        "201: :41367:41367 [1] enqueue.cc:422 NCCL WARN Error : no algorithm/protocol available\n",
    ),
    "old watchdogs in different collectives": (
        "timeout_undecidable",
        None,
        "".join(
            f"[E ProcessGroupNCCL.cpp:828] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=80, "
            f"OpType={op}, Timeout(ms)=1800000) ran for 1805926 milliseconds before timing out.\n"
            for rank, op in ((0, "ALLGATHER"), (1, "BROADCAST"))
        ),
    ),
    "Ray's monitor, wrapped by a terminal": (
        "host_oom",
        None,
        "(raylet) node_manager.cc:3007: 2 Workers (tasks /\n actors) killed due to memory pressure (OOM), 0 Workers crashed\n",
    ),
    "a bus error behind the worker's end": (
        "shm_too_small_loader",
        None,
        "RuntimeError: DataLoader worker (pid(s) 18, 19) exited unexpectedly\n"
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n",
    ),
    "more came than the world has": (
        "rendezvous_timeout",
        None,
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 2, for key: "
        "store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:30:00)\n",
    ),
    "NCCL's last try": (
        "bootstrap_connect_failed",
        None,
        "".join(
            f"gpu7:11:12 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying ({n}/34) after sleep\n"
            for n in (33, 34)
        ),
    ),
    "rich, its head cut": (
        "user_exception",
        0,
        "│ ❱  88 │   │   p_mask = batch['mask']            │\n│    89 │   │   labels = batch['labels']          │\n"
        "╰─────────────────────────────────────────────╯\nKeyError: 'mask'\nERROR:torch.distributed.elastic."
        "multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 76781) of binary: /opt/conda/bin/python\n",
    ),
    "JAX: tasks that never came": (
        "missing_rank",
        2,
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: start::0. "
        "# of tasks that reached the barrier: 2/3.\nThe first task at the barrier: /job:jax_worker/replica:0/task:0. "
        "Some timed out task names:\n/job:jax_worker/replica:0/task:2\n",
    ),
    "JAX: a task without heartbeats": (
        "heartbeat_lost",
        3,
        "E1002 10:00:00.1 88 service.cc:77] Polled an error: UNAVAILABLE: The following tasks are unhealthy (stopped "
        "sending heartbeats):\n/job:jax_worker/replica:0/task:3\nThe tasks have crashed. Check the task logs\n",
    ),
    "JAX: one task without a heartbeat": (
        "heartbeat_lost",
        1,
        "2025-01-09 15:47:38.5: E xla/service.cc:1170] /job:jax_worker/replica:0/task:1 has been set to ERROR in "
        "coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:1 heartbeat timeout.\n",
    ),
    "XLA: threads that wait": (
        "timeout_undecidable",
        None,
        "2025-02-01 10:00:00.1: E xla/service/rendezvous.cc:38] This thread has been waiting for `acquire clique for rank "
        "2; run_id=7` for 10 seconds and may be stuck. Expected 8 threads to join, but only 6 of them arrived on time.\n",
    ),
    "a TPU that another process holds": (
        "tpu_init_failed",
        None,
        "jaxlib._jax.XlaRuntimeError: UNKNOWN: TPU initialization failed: open(/dev/accel1): Operation not permitted\n",
    ),
    "a TPU chip": (
        "tpu_fault",
        None,
        "E0802 03:43:41.2 41 driver.cc:82] [/dev/accel1 tpu7:pe0:1] !!!! FATAL ERROR !!!! for [/dev/accel1 tpu7:pe0:1]\n",
    ),
    "pyxis: the image has no shell": (
        "container_failed",
        None,
        "slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis:     "
        "enroot-switchroot: failed to execute: /bin/sh: No such file or directory\n"
        "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
        "srun: error: n2: task 1: Exited with exit code 1\n",
    ),
    "a driver update stops containers": (
        "cuda_driver_mismatch",
        None,
        "docker: Error response from daemon: OCI runtime create failed: runc: nvidia-container-cli: initialization error: "
        "nvml error: driver/library version mismatch: unknown.\n",
    ),
    "MPI": ("mpi_failed", None, "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n"),
    "Open MPI: a daemon is lost": (
        "node_lost",
        None,
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[7,0],0] on node n1\n"
        "  Remote daemon: [[7,0],2] on node n3\n",
    ),
    "Hydra": (
        "segfault",
        5,
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 5 PID 4711 RUNNING AT n2\n"
        "=   KILLED BY SIGNAL: 11 (Segmentation fault)\n",
    ),
    "a crash behind what the program had written": (
        "process_died_unknown",
        None,
        "step 3 loss 1.2\nwriting shard 7 of 9 Illegal instruction (core dumped)\n",
    ),
    "a kill in the words of another language": ("killed_sigkill", None, "step 3 loss 1.2\n已杀死\n"),
    "an old glibc": (
        "process_died_unknown",
        None,
        "step 3 loss 1.2\n*** Error in `python3': double free or corruption (fasttop): 0x0000560a ***\n",
    ),
    "no memory for C++": (
        "host_alloc_failed",
        None,
        "step 3 loss 1.2\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
    ),
    "an end of C++ without its message": (
        "process_died_unknown",
        None,
        "step 3 loss 1.2\nterminate called without an active exception\n",
    ),
    "a wrapped sentence of prterun": (
        "segfault",
        3,
        f"{'-' * 74}\nprterun noticed that process rank 3 with PID 77 on node n7.lan exited on\nsignal 11 (Segmentation fault).\n",
    ),
    "UCX's handler": (
        "sigbus",
        None,
        "[c0ffee:3039 :0:3095] Caught signal 7 (Bus error: nonexistent physical address)\n",
    ),
    "Open MPI's handler": ("segfault", None, "[n7:3039] Signal: Segmentation fault (11)\n"),
    "an old rendezvous id": (
        "rendezvous_closed",
        None,
        'Traceback (most recent call last):\n  File "/l/torch/distributed/run.py", line 9, in main\n    run(args)\n'
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n",
    ),
    "an agent whose rendezvous host went away": (
        "victims_only",
        None,
        "W0101 01:00:00.1 7 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:9] The node 'n2_7_0' has failed to "
        "send a keep-alive heartbeat to the rendezvous 'x' due to an error of type RendezvousConnectionError.\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n",
    ),
    "Ray: preempted": (
        "preempted",
        None,
        "(TrainController pid=7) The actor died unexpectedly before finishing this task.\n"
        "(TrainController pid=7) The actor died because its node has died. Node Id: ab1\n"
        "(TrainController pid=7) \tthe actor's node was preempted: spot\n",
    ),
    "FSDP: other modules": (
        "collective_mismatch",
        None,
        "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 2 parameters while rank 1 is "
        "all-gathering 0 parameters\n",
    ),
    "torch's analyser of dumps": (
        "collective_mismatch",
        None,
        "error msg: Culprit rank 6; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[5]]' does not match\n",
    ),
    "vLLM: the GPU is in use": (
        "cuda_oom",
        None,
        "(VllmWorker rank=1 pid=7) ERROR 08-12 01:36:10 [multiproc_executor.py:51] ValueError: Free memory on device "
        "(6.1/23.68 GiB) on startup is less than desired GPU memory utilization (0.8, 18.95 GiB).\n",
    ),
    "a hub that refuses": (
        "service_failed",
        None,
        "[2025-04-18 15:55:06] CRITICAL [app.util:158, rank=6] Uncaught HfHubHTTPError: 429 Client Error: Too Many "
        "Requests for url: https://hub.example/api\n",
    ),
    "an uncaught exception in a logger's line": (
        "user_exception",
        6,
        "[2025-04-18 15:55:06] CRITICAL [app.util:158, rank=6] Uncaught KeyError: 'labels'\n",
    ),
    "nccl-tests: one process for ten GPUs": (
        "gpu_peer_access",
        None,
        "#  Rank  0 Group  0 Pid  33 on  gpu01 device  0 [0000:b4:00] NVIDIA L40S\n"
        "#  Rank  1 Group  0 Pid  33 on  gpu01 device  1 [0000:b7:00] NVIDIA L40S\n"
        "gpu01:33:34 [0] allocator.cc:79 NCCL WARN Cuda failure 711 'peer mapping resources exhausted'\n",
    ),
    "a port of this host": (
        "ib_port_error",
        None,
        "n2:7:9 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer n1<379> with error 12, opcode 2, "
        "len 1, vendor err 129\nn1:3:4 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n",
    ),
    "Lightning: two nodes count the same ranks": (
        "init_hang",
        None,
        "".join(f"initializing ddp: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4\n" for rank in (0, 1, 0, 1)),
    ),
    "torchrun: the others never came": (
        "init_hang",
        None,
        "INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous'ing worker group\n",
    ),
    "JAX: no NCCL": (
        "nccl_lib_missing",
        None,
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: custom call 'xla.gpu.all_gather' failed:      \n"
        "external/xla/xla/service/gpu/nccl_utils.cc:99: NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL "
        "library. Multi-GPU collectives will not work.;\n",
    ),
    "JAX: NCCL's last warning": (
        "nccl_topology",
        None,
        "jax.errors.JaxRuntimeError: INTERNAL: x/nccl_errors.cc:7: NCCL operation ncclCommInitRank(&comm, n, id, rank) failed: "
        "internal error - please report this issue to the NCCL developers. Last NCCL warning(error) log entry (may be "
        "unrelated) 'Attribute busid of node nic not found'.; current\n",
    ),
    "submitit: preempted": (
        "preempted",
        None,
        "submitit WARNING (2024-08-12 02:06:11,453) - Caught signal SIGUSR2 on n3: this job is preempted.\n"
        "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\n"
        "srun: error: n3: tasks 2-3: Exited with exit code 1\n",
    ),
    "Slurm: requeued": (
        "preempted",
        None,
        "step 4 loss 2.0\nslurmstepd: error: *** STEP 61.0 ON n3 CANCELLED AT 2024-08-12T02:06:12 DUE TO JOB REQUEUE ***\n"
        "srun: error: n3: tasks 2-3: Exited with exit code 1\n",
    ),
    "torchrun: a worker failed, no word why": (
        "launcher_table_only",
        None,
        "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. 3/3 attempts left; will restart "
        "worker group\nINFO:torch.distributed.elastic.agent.server.api:[default] Starting worker group\n",
    ),
    "DeepSpeed: ended with a full RAM": (
        "host_oom",
        None,
        "[2024-01-22 16:50:44,316] [INFO] [utils.py:799:see_memory_usage] CPU Virtual Memory:  used = 230.4 GB, percent = 91.6%\n"
        "[2024-01-22 16:50:49,553] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 1080\n",
    ),
    "DeepSpeed: ended": (
        "launcher_table_only",
        None,
        "[2024-01-22 16:50:49,553] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 1080\n",
    ),
    "DeepSpeed: ended by Ctrl-C": (
        "terminated_signal",
        None,
        "[2024-01-22 16:50:49,553] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 1080\n"
        "[2024-01-22 16:50:49,554] [INFO] [launch.py:324:sigkill_handler] Main process received SIGINT, exiting\n",
    ),
    "NCCL 2.2": (
        "bootstrap_connect_failed",
        None,
        "n4:185:185 [0] INFO NET/Socket : 1 interfaces found\n"
        "n4:185:186 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out\n"
        "n4:185:187 [0] include/socket.h:371 WARN Connection closed by remote peer\n",
    ),
    "NCCL: a rank came twice": (
        "duplicate_rank",
        None,
        "n4:69:83 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in\n",
    ),
    "NCCL: two world sizes": (
        "duplicate_rank",
        None,
        "n4:69:83 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16\n",
    ),
    "nccl-tests: the check fails": (
        "wrong_results",
        None,
        "# Out of bounds values : 50 FAILED\n# Avg bus bandwidth : 1.2\n",
    ),
    "nccl-tests: a wrong number, out of place": (
        "wrong_results",
        None,
        "        1024    256  float  sum  -1    12.90    0.00    0.00      7    12.87    0.00    0.00      0\n",
    ),
    "nccl-tests: wrong numbers, in place": (
        "wrong_results",
        None,
        "[1,0]<stdout>:   1024    256  float  none  0    12.90    0.00    0.00    N/A    12.87    0.00    0.00    256\n",
    ),
    "nccl-tests: memory": ("cuda_oom", None, "n1: Test CUDA failure common.cu:295 'out of memory'\n"),
    "nccl-tests: a failure in other words": ("unknown_error", None, " .. n1 pid 33: Test failure common.cu:999\n"),
    "Slurm: munge": (
        "launch_failed",
        None,
        "srun: error: If munged is up, restart with --num-threads=10\nsrun: error: Munge encode failed: Failed to access "
        '"/run/munge.socket.2": No such file or directory\n',
    ),
    "Slurm: no such GPUs": (
        "launch_failed",
        None,
        "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification\n",
    ),
    "Kubernetes: no room": (
        "pod_not_scheduled",
        None,
        "  Warning  FailedScheduling  3m  default-scheduler  0/5 nodes are available: 5 Insufficient nvidia.com/gpu.\n",
    ),
    "Docker: no runtime": (
        "container_failed",
        None,
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n',
    ),
    "systemd: the OOM killer": (
        "host_oom",
        None,
        "systemd[1]: u.service: A process has been killed by the OOM killer.\n",
    ),
    "coreutils: timeout of something unknown": (
        "unknown_error",
        None,
        "step 1 loss 2.0\ntimeout: sending signal TERM to command \u2018./gpt\u2019\n",
    ),
    "coreutils: timeout": ("time_limit", None, "timeout: sending signal TERM to command 'torchrun'\n"),
    "glibc: the heap": ("process_died_unknown", None, "step 3 loss 2\nfree(): invalid next size (normal)\n"),
    "JAX: CUDA": (
        "cuda_init_failed",
        None,
        "CUDA backend failed to initialize: jaxlib/cuda/versions_helpers.cc:90: operation gpuDeviceGetAttribute failed: "
        "CUDA_ERROR_NOT_INITIALIZED\n",
    ),
    "JAX: a task was started again": (
        "process_died_unknown",
        1,
        "2025-04-05 18:39:10.8: E xla/coordination_service.cc:962] /job:jax_worker/replica:0/task:1 unexpectedly tried to "
        "connect with a different incarnation. It has likely restarted.\n",
    ),
    "torch: no driver": ("gpu_isolated", None, "RuntimeError: Found no NVIDIA driver on your system. Please check\n"),
    "torch: no CUDA": ("cuda_no_kernel_image", None, "AssertionError: Torch not compiled with CUDA enabled\n"),
    "NVML": ("cuda_init_failed", None, "Failed to initialize NVML: Unknown Error\n"),
    "a download's end is not the job's": (
        "failed_saying",
        None,
        "Downloading http://x/train.gz\nProcessing...\nDone!\nworld size 2\nfatal: no flux\n",
    ),
    "UCX: no answer": (
        "ib_completion_error",
        None,
        "[n1:195:0:195] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n",
    ),
    "UCX: in other words": (
        "unknown_error",
        None,
        "[1642768357.765504] [n2:429:0]  sock.c:345  UCX  ERROR connect(fd=39, dest_addr=10.0.0.2:5) failed: Connection refused\n",
    ),
    "horovodrun: an exit code": ("killed_sigkill", 1, "Process 1 exit with status code 137.\n"),
    "horovodrun: ended": (
        "terminated_signal",
        None,
        "Fri Aug 29 16:41:23 2019[2]<stderr>:Terminated\nProcess 2 exit with status code 143.\n",
    ),
    "Kubernetes: restarts": (
        "launcher_table_only",
        None,
        "NAME          READY   STATUS             RESTARTS   AGE\ntrain-0       0/2     CrashLoopBackOff   8          2m32s\n",
    ),
    "a library": (
        "import_error",
        None,
        "/lib/libc.so.6: version `GLIBC_2.32' not found (required by /w/x.so)\n",
    ),
    "no such program": (
        "launch_failed",
        None,
        "python3: can't open file '/w/t.py': [Errno 2] No such file or directory\n",
    ),
    "a shell's last word: the end": ("terminated_signal", None, "step 3\nTerminated\n"),
    "an instruction": ("process_died_unknown", None, "step 3\nIllegal instruction (core dumped)\n"),
    "etcd": ("rendezvous_unreachable", None, "etcd.EtcdConnectionFailed: Connection to etcd failed\n"),
    "vLLM's older logger": (
        "user_exception",
        None,
        "ERROR 02-09 02:31:11 engine.py:389] Traceback (most recent call last):\n"
        'ERROR 02-09 02:31:11 engine.py:389]   File "/l/vllm/engine.py", line 380, in run\n'
        "ERROR 02-09 02:31:11 engine.py:389] ValueError: No GPUs on the driver node.\n",
    ),
    "JAX: a task came twice": (
        "duplicate_rank",
        None,
        "jaxlib.xla_extension.XlaRuntimeError: ABORTED: Unexpected duplicate task registered with task_name=/job:jax_worker/"
        "replica:0/task:1\n",
    ),
    "NCCL: a warning that is not known": (
        "failed_saying",
        None,
        "n4:69:83 [0] graph/flux.cc:131 NCCL WARN The flux of device 3 is too low\n",
    ),
    "torch: no kernels for the GPU": (
        "cuda_no_kernel_image",
        None,
        "NVIDIA Thing 9 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\n"
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
    ),
    "torch: no kernels for a small GPU beside those of the job": (
        "timeout_undecidable",
        None,
        "/opt/cuda.py:230: UserWarning: Quadro K2000 with CUDA capability sm_30 is not compatible with the current PyTorch "
        "installation.\n    PyTorch no longer supports this GPU because it is too old.\nWorld size: 8\nstep 1 loss 2\n"
        "[rank3]:[E1120 10:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n",
    ),
    "torch: nothing but no kernels for the GPU": (
        "cuda_no_kernel_image",
        None,
        "NVIDIA Thing 9 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\n",
    ),
    "TensorFlow: a handle without memory": (
        "cuda_oom",
        None,
        "[1,1]<stderr>:2021-10-12 20:59:07.607: E tensorflow/stream_executor/cuda/cuda_blas.cc:226] failed to create cublas "
        "handle: CUBLAS_STATUS_NOT_INITIALIZED\n[1,2]<stderr>:2021-10-12 20:59:07.627: W tensorflow/core/common_runtime/"
        "bfc_allocator.cc:272] Allocator (GPU_0_bfc) ran out of memory trying to allocate 16.00MiB with freed_by_count=0. "
        "The caller indicates that this is not a failure, but may mean less speed.\n",
    ),
    "pdsh: no sshd": ("ssh_failed", None, "localhost: ssh: connect to host localhost port 22: Connection refused\n"),
    "the rest of a traceback is missing": (
        "unknown_error",
        None,
        'step 4 loss 2.0\nTraceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    run()\n',
    ),
    "an actor died, and why is not said": (
        "process_died_unknown",
        None,
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n",
    ),
    "Paddle: a trainer": (
        "launcher_table_only",
        None,
        "ERROR 2021-05-24 17:17:14,611 launch_utils.py:545] ABORT!!! Out of all 4 trainers, the trainer process with rank=[3] "
        "was aborted. Please check its log.\n",
    ),
    "Paddle: two trainers": (
        "launcher_table_only",
        None,
        "ABORT!!! Out of all 4 trainers, the trainer process with rank=[1 2] was aborted. Please check its log.\n",
    ),
    "Paddle: a container": (
        "segfault",
        2,
        "LAUNCH ERROR 2022-11-21 02:35:54,385 Container failed !!!\n"
        "Container rank 2 status failed cmd ['/usr/bin/python3', '-u', 'train.py'] code -11 log log/workerlog.2\n",
    ),
    "PBS": (
        "time_limit",
        None,
        "job deleted\nJob deleted at request of root@head\nMOAB_INFO:  job exceeded wallclock limit\n",
    ),
    "LSF": (
        "host_oom",
        None,
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 1.\n",
    ),
    "Horovod: others write for a while": (
        "segfault",
        None,
        "step 1\nFatal Python error: Segmentation fault\nstep 2\nstep 3\nstep 4\n"
        "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.\n",
    ),
    "LSF: its time": (
        "time_limit",
        None,
        "step 1\nTERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n",
    ),
    "LSF: preempted": ("preempted", None, "Completed <exit>; TERM_PREEMPT: job killed after preemption.\n"),
    "HTCondor": (
        "host_oom",
        None,
        "012 (7.0.0) 06/11 13:10:44 Job was held.\n\tDocker job has gone over memory limit of 9 Mb\n",
    ),
    "a shell's last word": ("killed_sigkill", None, "100%|####| 30/30 [03:33<00:00]\nKilled\n"),
    "threads": (
        "limit_nproc",
        None,
        "OpenBLAS blas_thread_init: pthread_create failed for thread 5 of 64: Resource temporarily unavailable\n",
    ),
    "half a checkpoint": (
        "file_damaged",
        None,
        'Traceback (most recent call last):\n  File "/w/t.py", line 9, in f\n    torch.load(p)\n'
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
    ),
    "AMD: a kernel": (
        "cuda_launch_failure",
        None,
        ":0:rocdevice.cpp :35: 92 us:  Callback: Queue 0x77 aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL "
        "operation resulted in a hardware exception. code: 0x1016\n",
    ),
    "AMD: another architecture": ("cuda_no_kernel_image", None, "RuntimeError: HIP error: invalid device function\n"),
    "AMD: memory": (
        "cuda_oom",
        2,
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/w/t.py", line 9, in f\n'
        "[rank2]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.\n",
    ),
    "a task that is blocked in the kernel": (
        "kernel_hang",
        None,
        "[  721.028170] INFO: task python3:5403 blocked for more than 120 seconds.\n",
    ),
    "a device that may not be opened": (
        "ib_device_refused",
        None,
        "n1:7:9 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n",
    ),
    "SkyPilot: its rank is the node's": (
        "segfault",
        7,
        "".join(
            f"(worker1, rank=1, pid=48, ip=10.60.0.4) {line}\n"
            for line in (
                "Failures:",
                "  <NO_OTHER_FAILURES>",
                "Root Cause (first observed failure):",
                "[0]:",
                "  host      : n2",
                "  rank      : 7 (local_rank: 3)",
                "  exitcode  : -11 (pid: 104)",
            )
        ),
    ),
    "pdsh: the same on two hosts, one without its head": (
        "user_exception",
        None,
        "n001: FileNotFoundError: [Errno 2] No such file or directory: '/data/idx.npy'\n"
        'n002: Traceback (most recent call last):\nn002:   File "/w/t.py", line 9, in f\nn001: exiting\n'
        "n002: FileNotFoundError: [Errno 2] No such file or directory: '/data/idx.npy'\n",
    ),
    "Slurm: no such program": (
        "launch_failed",
        None,
        "slurmstepd: error: execve(): torchrun: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2\n",
    ),
    "the OOM killer's first line": (
        "host_oom",
        None,
        "[2612362.2] python invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), nodemask=(null), order=0\n",
    ),
    "an NVLink": (
        "nvlink_failed",
        None,
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: uncorrectable NVLink error detected during the execution\n",
    ),
    "a peer's memory over NVLink": (
        "nvlink_failed",
        None,
        "2026-09-05 17:34:36.5: E xla/gpu_allocator.cc:414] cudaFreeAsync failed: CUDA_ERROR_CONTAINED: Invalid access of peer "
        "GPU memory over nvlink or a hardware error\n",
    ),
    "an exception of C++ in unknown words": (
        "failed_saying",
        None,
        "step 3\nterminate called after throwing an instance of 'std::logic_error'\n  what():  no such shard\n",
    ),
    "ZeRO-3: other parameters": (
        "collective_mismatch",
        None,
        'Traceback (most recent call last):\n  File "/w/t.py", line 9, in f\n    check(ids)\n'
        "RuntimeError: disagreement between rank0 and rank7: rank0: [0, 1], rank7: [0, 9]\n",
    ),
}


@pytest.mark.parametrize(("what", "rank", "text"), CASES.values(), ids=list(CASES))
def test_an_excerpt_of_a_framework_gets_its_word_and_rank(
    what: str, rank: int | None, text: str, tmp_path: Path
) -> None:
    assert said(answer_to(text, tmp_path)) == (what, rank)
