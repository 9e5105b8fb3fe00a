"""The member: the process on each node that carries out the hub's orders and ends when the connection ends."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence

import msgspec

from gpudoctor.cluster.check import messages
from gpudoctor.cluster.check.local_ranks import LocalRanks
from gpudoctor.cluster.check.network_findings import interface_for_gloo
from gpudoctor.errors import UserError
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.network import Reach, read_reach
from gpudoctor.process.die_with_parent import dependent_gpudoctor
from gpudoctor.process.pipes import Bounded, DisturbedError, read_to_end
from gpudoctor.process.spawn import PIPE, Child
from gpudoctor.report.model import Report

_TRY_S = 3.0
_PAUSE_S = 0.1
_TERM_GRACE_S = 15.0  # a check ends its ranks first, and may have to wait for the driver
# set by engines in each of their processes: with these a check would wait for the other processes of its node
_ENGINE = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


class HubGoneError(Exception):
    """The connection to the hub ended."""


class Member:
    """Connects to the hub and carries out its orders until the end.

    `argv` are the arguments of the node's own `gpudoctor check`; `cpu_ranks` is the number of ranks on a node without
    GPUs.
    """

    def __init__(self, argv: Sequence[str], cpu_ranks: int = 1, hostname: str | None = None) -> None:
        self._argv = list(argv)
        self._cpu_ranks = cpu_ranks
        self._hostname = hostname or socket.gethostname()
        self._reach: Reach | None = None
        self._report: Report | None = None
        self._ranks: LocalRanks | None = None
        self._open_limit_s = 60.0

    def serve(self, addresses: Sequence[tuple[str, int]], token: str, index: int | None, limit_s: float) -> None:
        """Connect to the hub at one of these addresses and serve it until it ends the check.

        Raise UserError if no hub is found within the limit, HubGoneError if the connection ends early.
        """
        line = self._connect(addresses, token, index, limit_s)
        try:
            while self._serve_lines(line):
                pass
        except OSError as error:
            raise HubGoneError(error.strerror or str(error)) from None
        except messages.TamperedError as error:
            with contextlib.suppress(OSError):
                line.send(messages.Answered(0, messages.Tampered()))
            raise HubGoneError(str(error)) from None
        except messages.LineError as error:
            raise HubGoneError(f"it sent what is no order: {error}") from None
        finally:
            if self._ranks is not None:
                self._ranks.close()
            line.socket.close()

    def _serve_lines(self, line: messages.Line) -> bool:
        lines = line.take()
        if lines is None:
            raise HubGoneError("it ended")
        for text in lines:
            asked = messages.decoded(text, messages.Asked)
            if isinstance(asked.order, messages.End):
                return False
            try:
                answer = self._answer(asked, line.socket)
            except DisturbedError:
                if line.take() is None:
                    raise HubGoneError("it ended, or lost patience") from None
                return False  # the only message that the hub sends while this node is busy is End
            line.send(messages.Answered(asked.number, answer))
        return True

    def _answer(self, asked: messages.Asked, hub: socket.socket) -> messages.Answer:
        order = asked.order
        if isinstance(order, messages.CheckOrder):
            return self._check(order, hub)
        if isinstance(order, messages.Open):
            return self._open(order, hub)
        if isinstance(order, messages.JoinGroup):
            if self._ranks is None:
                return messages.MemberFailure("it was asked to measure before it was opened")
            return self._ranks.measure(order, self._open_limit_s)
        assert isinstance(order, messages.Ping)
        return messages.Pong(time.time())

    def _check(self, order: messages.CheckOrder, hub: socket.socket) -> messages.Checked:
        reach = msgspec.structs.replace(read_reach(), hostname=self._hostname)
        self._reach = reach
        environment = {name: value for name, value in os.environ.items() if name not in _ENGINE}
        command = dependent_gpudoctor(["check", *self._argv, "--format", "json", "--include-facts"])
        try:
            process = Child(command, stdout=PIPE, stderr=PIPE, env=environment)
        except OSError as error:
            return messages.Checked(
                reach, Missing(f"its check could not be started: {error.strerror or error}", "failed")
            )
        out, err = Bounded(messages.MAX_LINE_BYTES), Bounded(messages.MAX_LINE_BYTES)
        takers = {process.stdout: out.take, process.stderr: err.take}
        try:
            if not read_to_end(takers, time.monotonic() + order.limit_s, watched=hub.fileno()):
                return messages.Checked(reach, Missing(f"its check took longer than {order.limit_s:g} s", "failed"))
        finally:
            process.close()
            process.end(_TERM_GRACE_S, group=False)  # a check ends its ranks on SIGTERM
        try:
            self._report = msgspec.json.decode(out, type=Report)
        except (ValueError, RecursionError):  # msgspec raises UnicodeDecodeError too
            text = err.decode("utf-8", "replace").strip().splitlines() or [f"it ended with code {process.returncode}"]
            return messages.Checked(reach, Missing(f"its check gave no report: {text[-1][:300]}", "failed"))
        return messages.Checked(reach, out.decode("utf-8", "replace"))

    def _open(self, order: messages.Open, hub: socket.socket) -> messages.Ready | messages.MemberFailure:
        uuids = [""] * self._cpu_ranks
        if order.backend == "nccl":
            launch = self._report.measurements.launch if self._report is not None else None
            uuids = [rank.uuid for rank in launch.ranks if rank.uuid] if launch and launch.backend == "nccl" else []
            if not uuids:
                return messages.MemberFailure("its own check put no load on its GPUs", absent=True)
        interface = interface_for_gloo(self._reach, order.address) if self._reach and order.backend == "gloo" else None
        self._open_limit_s = order.limit_s
        self._ranks = LocalRanks(order.backend, uuids, order.address, interface, hub)
        opened = self._ranks.open(order.limit_s)
        return (
            opened if isinstance(opened, messages.MemberFailure) else messages.Ready(len(uuids), opened.port, interface)
        )

    def _connect(
        self, addresses: Sequence[tuple[str, int]], token: str, index: int | None, limit_s: float
    ) -> messages.Line:
        deadline = time.monotonic() + limit_s
        while True:
            for address in addresses:
                line = self._tried(address, token, index)
                if line is not None:
                    return line
            if time.monotonic() >= deadline:
                where = ", ".join(f"{host}:{port}" for host, port in addresses[:4])
                raise UserError(f"nobody to meet at {where} within {limit_s:g} s: is the process that leads there?")
            time.sleep(_PAUSE_S)

    def _tried(self, address: tuple[str, int], token: str, index: int | None) -> messages.Line | None:
        """The connection to this job's hub if it is at this address, else None."""
        connection = None
        try:
            connection = socket.create_connection(address, _TRY_S)
            line = messages.Line(connection, messages.UNPROVED_LINE_BYTES)
            challenge = messages.decoded(line.one(_TRY_S), messages.Challenge)
            hello = messages.hello_of(token, challenge, self._hostname, index)
            line.send(hello)
            line.sign("member", token, challenge.nonce, hello.nonce)
            welcome = messages.decoded(line.one(_TRY_S), messages.Welcome)
            line.most_bytes = messages.MAX_LINE_BYTES
            messages.notice_silence(connection, welcome.silence_s)
            connection.settimeout(None)
        except (OSError, messages.LineError, UnicodeError):  # UnicodeError: the host name is not valid in IDNA
            if connection is not None:
                connection.close()
            return None  # not there yet, another job's hub, or one without the token
        return line
