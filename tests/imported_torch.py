"""One process that has imported torch, from which the rank starters of many runs are forked, and whole programs.

A starter that is a new interpreter imports torch for one to two seconds, which is most of a short run. What happens
after the import is the same, but for less work (`_LESS_WORK`). Tests of how a starter begins, of what it imports, or of
whole trainings start new interpreters.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import msgspec
import psutil

from gpudoctor.probes.runner import launch, rank_starter, rank_starter_client
from gpudoctor.probes.runner.messages import RankJob
from gpudoctor.probes.runner.rank_starter_client import _environment
from gpudoctor.process.die_with_parent import _prctl, dependent_python
from gpudoctor.process.ending import RunningProcess, leave
from gpudoctor.process.forked import ForkedProcess

_PR_SET_CHILD_SUBREAPER = 36
_MOST_DESCRIPTORS = 32
_LONGEST_ORDER = 1 << 20
_LESS_WORK = (
    # no test judges whether CPU ranks are equally fast, which takes most of a train
    ("gpudoctor.probes.train.probe", "_BUDGET_S", 1.0),
    ("gpudoctor.probes.train.probe", "_STEPS", 4),
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

    def __init__(self, orders: socket.socket | None = None) -> None:
        self._one_at_a_time = threading.Lock()
        if orders is not None:
            self._orders = orders
            return
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
        self, order: Mapping[str, Any], life: int, control: int, rank_fds: list[int], output: IO[bytes]
    ) -> RunningProcess:
        """Stands in for rank_starter_client.start; runs on GPUs begin as they always do."""
        if order["method"] != "fork-server":
            return rank_starter_client.start(dict(order), life, control, rank_fds, output)
        environment = _environment(msgspec.convert(order["job"], RankJob))
        whole = {"parent": os.getpid(), "folder": os.getcwd(), "environment": environment, **order}  # noqa: PTH109
        return ForkedStarter(self.forked(whole, [output.fileno(), life, control, *rank_fds]))

    def forked(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The pid of a new child of this process, which that process has forked for this order."""
        with self._one_at_a_time:
            before = {child.pid for child in psutil.Process().children()}
            pid = None
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # it becomes a child of this process, as every other one
            try:
                socket.send_fds(self._orders, [json.dumps(order).encode()], descriptors)
                pid = int(self._orders.recv(32))
                return pid
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)
                # so does any other process whose parent ends just now; nobody here waits for those
                _pids.update(child.pid for child in psutil.Process().children() if child.pid not in {*before, pid})


class ForkedPython(subprocess.Popen[str]):
    """`[python, "-m" or "-c", ...]` in a fork of the process that has imported torch; the rest is as of any Popen.

    `probes`: those for which the ranks that it starts, if any, need more than torch itself.
    """

    def __init__(self, torch: ImportedTorch, command: list[str], *, probes: Sequence[str] = (), **more: Any) -> None:
        self._torch, self._probes = torch, probes
        super().__init__(command, text=True, **more)

    def _execute_child(self, args: list[str], *more: Any) -> None:
        cwd, env, pipes = more[4], more[5], more[9:15]
        order = {
            "program": args[1:],
            "parent": os.getpid(),
            "folder": str(cwd or os.getcwd()),  # noqa: PTH109
            "environment": dict(os.environ if env is None else env),
            "job": {"probes": self._probes, "verification": None},
        }
        standard = (pipes[0], pipes[3], pipes[5])
        self.pid = self._torch.forked(order, [number if fd == -1 else fd for number, fd in enumerate(standard)])
        self._child_created = True
        for theirs, ours in (pipes[:2], pipes[3:1:-1], pipes[5:3:-1]):
            if ours != -1:
                os.close(theirs)


def serve(descriptor: str) -> None:
    """In the process with torch: fork a starter for each order that arrives, until the other end is closed."""
    gc.disable()  # as in _import_torch
    set_less_work(_LESS_WORK)
    _serve(socket.socket(fileno=int(descriptor)))


def set_less_work(settings: Iterable[tuple[str, str, float]]) -> None:
    """Set each setting (module, name, value) in this process; a name that the module does not have is an error."""
    for module, name, less in settings:
        names = vars(importlib.import_module(module))
        assert name in names, f"{module} has no {name}"
        names[name] = less


def _serve(orders: socket.socket) -> None:
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
                _be_child(order, orders)
                be = _be_program if "program" in order else _be_starter
                be(order, descriptors)
            leave()
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _be_child(order: dict[str, Any], orders: socket.socket) -> None:
    while os.getppid() != order["parent"]:  # as soon as the process between has been reaped
        os.sched_yield()
    orders.send(str(os.getpid()).encode())
    orders.close()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    tempfile.tempdir = None


def _be_starter(order: dict[str, Any], descriptors: list[int]) -> None:
    os.setsid()
    output, order["life_fd"], order["control_fd"], *order["rank_fds"] = descriptors
    nothing = os.open(os.devnull, os.O_RDONLY)
    for standard, source in enumerate((nothing, output, output)):
        os.dup2(source, standard)
    os.close(nothing)
    os.close(output)
    try:
        rank_starter.main(json.dumps(order))
    finally:
        leave(1)


def _be_program(order: dict[str, Any], descriptors: list[int]) -> None:
    """Run it as the interpreter would; the starters that it starts are forked from a child that it has for that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        for each in descriptors:
            os.close(each)
        os.setsid()  # Ctrl-C is not for it
        _serve(theirs)
        leave()
    theirs.close()
    vars(launch)["start"] = ImportedTorch(ours).start
    for standard, source in enumerate(descriptors):
        os.dup2(source, standard)
        os.close(source)
    gc.enable()
    option, what, *arguments = order["program"]
    status: object = 1
    try:
        if option == "-c":
            sys.argv = ["-c", *arguments]
            exec(what, {"__name__": "__main__"})
        else:
            sys.argv = [what, *arguments]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        leave(status if isinstance(status, int) else int(status is not None))
