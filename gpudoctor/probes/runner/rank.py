"""One rank: joins the process group, runs the probes, and exits."""

from __future__ import annotations

import datetime
import itertools
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.facts.model.measurements import ONCE
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.messages import RankJob, Where
from gpudoctor.probes.runner.plan import Injection, InjectionKind
from gpudoctor.probes.runner.rank_starter import STOP
from gpudoctor.probes.runner.torch_device import (
    UnusableTorchError,
    give_back,
    rank_failure,
    require_usable,
    torch_view,
)
from gpudoctor.process.ending import leave, send_signal
from gpudoctor.process.pipes import write_all

_SHORTEST_REPETITION_S = 0.1
_MORE_THAN_ANY_MEMORY = 1 << 50  # bytes: also more than a process can address
_dist: Any = dist


class Rank:
    """What a probe may use of its rank: number, device, reporting, waiting for the other ranks.

    Every call that makes this rank wait for another goes inside `blocked()`, so that the parent can
    distinguish a rank that hangs from one that waits.
    """

    def __init__(self, number: int, job: RankJob, fd: int) -> None:
        self.number = number
        self.job = job
        self.world_size = job.ranks
        self.on_gpu = job.backend == "nccl"
        self.device = torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")
        self.waiting = False
        # of the train, calibrated in the first repetition only: a GPU that slows down must not get less work
        self.batch: int | None = None
        self._fd = fd
        self._probe: Where = "launch"
        self.board = ProgressBoard(Path(job.folder) / "board", job.ranks)
        self._token = torch.zeros(1)

    def send(self, message: messages.RankMessage) -> None:
        """Write one complete line to the parent."""
        write_all(self._fd, msgspec.json.encode(message) + b"\n")

    def phase(self, text: str, probe: Where | None = None) -> None:
        """Report that a phase begins; without `probe`, it belongs to the current one."""
        self._probe = probe or self._probe
        self.board.begin_step(self.number, 0)
        self.board.move(self.number)
        self.send(messages.Phase(self._probe, text))

    def step(self, step: int) -> None:
        """Report that a step of the phase begins, counted from 1."""
        self.board.begin_step(self.number, step)

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Around a call that returns only after other ranks have made theirs."""
        self.board.move(self.number)
        self.waiting = True
        yield  # after an exception `waiting` stays True: it happened while waiting for others
        self.waiting = False
        self.board.move(self.number)

    def barrier(self) -> None:
        """Wait on the CPU for every rank; the GPU of a waiting rank stays idle."""
        with self.blocked():
            dist.all_reduce(self._token)

    def synchronize(self) -> None:
        """Wait until this rank's GPU has finished all enqueued work."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def clock_ns(self) -> int:
        """A clock for this rank's work on the host: on a CPU rank it stops while others have the core."""
        return time.monotonic_ns() if self.on_gpu else time.thread_time_ns()

    def from_rank_zero(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        return self._reduced(value if self.number == 0 else 0, dist.ReduceOp.SUM)

    def smallest(self, value: int) -> int:
        """The minimum over all ranks, on every rank."""
        return self._reduced(value, dist.ReduceOp.MIN)

    def _reduced(self, value: int, op: Any) -> int:
        shared = torch.tensor([value], dtype=torch.int64)
        with self.blocked():
            dist.all_reduce(shared, op=op)
        return int(shared.item())

    def gathered(self, values: Sequence[float]) -> list[list[float]]:
        """The values of each rank, in rank order; every rank passes equally many."""
        own = torch.tensor(values, dtype=torch.float64)
        everybody = [torch.zeros_like(own) for _ in range(self.world_size)]
        with self.blocked():
            dist.all_gather(everybody, own)
        return [other.tolist() for other in everybody]

    def injected(self, kind: InjectionKind) -> Injection | None:
        """The injected fault of that kind in this rank, if any."""
        return next((i for i in self.job.injections if i.kind == kind and i.rank == self.number), None)

    def fail_if_injected(self, phase: str) -> None:
        """Hang, die or run out of memory here if that fault is injected in this phase."""
        for injection in self.job.injections:
            if injection.rank != self.number or injection.phase != phase:
                continue
            if injection.kind == "die-rank":
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                send_signal(os.getpid(), signal.SIGSEGV)  # as a crash in a driver's library would
            if injection.kind == "oom":
                torch.empty(_MORE_THAN_ANY_MEMORY, dtype=torch.uint8, device=self.device)
            if injection.kind == "hang-rank":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # like a rank stuck in native code
                while True:
                    signal.pause()


class StopRequested(BaseException):
    """The starter ends this rank, and gives it time to let its GPU finish."""


def _stop(number: int, frame: object) -> NoReturn:
    raise StopRequested


def run_rank(order: dict[str, Any]) -> NoReturn:
    """Run the rank that `order` describes, and end the process."""
    job = msgspec.convert(order["job"], RankJob)
    number: int = order["rank"]
    _own_output(Path(job.folder) / f"rank-{number}.stderr")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(job.ranks))
    torch.set_num_threads(1)
    rank = Rank(number, job, order["fd"])
    signal.signal(STOP, _stop)
    try:
        _join(rank)
        _verify_plan(rank)
        _run_repetitions(rank, probe_functions())
    except StopRequested:
        with suppress(RuntimeError):
            rank.synchronize()  # the kernel ends before its context is closed
        leave(1)
    except UnusableTorchError as error:
        rank.send(messages.UnusableTorch(str(error)))
        leave()
    except Exception as error:  # noqa: BLE001 - a rank that just died would be blamed on its GPU
        with suppress(OSError):  # on a full disk; the parent must get the reason all the same
            traceback.print_exc()
        rank.send(rank_failure(error, rank.waiting))
        leave(1)
    _leave(rank)


