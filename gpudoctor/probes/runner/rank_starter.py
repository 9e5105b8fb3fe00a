"""The process between gpudoctor and its ranks: starts them, reaps them, ends them.

Forking ranks from one process that has imported torch makes the import cost once instead of once
a rank. It is done only while this process has a single thread and CUDA was not touched, which are
the conditions under which fork is safe. Until torch was found here, only the standard library is
imported: the interpreter may have nothing else.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpudoctor.process.die_with_parent import dependent_python, die_with_parent
from gpudoctor.process.ending import ENDING_SIGNALS, RunningProcess, leave, send_signal
from gpudoctor.process.forked import ForkedProcess, reap
from gpudoctor.process.leftovers import send_signals
from gpudoctor.process.pipes import write_all
from gpudoctor.process.spawn import Child

TERM_GRACE_S = 1.0
_CLEARING_TRIES = 200  # 10 s: as long as a driver may take to let a process go
# What strategies and planned ones need and `import torch` leaves out: 2.5 s of work, which each rank would do again.
_STRATEGY_MODULES = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
_GUARDED = {signal.SIGTERM, signal.SIGCHLD}
_started: list[RunningProcess] = []  # kept: a child that nobody holds may be reaped when the next one is started


def main(argument: str) -> None:
    """Serve one run; the argument is the order as JSON (see launch.py)."""
    order: dict[str, Any] = json.loads(argument)
    control: int = order["control_fd"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        _fork_guardian(order)  # first of all: the parent may be dead already
        die_with_parent(order["parent"], signal.SIGTERM)
        method = _load_torch(order, control)
        if method is not None:
            _start_and_attend(order, control, method)
    except OSError as error:
        _send(control, {"type": "StartFailure", "text": _first_line(error)})
    leave()  # the parent waits: taking torch down takes up to a second, and serves nobody


def _fork_guardian(order: dict[str, Any]) -> None:
    """Leave a process that holds nothing but the pipe that ends with the parent, and then clears up.

    It cannot be this one: nothing interrupts the import of torch.
    """
    starter, life, folder = os.getpid(), order["life_fd"], order["job"]["folder"]

    def clear_up() -> None:
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for fd in (0, 1, 2, order["control_fd"], *order["rank_fds"]):
            os.close(fd)
        os.read(life, 1)  # nobody writes: it returns when the parent is gone, or through
        if os.getppid() == starter:  # else its number may be another's by now
            send_signal(starter, signal.SIGKILL, group=True)
        for _ in range(_CLEARING_TRIES):  # what was killed may end a little later
            shutil.rmtree(folder, ignore_errors=True)
            if os.getppid() != starter and not os.path.exists(folder):  # noqa: PTH110
                break
            time.sleep(0.05)

    ForkedProcess(clear_up, new_session=True)  # out of the group that it ends
    os.close(life)


def _start_and_attend(order: dict[str, Any], control: int, method: str) -> None:
    """Start every rank, and stay until all have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is inherited as ignored, ranks could not be reaped
    signal.pthread_sigmask(signal.SIG_BLOCK, _GUARDED)
    fds: list[int] = order["rank_fds"]
    ranks: dict[int, int] = {}
    try:
        for place, (rank, fd) in enumerate(zip(order["ranks"], fds, strict=True)):
            rank_job = {"rank": rank, "fd": fd, "parent": os.getpid(), "job": order["job"]}
            start = _fork_rank if method == "fork-server" else _spawn_rank
            _started.append(start(rank_job, [control, *fds[place + 1 :]]))
            ranks[_started[-1].pid] = rank
            os.close(fd)  # the rank alone holds it now: its end is the end of the pipe
    except OSError:
        send_signals(ranks, signal.SIGKILL)  # they would wait for the others
        raise
    _send(control, {"type": "Started", "method": method, "pids": list(ranks)})
    _attend(ranks, control)


def rank_main(argument: str) -> None:
    """Be a rank in a fresh interpreter; the argument is its order as JSON."""
    rank_job: dict[str, Any] = json.loads(argument)
    try:
        _import_torch(rank_job["job"])
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        traceback.print_exc()
        text = f"torch does not load: {_first_line(error)}"
        _send(rank_job["fd"], {"type": "NoTorch", "text": text, "kind": "failed"})
        sys.exit(1)
    gc.enable()
    from gpudoctor.probes.runner import rank

    rank.run_rank(rank_job)


