"""The ranks of one node for measurements between nodes: starts them, passes them orders, and always ends them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from gpudoctor.cluster.check.messages import JoinGroup, MemberFailure, Times
from gpudoctor.probes.inter_node.rank import AllReduceTimes, Answer, InterNodeFailure, Opened, RankGroup, Rendezvous
from gpudoctor.probes.runner.rank_starter_client import ONE_THREAD, hide_gpus
from gpudoctor.process.die_with_parent import dependent_python
from gpudoctor.process.ending import kill_all, signal_name
from gpudoctor.process.pipes import DisturbedError, LineReader, pipe_with_child, ready, write_all
from gpudoctor.process.spawn import DEVNULL, PIPE, Child

_END_LIMIT_S = 5.0  # after SIGKILL; a driver may take longer, which is not waited for


class LocalRanks:
    """One rank per entry of `uuids`, each on that GPU; for CPU ranks only the number of entries matters.

    If a rank does not answer in time, dies or fails, all ranks are ended and started again, since gloo and NCCL leave
    hanging threads behind. `watched` is the connection to the hub.
    """

    def __init__(
        self, backend: str, uuids: Sequence[str], address: str, interface: str | None, watched: socket.socket
    ) -> None:
        self._backend, self._uuids, self._address, self._interface = backend, tuple(uuids), address, interface
        self._watched = watched
        self._processes: list[Child] = []
        self._pipes: list[int] = []

    def open(self, limit_s: float) -> Opened | MemberFailure:
        """Start the ranks and wait until all have imported torch; return the first rank's answer."""
        self.close()
        try:
            for number, uuid in enumerate(self._uuids):
                self._start(number, uuid)
        except OSError as error:
            self.close()
            return MemberFailure(f"its ranks could not be started: {error.strerror or error}")
        answers = self._answers(limit_s, f"torch was not there within {limit_s:g} s")
        if isinstance(answers, MemberFailure):
            self.close()
            return answers
        return cast(Opened, answers[0])

    def measure(self, order: JoinGroup, open_limit_s: float) -> Times | MemberFailure:
        """Have all ranks measure in the group. If that fails they are started again; the answer has their new port."""
        group = {name: getattr(order, name) for name in RankGroup.__struct_fields__}
        try:
            for number, process in enumerate(self._processes):
                rendezvous = Rendezvous(rank=order.first_rank + number, **group)
                write_all(process.stdin, msgspec.json.encode(rendezvous) + b"\n")
        except OSError:
            pass  # the rank is dead: the end of its pipe is reported below
        answers = self._answers(order.limit_s, f"did not come back from all_reduce within {order.limit_s:g} s")
        if isinstance(answers, MemberFailure):
            opened = self.open(open_limit_s)
            return msgspec.structs.replace(answers, port=opened.port if isinstance(opened, Opened) else None)
        times = cast("list[AllReduceTimes]", answers)
        return Times(tuple(t.seconds for t in times), times[0].size_bytes, tuple(t.right for t in times))

    def close(self) -> None:
        """Kill all ranks."""
        kill_all(self._processes, _END_LIMIT_S, group=False)
        for process in self._processes:
            process.close()
        for pipe in self._pipes:
            os.close(pipe)
        self._processes, self._pipes = [], []

    def _start(self, number: int, uuid: str) -> None:
        with pipe_with_child("writes") as (reader, writer):
            process = Child(
                dependent_python("gpudoctor.probes.inter_node.rank", "run_inter_node_rank", str(writer)),
                stdin=PIPE,
                stderr=DEVNULL if not os.environ.get("GPUDOCTOR_TRACEBACK") else None,
                env=self._environment(number, uuid),
                pass_fds=[writer],
                new_session=False,
            )
        self._pipes.append(reader)
        self._processes.append(process)

    def _environment(self, number: int, uuid: str) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        environment |= ONE_THREAD
        environment |= {
            "GPUDOCTOR_INTER_NODE_BACKEND": self._backend,
            "GPUDOCTOR_INTER_NODE_ADDRESS": self._address,
            "LOCAL_RANK": str(number),
        }
        if self._backend == "nccl":
            environment["CUDA_VISIBLE_DEVICES"] = uuid  # by UUID: a torch ordinal is not an NVML index
        else:
            hide_gpus(environment)
            if self._interface is not None:
                environment["GLOO_SOCKET_IFNAME"] = self._interface
        return environment

    def _answers(self, limit_s: float, late: str) -> list[Answer] | MemberFailure:
        """One answer from each rank, or the first failure of any."""
        readers = {pipe: LineReader(pipe) for pipe in self._pipes}
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + limit_s
        while len(answers) < len(self._pipes):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return MemberFailure(late)
            for descriptor in ready([self._watched.fileno(), *self._pipes], left_s):
                if descriptor == self._watched.fileno():
                    raise DisturbedError
                lines = readers[descriptor].read()
                if lines is None:
                    return MemberFailure(self._death_of(self._pipes.index(descriptor)))
                if lines:
                    answer: Any = msgspec.json.decode(lines[0], type=Answer)
                    if isinstance(answer, InterNodeFailure):
                        return MemberFailure(answer.text, answer.absent)
                    answers[descriptor] = answer
        return [answers[pipe] for pipe in self._pipes]

    def _death_of(self, number: int) -> str:
        status = self._processes[number].ends_within(1.0)
        if status is None:
            return f"rank {number} of it closed its pipe"
        how = f"was ended by {signal_name(-status)}" if status < 0 else f"ended with code {status}"
        return f"rank {number} of it {how}"
