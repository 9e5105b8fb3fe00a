"""Which interface gloo would use on a node, and which of a node's settings lead it nowhere."""

from __future__ import annotations

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.network_reach import Reach


def loopback(address: str) -> bool:
    """127.0.0.0/8 and ::1: what a node calls itself, and nobody else can reach."""
    return address.startswith("127.") or address in ("::1", "0:0:0:0:0:0:0:1")


def interface_for_gloo(reach: Reach, address: str) -> str | None:
    """What to set GLOO_SOCKET_IFNAME to for a measurement; None where gloo's own choice works.

    gloo takes the interface that GLOO_SOCKET_IFNAME names, else the one with the address that the
    hostname resolves to, which on Debian is 127.0.1.1 unless somebody changed /etc/hosts. Where either leads
    nowhere, and a finding says so, the interface with `address`, by which the node was reached, does.
    """
    if gloo_trouble(reach) is None:
        return None
    interface = reach.interface_of(address)
    return interface.name if interface is not None else None


def gloo_trouble(reach: Reach) -> str | None:
    """Why gloo on this node would not reach, or be reached by, other nodes, in words; None where it would."""
    named = reach.settings.get("GLOO_SOCKET_IFNAME", "").strip()
    if named:
        if isinstance(reach.interfaces, Missing):
            return None
        names = {interface.name for interface in reach.interfaces}
        absent = [name for name in named.split(",") if name not in names]
        if absent:
            return f"GLOO_SOCKET_IFNAME={named}, and there is no interface {absent[0]}"
        return f"GLOO_SOCKET_IFNAME={named} is the loopback interface" if "lo" in named.split(",") else None
    if isinstance(reach.resolved, Missing):
        return f"its hostname {reach.hostname} does not resolve"
    if reach.resolved and all(map(loopback, reach.resolved)):
        return f"its hostname {reach.hostname} resolves to {reach.resolved[0]}, which no other node can reach"
    return None
