"""The hub: sends orders to the members on all nodes, collects their answers, and detects lost nodes."""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from gpudoctor.cluster.check import messages
from gpudoctor.errors import UserError
from gpudoctor.text.hostlist import natural
from gpudoctor.text.output import printable

_UNPROVED_MAX = 1024  # unauthenticated connections: more than a large job opens at once
_PROOF_S = 5.0  # a member answers at once; a late one connects again
_TICK_S = 0.2
# shortages of the system, not errors of one connection: accept is tried again
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HubMember(msgspec.Struct):
    """A node that has joined. `address` is where the others reach it; `lost` is why it is no longer there.

    `reached` is the hub's own address that it connected to.
    """

    name: str
    hostname: str
    index: int | None
    address: str
    channel: messages.Line
    reached: str = ""
    lost: str | None = None


class Unproved(msgspec.Struct, frozen=True):
    """An unauthenticated connection: it must prove that it knows the token, over this nonce and before `until_s`."""

    nonce: str
    until_s: float


class Hub:
    """Listens on the first free one of the ports (0: any). Raise UserError if none is free.

    Every call has a time limit. A node that does not answer within it, or whose connection ends, is lost: its
    connection is closed, on which it ends by itself, and it gets no further orders.
    `loopback_only`: only processes of this machine can connect. `proof_s`: the time a connection has for its proof.
    """

    def __init__(
        self,
        token: str,
        ports: Sequence[int] = (0,),
        silence_s: float = 15.0,
        *,
        loopback_only: bool = False,
        proof_s: float = _PROOF_S,
    ) -> None:
        self.members: list[HubMember] = []
        self._token = token
        self._silence_s = silence_s
        self._proof_s = proof_s
        self._listener = _listening(ports, loopback_only)
        self.port = int(self._listener.getsockname()[1])
        # its data: while members gather, None or the channel of a connection; from `_begin_orders` on, a member's index
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._unproved: dict[messages.Line, Unproved] = {}  # oldest first
        self._asked = 0

    def gather(self, count: int | None, limit_s: float, given_up: Callable[[], bool]) -> None:
        """Accept members until there are `count`, the limit is over, or `given_up` returns True."""
        # the soft limit is 1024 on most systems, for programs that use select(). It is not raised before: processes
        # started earlier must inherit the original one
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        deadline = time.monotonic() + limit_s
        while (count is None or len(self.members) < count) and time.monotonic() < deadline and not given_up():
            for key, _ in self._selector.select(min(_TICK_S, max(0.0, deadline - time.monotonic()))):
                if key.data is None:
                    self._accept()
                elif key.data in self._unproved:  # unless it was closed meanwhile
                    self._hear_unproved(key.data)
            now_s = time.monotonic()
            for channel in [channel for channel, unproved in self._unproved.items() if unproved.until_s < now_s]:
                self._hang_up_on(channel)
        numbered = all(member.index is not None for member in self.members)
        self.members.sort(key=lambda m: (m.index, m.hostname) if numbered else natural(m.hostname))
        seen: Counter[str] = Counter()
        for member in self.members:
            seen[member.hostname] += 1
            if seen[member.hostname] > 1:
                member.name = f"{member.hostname}#{seen[member.hostname]}"
        self._stop_listening()
        self._begin_orders()

    def ask(self, orders: Mapping[int, messages.Order], limit_s: float) -> dict[int, messages.Answer]:
        """Send orders to members (by index in `members`) and wait for all their answers.

        No answer is a failure too; its text is the reason, such as a timeout or how the connection ended.
        """
        numbers: dict[int, int] = {}
        for index, order in orders.items():
            self._asked += 1
            numbers[index] = self._asked
            self._send(self.members[index], messages.Asked(self._asked, order))
        answers: dict[int, messages.Answer] = {}
        deadline = time.monotonic() + limit_s
        while waiting := [index for index in self.present() if index in numbers and index not in answers]:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            for index, answered in self._heard(left_s):
                if numbers.get(index) == answered.number:
                    answers[index] = answered.answer
        for index in waiting:
            self._lose(self.members[index], f"did not answer within {limit_s:.0f} s")
        return {index: answers.get(index, messages.MemberFailure(self.members[index].lost or "")) for index in orders}

    def present(self) -> list[int]:
        """The indexes of the members that are not lost."""
        return [index for index, member in enumerate(self.members) if member.lost is None]

    def close(self) -> None:
        """End all members."""
        self._stop_listening()
        for member in self.members:
            if member.lost is None:
                self._send(member, messages.Asked(0, messages.End()))
                self._lose(member, "all was done")
        self._selector.close()

    def _heard(self, wait_s: float) -> Iterator[tuple[int, messages.Answered]]:
        for key, _ in self._selector.select(wait_s):
            index = int(key.data)
            member = self.members[index]
            try:
                lines = member.channel.take()
                if lines is None:
                    self._lose(member, "ended before it was asked to")
                for line in lines or ():
                    answered = messages.decoded(line, messages.Answered)
                    if isinstance(answered.answer, messages.Tampered):
                        raise messages.TamperedError
                    yield index, answered
            except OSError as error:
                self._lose(member, f"the connection to it broke ({error.strerror or error})")
            except messages.TamperedError as error:
                self._lose(member, str(error))
            except messages.LineError as error:
                self._lose(member, f"sent what is no answer ({error})")

    def _send(self, member: HubMember, message: messages.Asked) -> None:
        if member.lost is not None:
            return
        try:
            member.channel.send(message)
        except OSError as error:
            self._lose(member, f"the connection to it broke ({error.strerror or error})")

    def _lose(self, member: HubMember, why: str) -> None:
        if member.lost is None:
            member.lost = why
            with contextlib.suppress(KeyError):
                self._selector.unregister(member.channel.socket)
            member.channel.socket.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in _OUT_OF:
                return  # the client closed the connection before it was accepted
            if self._unproved:
                self._hang_up_on(next(iter(self._unproved)))  # strangers' connections use up all file descriptors
            else:
                time.sleep(_TICK_S)  # the connection still waits: select would return at once, again and again
            return
        if len(self._unproved) >= _UNPROVED_MAX:
            self._hang_up_on(next(iter(self._unproved)))  # if it was a member, it connects again and proves itself
        connection.settimeout(self._silence_s)
        channel, nonce = messages.Line(connection, messages.UNPROVED_LINE_BYTES), messages.new_secret()
        try:
            messages.notice_silence(connection, self._silence_s)
            channel.send(messages.Challenge(nonce))
        except OSError:
            connection.close()
            return
        self._unproved[channel] = Unproved(nonce, time.monotonic() + self._proof_s)
        self._selector.register(connection, selectors.EVENT_READ, channel)

    def _hear_unproved(self, channel: messages.Line) -> None:
        """Accept the connection as a member if its proof is right; close it if not."""
        try:
            lines = channel.take()
            if lines == []:
                return
            hello = messages.decoded((lines or [b""])[0], messages.Hello)
            nonce = self._unproved[channel].nonce
            taken = {member.index for member in self.members}
            if not messages.is_proved(self._token, nonce, hello) or (hello.index is not None and hello.index in taken):
                raise messages.LineError("not one of ours")
            # read now: the addresses of a closed connection are not known any more
            address, reached = _host(channel.socket.getpeername()), _host(channel.socket.getsockname())
            channel.sign("hub", self._token, nonce, hello.nonce)
            channel.send(messages.Welcome(self._silence_s))
        except (OSError, messages.LineError):
            self._hang_up_on(channel)
            return
        del self._unproved[channel]
        self._selector.unregister(channel.socket)
        name = printable(hello.hostname)[:255] or "no name"
        channel.most_bytes = messages.MAX_LINE_BYTES
        self.members.append(HubMember(name, name, hello.index, address, channel, reached))

    def _hang_up_on(self, channel: messages.Line) -> None:
        del self._unproved[channel]
        self._selector.unregister(channel.socket)
        channel.socket.close()

    def _stop_listening(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._selector.unregister(self._listener)
        self._listener.close()
        for channel in list(self._unproved):
            self._hang_up_on(channel)

    def _begin_orders(self) -> None:
        """Listen to the members by their indexes, and give each the address at which the others reach it."""
        reached = [member.reached for member in self.members if member.address != member.reached]
        for index, member in enumerate(self.members):
            self._selector.register(member.channel.socket, selectors.EVENT_READ, index)
            if member.address == member.reached and reached:
                # it connected by loopback or a container bridge; the others reach it at the hub's address
                member.address = reached[0]


def names_of_missing(members: Sequence[HubMember], count: int | None, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the nodes that did not come, or their numbers if no names are known."""
    if (fewer := (count or 0) - len(members)) <= 0:
        return ()
    here = {member.hostname.partition(".")[0] for member in members}
    by_name = tuple(name for name in names if name.partition(".")[0] not in here)
    if len(by_name) == fewer:
        return by_name
    numbers = {member.index for member in members}
    if None in numbers:
        return tuple(f"a node without a name ({n} of {fewer})" for n in range(1, fewer + 1))
    called = names if len(names) == count else [f"node number {n}" for n in range(count or 0)]
    return tuple(name for n, name in enumerate(called) if n not in numbers)


def _listening(ports: Sequence[int], loopback_only: bool) -> socket.socket:
    error: OSError | None = None
    host, both = "127.0.0.1" if loopback_only else "", socket.has_dualstack_ipv6() and not loopback_only
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server((host, port), family=family, dualstack_ipv6=both, backlog=1024)
        except OSError as failure:
            error = failure
    raise UserError(f"no port to meet the nodes on ({error}); tried {', '.join(map(str, ports))}")


def _host(address: tuple[object, ...]) -> str:
    return str(address[0]).removeprefix("::ffff:")
