"""How other nodes reach this one: its name and addresses, and the interfaces set for NCCL and gloo."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing, MissingKind, known
from gpudoctor.facts.model.node import RdmaPort
from gpudoctor.facts.system.network import read_network
from gpudoctor.facts.system.sysfs import read_text
from gpudoctor.lazy_import import lazy_imports

with lazy_imports():
    import psutil

_RESOLVER_LIMIT_S = 5.0  # the resolver itself gives up on a dead name server only after half a minute or more
_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)  # every other error says nothing about the name
SETTINGS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE")


class LocalInterface(Fact, frozen=True):
    """A network interface of this process's network namespace, with its addresses (IPv4 and IPv6, without scope)."""

    name: str
    up: bool
    mtu: int
    addresses: tuple[str, ...] = ()


class Reach(Fact, frozen=True):
    """How this node is reached.

    `resolved`: the addresses that the node's resolver returns for its hostname; Missing as "absent" if there is no such
    name, as "failed" if the resolver gave no answer. `settings`: those of
    `SETTINGS` that are in the environment. `boot_id` is the kernel's: two processes with the same boot id
    and hostname are on one machine.
    """

    hostname: str
    resolved: tuple[str, ...] | Missing = NOT_READ
    interfaces: tuple[LocalInterface, ...] | Missing = NOT_READ
    rdma_ports: tuple[RdmaPort, ...] | Missing = NOT_READ
    settings: dict[str, str] = {}
    boot_id: str | Missing = NOT_READ

    def interface_of(self, address: str) -> LocalInterface | None:
        """The interface that has the address."""
        interfaces = known(self.interfaces) or ()
        return next((interface for interface in interfaces if address in interface.addresses), None)


def read_reach(root: Path, environment: Mapping[str, str]) -> Reach:
    """Query kernel and resolver; interfaces are not read from /sys, which may show another network namespace."""
    hostname = socket.gethostname()
    return Reach(
        hostname=hostname,
        resolved=_resolved(hostname),
        interfaces=_interfaces(),
        rdma_ports=read_network(root).rdma_ports,
        settings={name: environment[name] for name in SETTINGS if name in environment},
        boot_id=read_text(root / "proc/sys/kernel/random/boot_id"),
    )


def _resolved(hostname: str) -> tuple[str, ...] | Missing:
    answers: list[tuple[str, ...] | Missing] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
        except OSError as error:
            kind: MissingKind = "absent" if error.errno in _NO_SUCH_NAME else "failed"
            answers.append(Missing(f"{hostname} does not resolve: {error.strerror or error}", kind))
        else:
            answers.append(tuple(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)))

    # a resolver call cannot be interrupted, only abandoned
    asking = threading.Thread(target=ask, daemon=True)
    try:
        asking.start()
    except RuntimeError as error:  # a limit on processes
        return Missing(f"resolving {hostname}: {error}", "failed")
    asking.join(_RESOLVER_LIMIT_S)
    if answers:
        return answers[0]
    return Missing(f"resolving {hostname} took longer than {_RESOLVER_LIMIT_S:g} s", "failed")


def _interfaces() -> tuple[LocalInterface, ...] | Missing:
    try:
        addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    except OSError as error:
        return Missing(f"network interfaces: {error.strerror or error}", "failed")
    return tuple(
        LocalInterface(
            name=name,
            up=state.isup,
            mtu=state.mtu,
            addresses=tuple(
                entry.address.partition("%")[0]
                for entry in addresses.get(name, ())
                if entry.family in (socket.AF_INET, socket.AF_INET6)
            ),
        )
        for name, state in sorted(states.items())
    )


def own_addresses() -> list[str]:
    """IPv4 and global IPv6 addresses of this machine that others may reach, IPv4 first; no loopback addresses."""
    interfaces = _interfaces()
    if isinstance(interfaces, Missing):
        return []
    found = [address for interface in interfaces if interface.up for address in interface.addresses]
    usable = [a for a in found if not a.startswith(("127.", "fe80:")) and a != "::1"]
    return sorted(usable, key=lambda address: ":" in address)


def read_here() -> Reach:
    """How this machine is reached."""
    return read_reach(Path("/"), os.environ)
