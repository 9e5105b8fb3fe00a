"""One line or excerpt of each kind -> its word, and the rank where the text names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.asking import answer_to, said

CASES: list[tuple[str, int | None, str]] = [
    (
        "process_died_unknown",
        None,
        "(RayTrainWorker pid=731) [gloo/transport/uv/libuv.h:596] uv_accept: invalid argument\n(RayTrainWorker pid=731) *** SIGABRT received at time=1734086759 ***\n(RayTrainWorker pid=731) PC: @ 0x19ea96600 (unknown) __pthread_kill\n",
    ),
    (
        "segfault",
        None,
        "step 3\n*** SIGSEGV (@0x0) received by PID 26955 (TID 0x7f28d7e0b740) from PID 0; stack trace: ***\n",
    ),
    (
        "segfault",
        None,
        "subprocess.CalledProcessError: Command '['/usr/bin/python3', '-u', 'train.py', '--local_rank=7']' died with <Signals.SIGSEGV: 11>.\n",
    ),
    (
        "missing_rank",
        0,
        "RuntimeError: [1] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0 after 1800000 ms\n",
    ),
    (
        "host_oom",
        None,
        "(raylet) [2025-12-07 09:57:19,206 E 393463 393463] (raylet) node_manager.cc:3277: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 82, IP: 172.24.0.226)\n",
    ),
    ("fs_error", None, "RuntimeError: write(): fd 29 failed with Input/output error\n"),
    (
        "cuda_system_not_ready",
        None,
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.25.1\n[rank0]: Last error:\n[rank0]: Cuda failure 802 'system not yet initialized'\n",
    ),
    (
        "nccl_unknown",
        None,
        "n1:5:7 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-x (size 14156128), error: No such file or directory (2)\n",
    ),
    (
        "watchdog_stuck",
        None,
        "[rank4]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 4] [PG 0 Rank 4] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives. workMetaList_.size() = 1\n",
    ),
    (
        "gpu_ecc",
        5,
        "[rank5]:[E1102 03:11:20.183429932 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n",
    ),
    (
        "gpu_ecc",
        2,
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/w/train.py", line 3, in <module>\n[rank2]:     loss.backward()\n[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n',
    ),
    (
        "cuda_illegal_access",
        3,
        "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    x\nRuntimeError: CUDA error: an illegal memory access was encountered\nterminate called after throwing an instance of 'c10::Error'\n[rank3]:[E115 16:46:51.89 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n",
    ),
    (
        "cuda_device_assert",
        None,
        "/opt/conda/conda-bld/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1236: indexSelectSmallIndex: block: [4,0,0], thread: [96,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        * 5,
    ),
    (
        "cuda_oom",
        1,
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/t.py", line 9, in main\n[rank1]:     y = f(x)\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.2 GiB is free.\n',
    ),
    (
        "cuda_oom",
        None,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB (GPU 0; 23.69 GiB total capacity; 22.1 GiB already allocated; 10 MiB free; 22.2 GiB reserved in total by PyTorch)\n",
    ),
    ("cuda_not_supported", None, "gx1:311:399 [0] init.cc:1501 NCCL WARN Cuda failure 'operation not supported'\n"),
    ("nvls_failed", None, "h1:1:2 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'\n"),
    (
        "imex_mnnvl",
        None,
        "[2025-07-21 19:05:29] n1:5:9 [2] mnnvl.cc:44 NCCL WARN MNNVL (cliqueSize 8) is available but not working on some system. Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.\n",
    ),
    ("cuda_busy", None, "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n"),
    (
        "gpu_isolated",
        3,
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/t.py", line 9, in main\n[rank3]:     torch.cuda.set_device(3)\n[rank3]: RuntimeError: CUDA error: invalid device ordinal\n',
    ),
    ("gpu_isolated", None, "RuntimeError: No CUDA GPUs are available\n"),
    (
        "cuda_driver_too_old",
        None,
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update\n",
    ),
    ("cuda_driver_mismatch", None, "Failed to initialize NVML: Driver/library version mismatch\n"),
    (
        "ib_access_error",
        None,
        "n3:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<51234> with status=4 opcode=0 len=0 vendor err 81 (Send) localGid fe80::1 remoteGids fe80::2\n",
    ),
    (
        "ib_completion_error",
        None,
        "n3:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<51234> with error 12, opcode 129, len 32768, vendor err 129 (Recv)\nn3:88:190 [3] NCCL INFO transport/net.cc:1298 -> 6\nn3:88:191 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<51234> with error 5, opcode 0, len 0, vendor err 249 (Send)\n",
    ),
    (
        "ib_access_error",
        None,
        "n3:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB: Got completion from peer 10.1.2.3<51234> with status=IBV_WC_REM_ACCESS_ERR(10) opcode=0 len=0\n",
    ),
    (
        "ib_completion_error",
        None,
        "n3:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB: Got completion from peer 10.1.2.3<51234> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0 len=0\n",
    ),
    (
        "ib_qp_setup_failed",
        None,
        "n3:88:190 [3] misc/ibvwrap.cc:263 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR\n",
    ),
    (
        "ib_memlock",
        None,
        "n3:88:190 [3] misc/ibvwrap.cc:111 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory\n",
    ),
    (
        "bootstrap_connect_failed",
        None,
        "n3:88:190 [3] misc/socket.cc:558 NCCL WARN socketStartConnect: Connect to 10.0.0.3<40123> failed : No route to host\n",
    ),
    (
        "bootstrap_connect_failed",
        0,
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ../x.cpp:2251, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n[rank0]: Last error:\n[rank0]: socketStartConnect: Connect to 172.17.0.1<57551> failed : Software caused connection abort\n",
    ),
    ("bootstrap_no_interface", None, "n1:5:5 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"),
    (
        "shm_too_small",
        None,
        "torch.distributed.DistBackendError: NCCL error in: x:1331, unhandled system error\nncclSystemError: System call failed.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-9CVpXx (size 9637888)\n",
    ),
    (
        "shm_too_small",
        None,
        "x:1:2 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n",
    ),
    (
        "duplicate_gpu",
        None,
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: x, invalid usage\n[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank1]: Last error:\n[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000\n[rank0]: Last error:\n[rank0]: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1a000\n",
    ),
    (
        "nccl_size_mismatch",
        None,
        "a:1:2 [0] transport/net_socket.cc:500 NCCL WARN NET/Socket : peer 10.0.0.1<4> message truncated : receiving 1048576 bytes instead of 65536\n",
    ),
    (
        "nccl_lib_mismatch",
        None,
        "a:1:2 [0] init.cc:1 NCCL WARN Mismatched NCCL version detected : rank 0 version 22203 rank 3 version 21805\n",
    ),
    (
        "nccl_lib_mismatch",
        None,
        "ImportError: /opt/env/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister\n",
    ),
    (
        "nccl_cuda_unknown",
        None,
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled cuda error, NCCL version 2.18.1\nncclUnhandledCudaError: Call to CUDA function failed.\n",
    ),
    (
        "ofi_error",
        None,
        "ip-1:55:99 [1] ofi_process_cq:1234 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 4. Error: unreachable Completed length: 0, Request: { dev: 1, size: 0, state: CREATED }\n",
    ),
    (
        "limit_nofile",
        2,
        "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/w/t.py\", line 9, in main\n[rank2]:     f = open(p)\n[rank2]: OSError: [Errno 24] Too many open files: '/data/x'\n",
    ),
    (
        "limit_nofile",
        None,
        'Traceback (most recent call last):\n  File "/w/t.py", line 9, in main\n    f = open(p)\nRuntimeError: received 0 items of ancdata\n',
    ),
    (
        "disk_full",
        0,
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/t.py", line 9, in main\n[rank0]:     torch.save(m, p)\n[rank0]: RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 448 vs 342\n',
    ),
    (
        "disk_full",
        None,
        'Traceback (most recent call last):\n  File "/w/t.py", line 9, in main\n    f.write(b)\nOSError: [Errno 28] No space left on device\n',
    ),
    (
        "fs_readonly",
        None,
        "Traceback (most recent call last):\n  File \"/w/t.py\", line 9, in main\n    open(p,'w')\nOSError: [Errno 30] Read-only file system: '/ckpt/step_100'\n",
    ),
    ("nan", 7, "AssertionError: Rank 7: found NaN in local forward loss calculation. Device: 7, node: n12\n"),
    ("nan", None, "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.45e-303\n"),
    ("gpu_lost", None, "slurmstepd: error: NVML: Failed to get usage(15): GPU is lost\n"),
    (
        "ib_memlock",
        None,
        "[166.47] [n1:118:0] ib_log.c:246 UCX ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set\n",
    ),
    (
        "bootstrap_connect_failed",
        None,
        "terminate called after throwing an instance of 'gloo::IoException'\n"
        "  what():  [/w/gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:3210: Connection refused\nAborted (core dumped)\n",
    ),
    (
        "stalled",
        None,
        "[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)\n"
        "[2025-03-09 00:57:20] Received sigquit from a child proces. It usually means the child failed.\nKilled\n",
    ),
    ("nan", None, "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"),
    ("nan", None, "RuntimeError: Unexpected result nan (message='found NaN in local forward loss calculation')\n"),
    (
        "host_oom",
        None,
        "slurmstepd: error: Detected 3 oom_kill events in StepId=77.batch. Some of the step tasks have been OOM Killed.\nsrun: error: node07: task 3: Out Of Memory\n",
    ),
    ("host_oom", None, "    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"),
    (
        "time_limit",
        None,
        "step 100 loss 2.3\nslurmstepd: error: *** JOB 123456 ON node01 CANCELLED AT 2025-01-02T03:04:05 DUE TO TIME LIMIT ***\nslurmstepd: error: *** STEP 123456.0 ON node01 CANCELLED AT 2025-01-02T03:04:05 DUE TO TIME LIMIT ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: node01: tasks 0-7: Terminated\n",
    ),
    (
        "cancelled",
        None,
        "step 100 loss 2.3\nslurmstepd: error: *** JOB 123456 ON node01 CANCELLED AT 2025-01-02T03:04:05 ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: node01: tasks 0-7: Terminated\n",
    ),
    (
        "cancelled",
        None,
        "0: step 100 loss 2.3\n0: slurmstepd-gpu01: error: *** STEP 12.0 ON gpu01 CANCELLED AT 2025-01-02T03:04:05 ***\nslurmstepd-gpu01: error: *** JOB 12 ON gpu01 CANCELLED AT 2025-01-02T03:04:05 ***\nsrun: Job step aborted: Waiting up to 7 seconds for job step to finish.\nsrun: error: gpu01: tasks 0-1: Terminated\nsrun: error: gpu02: tasks 2-3: Terminated\n",
    ),
    (
        "unknown_error",
        None,
        "EngineCore encountered a fatal error.\nTimeoutError: RPC call to sample_tokens timed out.\n",
    ),
    (
        "evicted",
        None,
        "Status:       Failed\nReason:       Evicted\nMessage:      The node was low on resource: memory.\n",
    ),
    (
        "process_died_unknown",
        None,
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tclass_name: W\n\tpid: 11\n\tip: 10.0.0.9\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n",
    ),
    (
        "node_lost",
        None,
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\nThe actor is dead because its node has died. Node Id: abc\n",
    ),
    (
        "port_in_use",
        None,
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n[E socket.cpp:468] [c10d] The server socket has failed to listen on any local network address.\nRuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n",
    ),
    (
        "rendezvous_unreachable",
        None,
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).\n",
    ),
    (
        "rendezvous_unreachable",
        None,
        "[W1122 10:59:48.05 socket.cpp:697] [c10d] The IPv6 network addresses of (master-0, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\ntorch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (master-0, 29500).\n",
    ),
    (
        "rendezvous_timeout",
        None,
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined.\n",
    ),
    (
        "rendezvous_timeout",
        None,
        "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for workers. 1/2 workers joined.\n",
    ),
    (
        "collective_mismatch",
        None,
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=BROADCAST, TensorShape=[4], TensorDtypes=Float).\n",
    ),
    ("rank_hung", 2, "RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms\n"),
    (
        "rank_hung",
        1,
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/t.py", line 9, in main\n[rank0]:     dist.monitored_barrier()\n[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier in 5000 ms\n',
    ),
    (
        "shm_too_small_loader",
        None,
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nRuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.\n",
    ),
    (
        "loader_worker_killed",
        1,
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/t.py", line 9, in main\n[rank1]:     x = next(it)\n[rank1]: RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed. \n',
    ),
    ("loader_worker_killed", None, "RuntimeError: DataLoader worker (pid(s) 1234, 1235) exited unexpectedly\n"),
    (
        "user_exception_all",
        None,
        "[rank0]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss.\n[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n",
    ),
    (
        "killed_sigkill",
        2,
        "--------------------------------------------------------------------------\nmpirun noticed that process rank 2 with PID 4567 on node gpu02 exited on signal 9 (Killed).\n",
    ),
    (
        "segfault",
        1,
        "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\nmpirun noticed that process rank 1 with PID 0 on node gpu02 exited on signal 11 (Segmentation fault).\n",
    ),
    (
        "killed_sigkill",
        1,
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL\n",
    ),
    (
        "user_exception",
        1,
        'Traceback (most recent call last):\n  File "/w/t.py", line 9, in <module>\n    mp.spawn(f, nprocs=2)\n  File "/opt/env/lib/python3.10/site-packages/torch/multiprocessing/spawn.py", line 202, in start_processes\n    while not context.join():\ntorch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File "/w/t.py", line 5, in f\n    raise ValueError(\'x\')\nValueError: x\n',
    ),
    (
        "gpu_lost",
        None,
        "Jun 01 12:00:00 gpu07 kernel: NVRM: Xid (PCI:0000:dc:00): 79, pid=1818990, name=python3, GPU has fallen off the bus.\n",
    ),
    (
        "gpu_ecc",
        None,
        "[Sun Nov 22 11:13:40 2026] NVRM: Xid (PCI:0000:dc:00): 48, pid=1818990, name=python3, An uncorrectable double bit error (DBE) has been detected on GPU\n",
    ),
    (
        "gpu_xid",
        None,
        "[Sun Nov 22 11:13:40 2026] NVRM: Xid (PCI:0000:dc:00): 119, pid=1818990, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP!\n",
    ),
    (
        "cuda_oom",
        None,
        "(VllmWorker rank=3 pid=406) ERROR 07-23 19:34:51 [multiproc_executor.py:487] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n(VllmWorker rank=1 pid=404) ERROR 07-23 19:34:51 [multiproc_executor.py:487] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    ),
    (
        "timeout_all_same_seq",
        None,
        "[E ProcessGroupNCCL.cpp:821] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800024 milliseconds before timing out.\n[E ProcessGroupNCCL.cpp:821] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800324 milliseconds before timing out.\n",
    ),
    (
        "timeout_undecidable",
        None,
        "[E ProcessGroupNCCL.cpp:821] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800024 milliseconds before timing out.\n[E ProcessGroupNCCL.cpp:821] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for 1800324 milliseconds before timing out.\n",
    ),
    (
        "timeout_undecidable",
        None,
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLGATHER, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n"
        + "".join(
            f"[rank{r}]:[E816 02:52:53.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n[rank{r}]:[E816 02:52:53.2 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by watchdog at work sequence id: 44 PG status: last enqueued work: 44, last completed work: 43\n"
            for r in (0, 1)
        ),
    ),
    (
        "rank_behind",
        2,
        "".join(
            f"[rank{r}]:[E816 02:52:53.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={s}, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n[rank{r}]:[E816 02:52:53.2 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by watchdog at work sequence id: {s} PG status: last enqueued work: {e}, last completed work: {s - 1}\n"
            for r, s, e in ((0, 900, 905), (1, 900, 905), (2, 898, 899), (3, 900, 905))
        ),
    ),
    (
        "watchdog_stuck",
        3,
        "[rank3]:[E816 02:52:53.1 ProcessGroupNCCL.cpp:1316] [PG 0 Rank 3] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=0\n[rank2]:[E816 02:52:53.1 ProcessGroupNCCL.cpp:1316] [PG 0 Rank 2] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=7\n",
    ),
    (
        "victims_only",
        None,
        "[rank2]:[W810 00:09:55.465993962 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=101, addr=[n2]:50402, remote=[n1]:40027): Connection reset by peer\n",
    ),
    (
        "victims_only",
        None,
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: x.cpp:2251, remote process exited or there was a network error, NCCL version 2.20.5\n[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n[rank3]: Last error:\n[rank3]: NET/Socket : Connection closed by remote peer n2<4711>\n",
    ),
    (
        "import_error",
        None,
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n    import deepspeed\nModuleNotFoundError: No module named 'deepspeed'\n",
    ),
    (
        "segfault",
        None,
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "/w/t.py", line 3 in f\n',
    ),
    (
        "terminated_signal",
        None,
        'step 3 loss 1\n^CTraceback (most recent call last):\n  File "t.py", line 1, in <module>\n    time.sleep(1)\nKeyboardInterrupt\n',
    ),
    (
        "host_alloc_failed",
        None,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 137438953472 bytes. Error code 12 (Cannot allocate memory)\n",
    ),
    ("cuda_launch_failure", None, "RuntimeError: CUDA error: misaligned address\n"),
    (
        "cuda_init_failed",
        None,
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.\n",
    ),
    (
        "stale_nfs",
        None,
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n    open(p)\nOSError: [Errno 116] Stale file handle: '/nfs/x'\n",
    ),
    (
        "healthy",
        None,
        "[W1122 10:59:48.05 ProcessGroupNCCL.cpp:4718] [PG ID 0 PG GUID 0 Rank 0] using GPU 0 as device used by this process is currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.\n[rank0]:[W1122 11:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.\nstep 1 loss 3\n",
    ),
    (
        "healthy",
        None,
        "WARNING:root:Retrying after error: ConnectionResetError(104, 'Connection reset by peer')\nurllib3.connectionpool WARNING Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError': /api\nepoch 1 step 5 loss 2.0\nepoch 1 step 6 loss 2.0\nERROR: failed to upload metrics, will retry\nepoch 1 step 7 loss 1.9\nTraining finished\n",
    ),
    (
        "healthy",
        None,
        'wandb: ERROR Error while calling W&B API: timed out\nTraceback (most recent call last):\n  File "/opt/env/lib/python3.10/site-packages/wandb/x.py", line 3, in f\n    raise E\nrequests.exceptions.ReadTimeout: HTTPSConnectionPool: Read timed out.\nstep 10 loss 1\nstep 20 loss 1\nstep 30 loss 1\nstep 40 loss 1\n',
    ),
]


@pytest.mark.parametrize(("what", "rank", "text"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_an_excerpt_gets_its_word_and_rank(what: str, rank: int | None, text: str, tmp_path: Path) -> None:
    assert said(answer_to(text, tmp_path)) == (what, rank)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("import_error", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
        ("user_exception", "AssertionError: Size mismatch at step 3\n\n"),
        (
            "user_exception",
            "step 1 loss 2.5\nstep 2 loss 2.4\nstep 3 loss 2.4\nmegatron.core.ShapeError: (4, 8) is not (8, 4)\n",
        ),
        (
            "service_failed",
            "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub/x\n",
        ),
    ],
)
def test_an_exception_without_its_traceback_is_possible_if_it_is_the_last_line(
    what: str, text: str, tmp_path: Path
) -> None:
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, said(answer)) == ("cause", (what, None))
    assert answer.cause is not None
    assert answer.cause.confidence == "possible"
    assert [line.text for line in answer.cause.evidence] == [text.rstrip().rpartition("\n")[2]]


def test_a_victim_is_never_certain(tmp_path: Path) -> None:
    text = next(text for what, _, text in CASES if what == "victims_only")
    answer = answer_to(text, tmp_path)
    assert answer.verdict == "unknown"
    assert answer.cause is not None
    assert answer.cause.confidence == "possible"
    assert answer.collect


def test_a_flushed_request_makes_its_own_host_no_victim(tmp_path: Path) -> None:
    got = "n3:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<5> with status={} opcode=1\n"
    answer = answer_to(got.format(12) + got.format(5), tmp_path)
    assert said(answer) == ("ib_completion_error", None)
    assert not answer.victims


@pytest.mark.parametrize(
    "end", ["", "srun: error: n02: tasks 0-7: Killed\n"], ids=["the job is cancelled", "and killed"]
)
def test_who_waited_before_slurm_noticed_that_a_node_is_gone_waited_for_it(end: str, tmp_path: Path) -> None:
    waited = (
        "[rank{0}]:[E1129 01:10:00.1 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds "
        "before timing out.\n"
    )
    lost = "srun: error: Node failure on n04\nslurmstepd: error: *** STEP 7.0 ON n01 CANCELLED AT 2026-11-29T01:12:00 DUE TO NODE FAILURE ***\n"
    answer = answer_to("".join(map(waited.format, range(4))) + lost + end, tmp_path)
    assert said(answer) == ("node_lost", None)
    assert answer.cause is not None
    assert (answer.cause.host, answer.cause.confidence) == ("n04", "certain")


_RULE = "-" * 60


@pytest.mark.parametrize(
    ("text", "what", "host"),
    [
        ("CUDA error: uncorrectable ECC error encountered\nray: actor max_restarts=0 reached\n", "gpu_ecc", None),
        ("supervisor: worker failed again\nsupervisor: max_restarts=3 reached\n", "unknown_error", None),
        (f"{_RULE}\nevaluating the model\nmunmap_chunk(): invalid pointer\n", "process_died_unknown", None),
        (f"{_RULE}\nresuming from checkpoint\nkilled\n", "killed_sigkill", None),
        (
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: it was on node n12 last week\n',
            "user_exception",
            None,
        ),
        ("OSError: [Errno 28] No space left on device: '/x' on host nfs-2\n", "disk_full", None),
        ("skipping a batch: NaN detected\nstep 2 loss 1.5\n", None, None),
        ("[W] tokenizer: std::bad_alloc, trying a smaller buffer\nstep 2 loss 1.5\n", None, None),
        ("WARNING: [x] Signal: Aborted by the user, once more\nstep 2 loss 1.5\n", None, None),
        ("terminate called after throwing 'X'\n  what():  std::bad_alloc\n", "host_alloc_failed", None),
        ("srun: error: n4: task 3: Segmentation fault\n", "segfault", "n4"),
        ("srun: error: Node failure on n4\n", "node_lost", "n4"),
        ("srun: error: Node failure on n[4-5]\n", "node_lost", None),
        ("srun: error: Node failure on n4,n6\n", "node_lost", None),
        (
            "[rank1]: RuntimeError: [x/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:57: Connection reset by peer\n",
            "victims_only",
            None,
        ),
    ],
)
def test_an_end_a_frame_and_a_place_are_only_what_can_be_no_other_thing(
    text: str, what: str | None, host: str | None, tmp_path: Path
) -> None:
    cause = answer_to(f"step 1 loss 2.0\n{text}", tmp_path).cause
    assert (cause and cause.what, cause and cause.host) == (what, host)


def test_a_node_that_slurm_misses_later_is_not_the_one_that_a_rank_waited_for(tmp_path: Path) -> None:
    waited = (
        "[rank3]:[E1129 01:10:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds "
        "before timing out.\n"
    )
    later = "Jan 01 12:10:00 head slurmctld: error: Nodes n99 not responding\n"
    assert said(answer_to(waited + later, tmp_path))[0] == "timeout_undecidable"


def test_a_loggers_line_inside_a_traceback_is_not_its_exception(tmp_path: Path) -> None:
    frames = 'Traceback (most recent call last):\n  File "serve.py", line 9, in load\n    model = restore(path)\n'
    rest = '    return build(\n  File "x.py", line 2, in build\n    raise TypeError(word)\nTypeError: no such layer\n'
    answer = answer_to(f"{frames}INFO:     Application startup complete.\n{rest}", tmp_path)
    assert said(answer) == ("user_exception", None)
    assert answer.cause is not None
    assert answer.cause.text.startswith("TypeError: no such layer")


def test_a_wrapper_that_quotes_the_exception_tells_it(tmp_path: Path) -> None:
    wrapped = 'AlgorithmError: ScriptError: ExitCode 1 ErrorMessage "ValueError: bad labels Traceback (most recent call last)", exit code: 1\n'
    answer = answer_to(wrapped, tmp_path)
    assert said(answer) == ("user_exception", None)
    assert answer.cause is not None
    assert answer.cause.text.startswith("ValueError: bad labels")


def test_what_was_cancelled_follows_from_who_ended_it(tmp_path: Path) -> None:
    cancelled = (
        'Traceback (most recent call last):\n  File "serve.py", line 4, in poll\nasyncio.exceptions.CancelledError\n\n'
    )
    during = "During handling of the above exception, another exception occurred:\n\n"
    ended = 'Traceback (most recent call last):\n  File "serve.py", line 9, in <module>\nKeyboardInterrupt\n'
    assert said(answer_to(cancelled + during + ended, tmp_path)) == ("terminated_signal", None)


def test_no_rank_is_silent_in_a_text_of_a_controller_alone(tmp_path: Path) -> None:
    died = "(TrainController pid=7) world size 2\n(TrainController pid=7) The actor died because its node has died. Node Id: b1\n"
    answer = answer_to(died, tmp_path)
    assert said(answer) == ("node_lost", None)
    assert answer.silent_ranks == ()
    assert answer_to(f"{died}[rank0]: RuntimeError: x\n", tmp_path).silent_ranks == (1,)