def _import_torch(job: dict[str, Any]) -> None:
    """Import all that the ranks will need; the garbage collector is off afterwards."""
    probes: Sequence[str] = job["probes"]
    strategies = "strategy" in probes or job["verification"] is not None
    gc.disable()  # a third of the time of importing torch is garbage collection that finds nothing
    import torch

    import gpudoctor.probes.runner.rank  # noqa: F401

    if "train" in probes or strategies:
        import torch._dynamo  # noqa: F401 - DDP imports it at its first use, in the time of the probe
    if strategies:
        for name in _STRATEGY_MODULES:
            with suppress(ImportError, AttributeError):  # what an older torch lacks, the strategy itself will tell
                importlib.import_module(name)


def _load_torch(order: dict[str, Any], control: int) -> str | None:
    """The way in which ranks are to be started, or None where there is no torch to start them with."""
    if importlib.util.find_spec("torch") is None:
        _send(control, {"type": "NoTorch", "text": "PyTorch is not installed", "kind": "absent"})
        return None
    if order["method"] != "fork-server":
        return str(order["method"])
    try:
        _import_torch(order["job"])
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        _send(control, {"type": "NoTorch", "text": f"torch does not load: {_first_line(error)}", "kind": "failed"})
        return None
    gc.freeze()
    gc.enable()
    import torch

    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    cuda: Any = torch.cuda  # not annotated everywhere
    return "fork-server" if threads == 1 and not cuda.is_initialized() else "fresh-interpreters"


def _fork_rank(rank_job: dict[str, Any], not_mine: list[int]) -> RunningProcess:
    def be_rank() -> None:
        for fd in not_mine:
            os.close(fd)
        from gpudoctor.probes.runner import rank

        die_with_parent(rank_job["parent"])
        rank.run_rank(rank_job)

    return ForkedProcess(be_rank)


def _spawn_rank(rank_job: dict[str, Any], _not_mine: list[int]) -> RunningProcess:
    environment = dict(os.environ)
    if rank_job["job"]["gpu_uuids"]:  # by UUID: a torch ordinal is not an NVML index
        visible = visible_gpus(rank_job["rank"], rank_job["job"]["gpu_uuids"], rank_job["job"]["probes"])
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
    command = dependent_python("gpudoctor.probes.runner.rank_starter", "rank_main", json.dumps(rank_job))
    return Child(command, stdout=None, stderr=None, env=environment, pass_fds=[rank_job["fd"]], new_session=False)


def visible_gpus(rank: int, uuids: Sequence[str], probes: Sequence[str]) -> list[str]:
    """The GPUs that CUDA shows a rank, its own first: all of the run where it is to copy to the others, else one.

    Rank 0 also sees all where strategies are tried: DataParallel spreads its one process over them.
    """
    sees_all = "link" in probes or ("strategy" in probes and rank == 0)
    others = [uuid for number, uuid in enumerate(uuids) if number != rank] if sees_all else []
    return [uuids[rank], *others]


def _attend(ranks: dict[int, int], control: int) -> None:
    """Reap ranks and report each end; on SIGTERM end them, by SIGKILL where SIGTERM does not do."""
    kill_at: float | None = None
    told_to_end = False
    while True:
        _reap(ranks, None if told_to_end else control)  # an end that we bring about is nothing that a rank did
        if not ranks:
            return
        wait_s = 3600.0 if kill_at is None else max(0.0, kill_at - time.monotonic())
        got = signal.sigtimedwait(_GUARDED, wait_s)
        if got is not None and got.si_signo == signal.SIGTERM and not told_to_end:
            told_to_end = True
            send_signals(ranks, signal.SIGTERM)
            kill_at = time.monotonic() + TERM_GRACE_S
        elif kill_at is not None and time.monotonic() >= kill_at:
            send_signals(ranks, signal.SIGKILL)
            kill_at = None


def _reap(ranks: dict[int, int], control: int | None) -> None:
    while ranks:
        ended = reap()
        if ended is None:
            return
        rank = ranks.pop(ended[0], None)
        if rank is not None and control is not None:  # else the guardian
            _send(control, {"type": "Exited", "rank": rank, "status": ended[1]})


def _send(control: int, message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the parent is gone; the kernel has told us, or will in a moment
        write_all(control, json.dumps(message).encode() + b"\n")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
