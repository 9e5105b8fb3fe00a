"""Starts and ends the rank starter (rank_starter.py), and sets the environment of the ranks."""

from __future__ import annotations

import json
import os
import signal
from typing import IO, Any

import msgspec

from gpudoctor.probes.runner.messages import RankJob
from gpudoctor.probes.runner.rank_starter import TERM_GRACE_S, visible_gpus
from gpudoctor.process.own_program import own_python
from gpudoctor.process.spawn import Child

STOP_S = {"nccl": 3.0, "gloo": 0.0}  # for a rank to let its GPU finish, before it gets SIGTERM
KILL_GRACE_S = 10.0
# A driver closes the CUDA contexts of killed processes one after another: healthy nodes of 8 GPUs with 64 contexts
# take over 30 s (sglang issues 23213, 36589)
_TEARDOWN_S, _TEARDOWN_PER_CONTEXT_S = 60.0, 0.5
# Settings of OpenMP and similar libraries that would bind all ranks to one core, or start too many threads
_THREADING = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# User settings that change how fast or how exactly a GPU computes: env.nccl names the first, and both stay in force for
# the user's job
_MEASURES_ANOTHER_GPU = ("CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE")
# User settings with which the watchdog would not run, would distort the measurement, or would first write a dump
_NO_WATCHDOG = ("BLOCKING_WAIT", "DESYNC_DEBUG", "NAN_CHECK", "ENABLE_TIMING", "DUMP_ON_TIMEOUT", "PROPAGATE_ERROR")


def order_for(job: RankJob, ranks: list[int], method: str) -> dict[str, Any]:
    """The order to a starter; `start` adds the file descriptors."""
    return {"ranks": ranks, "method": method, "stop_s": STOP_S[job.backend], "job": msgspec.to_builtins(job)}


def teardown_s(contexts: int) -> float:
    """How long a healthy driver may take to end killed processes with so many CUDA contexts."""
    return _TEARDOWN_S + _TEARDOWN_PER_CONTEXT_S * contexts if contexts else KILL_GRACE_S


def contexts_of(job: RankJob) -> int:
    """The CUDA contexts of all ranks: one each, or one on each GPU if they copy between all of them."""
    return sum(len(visible_gpus(rank, job.gpu_uuids, job.probes)) for rank in range(len(job.gpus)))


def start(order: dict[str, Any], life: int, control: int, rank_fds: list[int], output: IO[bytes]) -> Child:
    """Start a starter with these pipe ends: `life` to read, `control` and one per rank to write. Raises OSError."""
    whole = {"parent": os.getpid(), "life_fd": life, "control_fd": control, "rank_fds": rank_fds, **order}
    return Child(
        own_python("gpudoctor.probes.runner.rank_starter", "main", json.dumps(whole)),
        stdout=output,
        stderr=output,
        env=_environment(msgspec.convert(order["job"], RankJob)),
        pass_fds=[life, control, *rank_fds],
    )


def end(process: Child, *, has_ranks: bool, contexts: int) -> bool:
    """End a starter and its ranks; True if some did not end in the time that a healthy driver may take."""
    limit_s = teardown_s(contexts)
    try:
        process.send(signal.SIGCONT)  # in case it was stopped
        process.send(signal.SIGTERM)  # the starter ends and reaps its ranks on this signal
        if process.ends_within(max(STOP_S.values()) + TERM_GRACE_S + (limit_s if has_ranks else 0.0)) is not None:
            return False
    finally:
        process.send(signal.SIGKILL, group=True)
    return process.ends_within(KILL_GRACE_S) is None or has_ranks


def _environment(job: RankJob) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_THREADING)}
    environment.pop("PYTHONWARNINGS", None)
    for name in _MEASURES_ANOTHER_GPU:
        environment.pop(name, None)
    environment["TMPDIR"] = job.folder  # torch._inductor, which DDP imports, makes a directory there
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    environment["TORCH_DISTRIBUTED_DEBUG"] = "OFF"  # its checks would be measured too
    # One thread per rank: the threads of several ranks would compete for the cores. None may start at import
    # either, or the starter could not fork.
    environment |= ONE_THREAD
    if job.backend == "gloo":
        hide_gpus(environment)
    else:
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # counts GPUs without opening them
        environment.setdefault("NCCL_DEBUG", "WARN")
        _set_watchdog(environment, job.group_timeout_s)
        if "compute" in job.probes:
            # read when cuBLAS starts: without a workspace of fixed size its results may differ in bits from run to run
            environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return environment


def hide_gpus(environment: dict[str, str]) -> None:
    """Let no CPU rank open a GPU: parts of torch's CUDA build, such as DataLoader, do so if they merely see one."""
    environment["CUDA_VISIBLE_DEVICES"] = ""


def _set_watchdog(environment: dict[str, str], limit_s: float) -> None:
    """Let a rank that is stuck in NCCL, or whose watchdog is stuck in CUDA, die by itself soon after the deadline.

    Names and meanings: torch's list of ProcessGroupNCCL variables; those without TORCH_ are older spellings.
    """
    for name in _NO_WATCHDOG:
        environment.pop(f"NCCL_{name}", None)
        environment[f"TORCH_NCCL_{name}"] = "0"
    environment.pop("NCCL_ASYNC_ERROR_HANDLING", None)
    environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3"  # end the process without a teardown, which may hang
    environment["TORCH_NCCL_ENABLE_MONITORING"] = "1"  # a thread that watches the watchdog
    environment["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = str(int(limit_s))
