"""One process that has imported torch, from which the rank starters of many runs are forked.

A starter that is a new interpreter imports torch for one to two seconds, which is most of a short run. What happens
after the import is the same, but for less work (`_LESS_WORK`). Tests of how a starter begins, of what it imports, or of
whole trainings start new interpreters.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from typing import IO, Any

import msgspec
import psutil

from gpudoctor.probes.runner import rank_starter, rank_starter_client
from gpudoctor.probes.runner.messages import RankJob
from gpudoctor.probes.runner.rank_starter_client import _environment
from gpudoctor.process.die_with_parent import _prctl, dependent_python
from gpudoctor.process.ending import RunningProcess, leave
from gpudoctor.process.forked import ForkedProcess

_PR_SET_CHILD_SUBREAPER = 36
_MOST_DESCRIPTORS = 32
_LONGEST_ORDER = 1 << 20
_LESS_WORK = (
    # no test judges whether CPU ranks are equally fast; on a busy machine the comparison would take three rounds
    ("gpudoctor.probes.train.probe", "_ROUNDS_MAX", 1),
    # one more than the step in which faults are injected
    ("gpudoctor.probes.strategies.model", "STEPS", 6),
)


_pids: set[int] = set()


def own_children(*, recursive: bool = False) -> list[psutil.Process]:
    """The children of this process without the one that has imported torch, and without those of others."""
    return [child for child in psutil.Process().children(recursive=recursive) if child.pid not in _pids]


class ForkedStarter(ForkedProcess):
    """A rank starter that another process has forked and left to this one."""

    def __init__(self, pid: int) -> None:
        self._returncode: int | None = None
        self.pid = pid


class ImportedTorch:
    """The process that has imported torch; it ends when it is closed, or with this process."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = dependent_python(__name__, "serve", str(theirs.fileno()))
        # torch reads some of these variables when it is imported
        environment = _environment(RankJob("gloo", 1, folder=tempfile.gettempdir(), group_timeout_s=10.0))
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        _pids.add(self._process.pid)

    def close(self) -> None:
        self._orders.close()
        self._process.wait()

    def start(
        self,
        order: Mapping[str, Any],
        life: int,
        control: int,
        rank_fds: list[int],
        output: IO[bytes],
        python: str | None = None,
    ) -> RunningProcess:
        """Stands in for rank_starter_client.start; runs on GPUs, or in another Python, begin as they always do."""
        if python is not None or order["method"] != "fork-server":
            return rank_starter_client.start(dict(order), life, control, rank_fds, output, python)
        environment = _environment(msgspec.convert(order["job"], RankJob))
        whole = {"parent": os.getpid(), "folder": os.getcwd(), "environment": environment, **order}  # noqa: PTH109
        with self._one_at_a_time:
            before = {child.pid for child in psutil.Process().children()}
            pid = None
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the starter becomes a child of this process, as every other one
            try:
                socket.send_fds(self._orders, [json.dumps(whole).encode()], [output.fileno(), life, control, *rank_fds])
                pid = int(self._orders.recv(32))
                return ForkedStarter(pid)
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)
                # so does any other process whose parent ends just now; nobody here waits for those
                _pids.update(child.pid for child in psutil.Process().children() if child.pid not in {*before, pid})


def serve(descriptor: str) -> None:
    """In the process with torch: fork a starter for each order that arrives, until the other end is closed."""
    orders = socket.socket(fileno=int(descriptor))
    gc.disable()  # as in _import_torch
    for module, name, less in _LESS_WORK:
        vars(importlib.import_module(module))[name] = less
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, _LONGEST_ORDER, _MOST_DESCRIPTORS)
        if not message:
            return
        order = json.loads(message)
        rank_starter._import_torch(order["job"])
        assert len(os.listdir("/proc/self/task")) == 1, "with a second thread fork is not safe"  # noqa: PTH208
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                _be_starter(order, descriptors, orders)
            leave()
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _be_starter(order: dict[str, Any], descriptors: list[int], orders: socket.socket) -> None:
    while os.getppid() != order["parent"]:  # as soon as the process between has been reaped
        os.sched_yield()
    os.setsid()
    orders.send(str(os.getpid()).encode())
    orders.close()
    output, order["life_fd"], order["control_fd"], *order["rank_fds"] = descriptors
    nothing = os.open(os.devnull, os.O_RDONLY)
    for standard, source in enumerate((nothing, output, output)):
        os.dup2(source, standard)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    tempfile.tempdir = None
    try:
        rank_starter.main(json.dumps(order))
    finally:
        leave(1)
