"""Judges whether the nodes can reach each other: compares names, interfaces, MTU, RDMA rates and clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpudoctor.api.load.request import Backend
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.cluster.check.cluster_run import NodeProgress
from gpudoctor.cluster.check.model import node_subject
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.system.network import Reach
from gpudoctor.http.address import is_loopback
from gpudoctor.profiles.profile import majority

# gpudoctor's own choice: with a larger difference, logs and traces of several nodes cannot be put in order, and what
# expires by time (tickets, tokens, file caches) begins to fail; munge and Kerberos credentials fail at 300 s
CLOCK_WARN_S = 1.0
_CLOCKS = Expected(f"within {CLOCK_WARN_S:g} s", "<=", CLOCK_WARN_S, "s", "gpudoctor's own choice")
_CLOCK_LIKELY = "a clock that is not kept by NTP or PTP"
_CLOCK_STEPS = (Advice("See whether it is kept.", "timedatectl status; chronyc tracking"),)


def interface_for_gloo(reach: Reach, address: str) -> str | None:
    """The GLOO_SOCKET_IFNAME to set for the measurement; None if gloo's own choice works.

    gloo uses the interface in GLOO_SOCKET_IFNAME, else the one with the address that the host name resolves to, which
    on Debian is 127.0.1.1 unless /etc/hosts was changed. If that does not work, or is not known to, use the interface
    with `address`, at which the hub reached the node.
    """
    if gloo_trouble(reach) is None:
        return None
    interface = reach.interface_of(address)
    return interface.name if interface is not None else None


def gloo_trouble(reach: Reach) -> str | Missing | None:
    """Why gloo on this node would not reach other nodes or be reached by them; None if nothing is known against it.

    Missing if it is not known what gloo would resolve the hostname to.
    """
    named, resolved = reach.settings.get("GLOO_SOCKET_IFNAME", "").strip(), reach.resolved
    if named:
        if isinstance(reach.interfaces, Missing):
            return None
        names = {interface.name for interface in reach.interfaces}
        absent = [name for name in named.split(",") if name not in names]
        if absent:
            return f"GLOO_SOCKET_IFNAME={named}, and there is no interface {absent[0]}"
        return f"GLOO_SOCKET_IFNAME={named} is the loopback interface" if "lo" in named.split(",") else None
    if isinstance(resolved, Missing):
        return resolved if resolved.kind == "failed" else f"its hostname {reach.hostname} does not resolve"
    if resolved and all(map(is_loopback, resolved)):
        return f"its hostname {reach.hostname} resolves to {resolved[0]}, which no other node can reach"
    return None


def network_findings(nodes: Sequence[NodeProgress], backend: Backend | None) -> Iterator[Finding]:
    """Judge the nodes that sent their network facts. Problems of gloo fail for CPU ranks; for GPUs they warn."""
    seen = [(node, node.reach) for node in nodes if node.reach is not None]
    if len(seen) < 2:
        yield skip(NODE, "fewer than two nodes to compare")
        return
    outliers = [
        *_unread(seen),
        *_gloo(seen, backend),
        *_nccl_interfaces(seen),
        *_unlike(seen, "MTU", _mtu, "large packets are lost on the way, or split", "ip link set dev eth0 mtu 9000"),
        *_unlike(seen, "RDMA", _rdma, "a port is down, or came up slower", "ibstatus"),
        *_clocks([node for node, _ in seen]),
    ]
    yield from outliers
    if all(finding.status.value == "skip" for finding in outliers):
        apart = [abs(node.offset_s) for node, _ in seen if node.offset_s is not None]
        clocks = f"; clocks within {max(apart) * 1000:.0f} ms of the hub's" if apart else ""
        yield ok(NODE, f"hostnames, interfaces, MTU and rates of {len(seen)} nodes agree{clocks}")


def _unread(seen: Sequence[tuple[NodeProgress, Reach]]) -> Iterator[Finding]:
    for node, reach in seen:
        for what, facts in (("network interfaces", reach.interfaces), ("RDMA ports", _rdma_rates(reach))):
            if isinstance(facts, Missing):
                yield unread(node_subject(node.name), what, facts)
        if not isinstance(reach.interfaces, Missing) and reach.interface_of(node.address) is None:
            reason = f"MTU: no interface has the address {node.address} (address translation?)"
            yield skip(node_subject(node.name), reason)


def _gloo(seen: Sequence[tuple[NodeProgress, Reach]], backend: Backend | None) -> Iterator[Finding]:
    machines = {(known(reach.boot_id), reach.hostname) for _, reach in seen}
    if len(machines) == 1 and known(seen[0][1].boot_id) is not None:
        return  # on one machine loopback works for all of them
    for node, reach in seen:
        text = gloo_trouble(reach)
        if isinstance(text, Missing):
            yield unread(node_subject(node.name), "what its hostname resolves to", text)
        if text is None or isinstance(text, Missing):
            continue
        named = "GLOO_SOCKET_IFNAME" in reach.settings
        steps = [Advice("Name the interface that the nodes share.", f"export GLOO_SOCKET_IFNAME={_usable(node)}")]
        must = f"one of {_names(reach)}"
        if not named:
            must = "a hostname that resolves to the node's own address"
            steps.append(Advice(f"Or have {reach.hostname} resolve to {node.address} in /etc/hosts and DNS."))
        judge = fail if backend == "gloo" or named else warn
        yield judge(
            node_subject(node.name),
            Found(text),
            f"an interface that the other nodes can reach: {must}",
            *_resolution(reach),
            likely="gloo uses this interface; between nodes one rank is refused, and the others wait without end",
            advice=tuple(steps),
        )


def _nccl_interfaces(seen: Sequence[tuple[NodeProgress, Reach]]) -> Iterator[Finding]:
    for node, reach in seen:
        value = reach.settings.get("NCCL_SOCKET_IFNAME", "").strip()
        if not value or isinstance(reach.interfaces, Missing):
            continue
        names = [interface.name for interface in reach.interfaces]
        if not nccl_keeps(value, names):
            yield fail(
                node_subject(node.name),
                Found(f"NCCL_SOCKET_IFNAME={value}, which fits no interface there"),
                f"one of {_names(reach)}: a name that fits on every node",
                Evidence("environment", f"NCCL_SOCKET_IFNAME={value}"),
                likely="the name is that of other nodes; init_process_group fails or hangs with it",
                advice=(
                    Advice("Name an interface that every node has.", f"export NCCL_SOCKET_IFNAME={_usable(node)}"),
                ),
            )


def nccl_keeps(value: str, names: Sequence[str]) -> list[str]:
    """The interfaces that NCCL_SOCKET_IFNAME keeps: prefixes, `=` for whole names, `^` for all but these.

    Source: NCCL user guide, NCCL_SOCKET_IFNAME.

    >>> nccl_keeps("eth,ib", ["eth0", "ib0", "lo"]), nccl_keeps("^=lo", ["eth0", "lo"])
    (['eth0', 'ib0'], ['eth0'])
    """
    exclude = value.startswith("^")
    text = value.removeprefix("^")
    whole = text.startswith("=")
    items = [item.strip() for item in text.removeprefix("=").split(",") if item.strip()]
    hit = [name for name in names if any(name == item if whole else name.startswith(item) for item in items)]
    return [name for name in names if name not in hit] if exclude else hit


def _unlike(
    seen: Sequence[tuple[NodeProgress, Reach]],
    what: str,
    of: Callable[[NodeProgress, Reach], str | None],
    likely: str,
    command: str,
) -> Iterator[Finding]:
    """A warning for each node that differs from the majority; without a majority, one for all values."""
    read = [(node, text) for node, reach in seen if (text := of(node, reach)) is not None]
    values = [text for _, text in read]
    if len(set(values)) < 2:
        return
    usual = majority(values)
    if usual is None:
        groups = [f"{text} on {', '.join(n.name for n, t in read if t == text)}" for text in dict.fromkeys(values)]
        yield warn(NODE, f"{what} differs: {'; '.join(groups)}", f"the same on all {len(read)} nodes", likely=likely)
        return
    for node, text in read:
        if text != usual:
            yield warn(
                node_subject(node.name),
                Found(f"{what}: {text}"),
                Expected(f"{usual}, as on {values.count(usual)} of {len(read)} nodes", source="peers"),
                likely=likely,
                advice=(Advice("Look at it on that node and on another one.", command.replace("eth0", _usable(node))),),
            )


def _mtu(node: NodeProgress, reach: Reach) -> str | None:
    interface = reach.interface_of(node.address)
    return f"{interface.mtu} bytes" if interface is not None else None


def _rdma_rates(reach: Reach) -> list[float] | Missing:
    """The rates of the active ports in Gbit/s (0 if a port has none); Missing if a read failed."""
    if isinstance(reach.rdma_ports, Missing):
        return reach.rdma_ports
    rates: list[float] = []
    for port in reach.rdma_ports:
        active = "ACTIVE" in (known(port.state) or "").upper()
        fact = port.rate_gbit_s if active else port.state
        if isinstance(fact, Missing) and fact.kind == "failed":
            return Missing(f"{port.device} port {port.port}: {fact.reason}", "failed")
        if active:
            rates.append(known(port.rate_gbit_s) or 0.0)
    return rates


def _rdma(_: NodeProgress, reach: Reach) -> str | None:
    rates = _rdma_rates(reach)
    if isinstance(rates, Missing):
        return None
    counts = [f"{rates.count(rate)} active ports at {rate:g} Gbit/s" for rate in sorted(set(rates), reverse=True)]
    return " and ".join(counts) or "no active port"


def _clocks(nodes: Sequence[NodeProgress]) -> Iterator[Finding]:
    """Each node's clock compared with the median, since the hub's own clock may be the wrong one."""
    for node in nodes:
        if node.offset_s is None and node.lost is None:
            yield unknown(node_subject(node.name), "its clock was not read")
    offsets = sorted(node.offset_s for node in nodes if node.offset_s is not None)
    if len(offsets) < 2:
        return
    if len(offsets) == 2:
        apart_s = offsets[1] - offsets[0] - sum(node.error_s or 0.0 for node in nodes)
        if apart_s > CLOCK_WARN_S:
            of = "the two nodes" if len(nodes) == 2 else " and ".join(n.name for n in nodes if n.offset_s is not None)
            text = f"the clocks of {of} are {offsets[1] - offsets[0]:.1f} s apart"
            yield warn(NODE, Found(text, apart_s, "s"), _CLOCKS, likely=_CLOCK_LIKELY, advice=_CLOCK_STEPS)
        return
    middle = offsets[len(offsets) // 2]
    for node in nodes:
        if node.offset_s is None or node.error_s is None:
            continue
        apart_s = abs(node.offset_s - middle) - node.error_s
        if apart_s > CLOCK_WARN_S:
            ahead = "ahead of" if node.offset_s > middle else "behind"
            yield warn(
                node_subject(node.name),
                Found(f"its clock is {abs(node.offset_s - middle):.1f} s {ahead} the other nodes'", apart_s, "s"),
                _CLOCKS,
                Evidence("messages between hub and node", f"{node.offset_s:+.3f} s, right to {node.error_s:.3f} s"),
                likely=_CLOCK_LIKELY,
                advice=_CLOCK_STEPS,
            )


def _names(reach: Reach) -> str:
    interfaces = () if isinstance(reach.interfaces, Missing) else reach.interfaces
    return ", ".join(i.name for i in interfaces if i.name != "lo") or "none: the node shows no interface"


def _usable(node: NodeProgress) -> str:
    interface = node.reach.interface_of(node.address) if node.reach is not None else None
    return interface.name if interface is not None and interface.name != "lo" else "NAME"


def _resolution(reach: Reach) -> Iterator[Evidence]:
    if "GLOO_SOCKET_IFNAME" in reach.settings:
        yield Evidence("environment", f"GLOO_SOCKET_IFNAME={reach.settings['GLOO_SOCKET_IFNAME']}")
        yield Evidence("interfaces", _names(reach))
    elif isinstance(reach.resolved, Missing):
        yield Evidence("getaddrinfo", reach.resolved.reason)
    else:
        yield Evidence(f"getaddrinfo({reach.hostname})", ", ".join(reach.resolved))
