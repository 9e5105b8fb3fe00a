"""How the processes that an engine started on a node share the report of the first one, without torch.distributed.

They connect to an abstract socket whose name only this start of the job knows and which disappears with its process,
so no stale result can be found there. The first process closes the socket before it checks, sends each of the others
the time limit, then the report in shared memory. If it dies, its connections close.
"""

from __future__ import annotations

import json
import os
import socket

import msgspec

from gpudoctor.api.load.measure import run_limit_s
from gpudoctor.api.node_check import CheckRequest, Prepared, prepare, run_prepared
from gpudoctor.errors import UserError
from gpudoctor.probes.runner.launch_engine import LocalPlacement
from gpudoctor.probes.runner.local_workers import (
    LONGEST_RENDEZVOUS_S,
    LocalWorkers,
    WorkerHello,
    leader_of,
    openable_gpus,
)
from gpudoctor.process.pipes import anonymous_file
from gpudoctor.report.model import Report

PURPOSE = "preflight"
_SLACK_S = 60.0  # for judging, and for imports from a cold network disk
_PACKET_BYTES = 1 << 16
_ANSWER_CHARACTERS = 4096


class NotFitError(Exception):
    """This node is not fit to train on, or could not be judged; the message is one line with the reason.

    `report` is the report of the check; None if the process that checks for the whole node delivered none.
    """

    def __init__(self, message: str, report: Report | None = None) -> None:
        super().__init__(message, report)
        self.report = report

    def __str__(self) -> str:
        return str(self.args[0])


class _Wait(msgspec.Struct, frozen=True, tag=True):
    """The check has started, and ends within `limit_s` seconds."""

    limit_s: float


class _Done(msgspec.Struct, frozen=True, tag=True):
    """The report is in the memory whose descriptor comes with this message; `error` says why there is none."""

    error: str | None = None


def report_for_all(placement: LocalPlacement, request: CheckRequest) -> Report:
    """Run as the first process: check, send the report to the others and return it. Raise UserError in all of them."""
    workers = LocalWorkers(placement, PURPOSE)
    try:
        try:
            workers.gather()
            prep = prepare(request)
            _refuse_confined(placement, prep, workers)
            workers.broadcast(msgspec.json.encode(_Wait(_limit_s(prep))))
            report = run_prepared(prep, visible=tuple(workers.visible))
        except UserError as error:
            workers.broadcast(msgspec.json.encode(_Done(str(error)[:_ANSWER_CHARACTERS])))
            raise
        memory = anonymous_file()
        with os.fdopen(memory, "wb") as file:
            file.write(_encoded(report))
            file.flush()
            workers.broadcast(msgspec.json.encode(_Done()), memory)
        return report
    finally:
        workers.disconnect()


def report_of_first(placement: LocalPlacement) -> Report:
    """Run as one of the others: the report of the first. Raise UserError if it did; NotFitError if no report comes."""
    first = leader_of(placement, PURPOSE)
    if first is None:
        raise NotFitError(
            f"no verdict on this node: {placement.engine} started this process as number {placement.rank} of "
            f"{placement.ranks} here, and number 0 did not call preflight in time; call it in all of them"
        )
    with first:
        try:
            hello = WorkerHello(placement.rank, os.environ.get("CUDA_VISIBLE_DEVICES"), openable_gpus())
            first.send(msgspec.json.encode(hello))
            message, memory = _received(first, LONGEST_RENDEZVOUS_S + _SLACK_S)
            if isinstance(message, _Wait):
                message, memory = _received(first, message.limit_s)
        except TimeoutError:
            raise NotFitError("no verdict on this node: its first process fell silent while it checked") from None
        except OSError:
            message, memory = None, []
    if isinstance(message, _Done) and message.error is not None:
        raise UserError(message.error)
    if not memory:
        raise NotFitError("no verdict on this node: its first process ended before it had one")
    with os.fdopen(memory[0], "rb") as file:
        size = os.fstat(memory[0]).st_size
        return msgspec.json.decode(os.pread(file.fileno(), size, 0), type=Report)


def _encoded(report: Report) -> bytes:
    try:
        return msgspec.json.encode(report)
    except UnicodeEncodeError:  # a name that is not UTF-8
        return json.dumps(msgspec.to_builtins(report), ensure_ascii=False).encode("utf-8", "replace")


def _received(first: socket.socket, limit_s: float) -> tuple[_Wait | _Done | None, list[int]]:
    """The next message and its descriptors; None if the first process has ended. Raise TimeoutError."""
    first.settimeout(limit_s)
    packet, descriptors, _, _ = socket.recv_fds(first, _PACKET_BYTES, 1)
    return (msgspec.json.decode(packet, type=_Wait | _Done) if packet else None), descriptors


def _limit_s(prep: Prepared) -> float:
    """Time limit once all processes have connected; twice that of the ranks, since frameworks run after them."""
    return prep.deadline_s + 2 * run_limit_s(prep.level) + (prep.burn_s or 0.0) + _SLACK_S


def _refuse_confined(placement: LocalPlacement, prep: Prepared, workers: LocalWorkers) -> None:
    """Raise UserError if the first process cannot open the GPUs of the others: its pass would not cover them."""
    if prep.request.node is None and any(other != openable_gpus() for other in workers.openable):
        raise UserError(
            f"{placement.engine} confined each process of this node to GPUs of its own, which the first one cannot "
            "check for all; srun --gpu-bind=none opens them, or check the node in the prolog: "
            "gpudoctor check --level quick"
        )