def _run_repetitions(rank: Rank, probes: dict[str, Callable[[Rank], None]]) -> None:
    """Run the job's probes once, or again and again until its duration is over."""
    job, began = rank.job, time.monotonic()
    for repetition in itertools.count():
        repetition_began = time.monotonic()
        for probe in job.probes:
            if probe not in ONCE or not repetition:
                probes[probe](rank)
            rank.send(messages.Finished(probe))
        if job.duration_s is None or not job.probes:
            return
        # One clock decides for all: a rank that began another repetition alone would wait forever.
        if not rank.from_rank_zero(time.monotonic() - began < job.duration_s):
            return
        # without a pause, repetitions of a probe with nothing to do (the links of CPU ranks) would flood the parent
        time.sleep(max(0.0, _SHORTEST_REPETITION_S - (time.monotonic() - repetition_began)))
        give_back(rank)  # DDP holds itself in reference cycles, and probes choose their sizes by the free memory


def _verify_plan(rank: Rank) -> None:
    if rank.job.verification is not None:
        from gpudoctor.probes.plan_verification.run import run_verification

        run_verification(rank, rank.job.verification)


def _own_output(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def probe_functions() -> dict[str, Callable[[Rank], None]]:
    """Each probe by its name; imports all of them."""
    from gpudoctor.probes.collective.probe import run_collectives
    from gpudoctor.probes.compute.probe import run_compute
    from gpudoctor.probes.data.probe import run_data
    from gpudoctor.probes.link.probe import run_links
    from gpudoctor.probes.strategies.run import run_strategies
    from gpudoctor.probes.train.probe import run_training

    return {
        "collective": run_collectives,
        "link": run_links,
        "compute": run_compute,
        "train": run_training,
        "strategy": run_strategies,
        "data": run_data,
    }


def _join(rank: Rank) -> None:
    rank.phase("ask torch", "launch")
    view = torch_view(rank)
    rank.send(messages.TorchSeen(view))
    require_usable(rank, view)
    rank.phase("join")
    rank.fail_if_injected("join")
    with rank.blocked():
        timeout = datetime.timedelta(seconds=rank.job.group_timeout_s)
        # A file store needs no port that another run could hold, and no host name to resolve.
        store = _dist.FileStore(f"{rank.job.folder}/store", rank.world_size)
        store.set_timeout(timeout)
        dist.init_process_group(
            # gloo in addition to NCCL: a rank that waits on the CPU does not spin on its GPU
            "cuda:nccl,cpu:gloo" if rank.on_gpu else "gloo",
            store=store,
            rank=rank.number,
            world_size=rank.world_size,
            timeout=timeout,
        )
        dist.all_reduce(torch.zeros(1, device=rank.device))  # NCCL creates its communicator at the first call
        rank.synchronize()
    rank.barrier()
    rank.phase("joined")


def _leave(rank: Rank) -> NoReturn:
    """Send Left and exit without any teardown, which takes time and may hang or abort."""
    rank.send(messages.Left())
    if rank.on_gpu:
        with suppress(RuntimeError):
            rank.barrier()  # this GPU's memory must not be freed while another GPU still reads it
    leave()
