"""The process between gpudoctor and its ranks: starts them, reaps them, ends them.

Forking ranks from one process that has imported torch pays for the import once instead of once per
rank. That is done only while this process has a single thread and has not touched CUDA, the conditions
under which fork is safe. Until torch has been found, only the standard library is imported: the interpreter may
have nothing else.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import math
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
from gpudoctor.process.ending import ENDING_SIGNALS, RunningProcess, leave, reap, send_signal, send_signals
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.pipes import write_all
from gpudoctor.process.spawn import Child

STOP = signal.SIGUSR1  # a rank that gets it finishes what its GPU computes, and ends
TERM_GRACE_S = 1.0
_CLEARING_TRIES = 200  # 10 s: how long a driver may take to release a process
# Modules for strategies and plan verification that `import torch` does not import: 2.5 s, else spent in every rank.
_STRATEGY_MODULES = (
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
_GUARDED = {signal.SIGTERM, signal.SIGCHLD}
# Keeps references: `subprocess` reaps unreferenced children when it starts the next one
_started: list[RunningProcess] = []


def main(argument: str) -> None:
    """Serve one run; `argument`: the order of rank_starter_client.py as JSON."""
    order: dict[str, Any] = json.loads(argument)
    control: int = order["control_fd"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        _fork_guardian(order)  # before anything else: the parent may already be dead
        die_with_parent(order["parent"], signal.SIGTERM)
        method = _load_torch(order, control)
        if method is not None:
            _start_and_attend(order, control, method)
    except OSError as error:
        _send(control, {"type": "StartFailure", "text": _first_line(error)})
    leave()  # without tearing torch down, which takes up to a second while the parent waits


def _fork_guardian(order: dict[str, Any]) -> None:
    """Fork a process that only holds the pipe that ends with the parent, and cleans up when it does.

    This process cannot do that itself: nothing interrupts the import of torch.
    """
    starter, life, folder = os.getpid(), order["life_fd"], order["job"]["folder"]

    def clear_up() -> None:
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for fd in (0, 1, 2, order["control_fd"], *order["rank_fds"]):
            os.close(fd)
        os.read(life, 1)  # nothing is written: it returns when the parent has ended, or has finished the run
        if os.getppid() == starter:  # otherwise its pid may belong to another process by now
            send_signal(starter, signal.SIGKILL, group=True)
        for _ in range(_CLEARING_TRIES):  # killed processes may take a moment to end
            shutil.rmtree(folder, ignore_errors=True)
            if os.getppid() != starter and not os.path.exists(folder):  # noqa: PTH110
                break
            time.sleep(0.05)

    ForkedProcess(clear_up, new_group=True)  # outside the process group that it kills
    os.close(life)


def _start_and_attend(order: dict[str, Any], control: int, method: str) -> None:
    """Start every rank and wait until all have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was inherited as ignored, ranks could not be reaped
    signal.pthread_sigmask(signal.SIG_BLOCK, _GUARDED)
    fds: list[int] = order["rank_fds"]
    ranks: dict[int, int] = {}
    try:
        for place, (rank, fd) in enumerate(zip(order["ranks"], fds, strict=True)):
            rank_job = {"rank": rank, "fd": fd, "parent": os.getpid(), "job": order["job"]}
            start = _fork_rank if method == "fork-server" else _spawn_rank
            _started.append(start(rank_job, [control, *fds[place + 1 :]]))
            ranks[_started[-1].pid] = rank
            os.close(fd)  # only the rank holds it now, so EOF means that the rank has ended
    except OSError:
        send_signals(ranks, signal.SIGKILL)  # they would wait for the ranks that could not be started
        raise
    _send(control, {"type": "Started", "method": method, "pids": list(ranks)})
    _attend(ranks, control, order["stop_s"])


def rank_main(argument: str) -> None:
    """Run a rank in a fresh interpreter; `argument`: its order as JSON."""
    rank_job: dict[str, Any] = json.loads(argument)
    try:
        _import_torch(rank_job["job"])
    except Exception as error:  # noqa: BLE001 - a broken installation of torch may raise anything
        traceback.print_exc()
        text = f"torch does not load: {_first_line(error)}"
        _send(rank_job["fd"], {"type": "NoTorch", "text": text, "kind": "failed"})
        sys.exit(1)
    gc.enable()
    from gpudoctor.probes.runner import rank

    rank.run_rank(rank_job)


def _import_torch(job: dict[str, Any]) -> None:
    """Import everything the ranks will need; leaves the garbage collector disabled."""
    probes: Sequence[str] = job["probes"]
    strategies = "strategy" in probes or job["verification"] is not None
    gc.disable()  # garbage collection that finds nothing is a third of the time of importing torch
    import torch

    from gpudoctor.probes.runner import rank

    with suppress(ImportError, AttributeError):  # if torch is too old for them, the rank reports that
        rank.probe_functions()
    if "train" in probes or strategies:
        import torch._dynamo  # noqa: F401 - DDP imports it at first use, which would count as time of the probe
    if strategies:
        for name in _STRATEGY_MODULES:
            with suppress(ImportError, AttributeError):  # if an older torch lacks it, the strategy itself reports that
                importlib.import_module(name)


def _load_torch(order: dict[str, Any], control: int) -> str | None:
    """How to start the ranks; None if torch cannot be used, after sending NoTorch."""
    if importlib.util.find_spec("torch") is None:
        _send(control, {"type": "NoTorch", "text": "PyTorch is not installed", "kind": "absent"})
        return None
    if order["method"] != "fork-server":
        return str(order["method"])
    try:
        _import_torch(order["job"])
    except Exception as error:  # noqa: BLE001 - a broken installation of torch may raise anything
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
    if rank_job["job"]["gpus"]:  # by UUID: a torch ordinal is not an NVML index
        uuids = [uuid for _, uuid, _ in rank_job["job"]["gpus"]]
        visible = visible_gpus(rank_job["rank"], uuids, rank_job["job"]["probes"])
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
    command = dependent_python("gpudoctor.probes.runner.rank_starter", "rank_main", json.dumps(rank_job))
    return Child(command, stdout=None, stderr=None, env=environment, pass_fds=[rank_job["fd"]], new_session=False)


def visible_gpus(rank: int, uuids: Sequence[str], probes: Sequence[str]) -> list[str]:
    """The UUIDs of the GPUs that CUDA shows a rank, its own first; all GPUs of the run if it copies to the others.

    With strategies rank 0 sees all GPUs too: DataParallel spreads one process over them.
    """
    sees_all = "link" in probes or ("strategy" in probes and rank == 0)
    others = [uuid for number, uuid in enumerate(uuids) if number != rank] if sees_all else []
    return [uuids[rank], *others]


def _attend(ranks: dict[int, int], control: int, stop_s: float) -> None:
    """Reap the ranks and report how each ended; on SIGTERM end them.

    First STOP, if they have `stop_s` for it: a kernel that is killed with its process may leave the GPU's utilization
    at 100 %. Then SIGTERM, then SIGKILL.
    """
    steps = [(STOP, stop_s)] if stop_s else []
    steps += [(signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, 3600.0)]
    ending, until = False, math.inf
    while True:
        _reap(ranks, None if ending else control)  # the end of a rank that we ended is not reported
        if not ranks:
            return
        got = signal.sigtimedwait(_GUARDED, max(0.0, min(until - time.monotonic(), 3600.0)))
        ordered = got is not None and got.si_signo == signal.SIGTERM and not ending
        if steps and (ordered or time.monotonic() >= until):
            ending = True
            number, grace_s = steps.pop(0)
            send_signals(ranks, number)
            until = time.monotonic() + grace_s


def _reap(ranks: dict[int, int], control: int | None) -> None:
    while ranks:
        ended = reap()
        if ended is None:
            return
        rank = ranks.pop(ended[0], None)
        if rank is not None and control is not None:  # None: it was the guardian
            _send(control, {"type": "Exited", "rank": rank, "status": ended[1]})


def _send(control: int, message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the parent has ended; the parent-death signal ends this process
        write_all(control, json.dumps(message).encode() + b"\n")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
