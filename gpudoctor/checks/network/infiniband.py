"""network.infiniband: are the RDMA ports up at full rate, and can GPUs reach them?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_nic
from gpudoctor.checks.core.unread import failed_readings, unread
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, RdmaPort
from gpudoctor.profiles.profile import majority
from gpudoctor.text.units import listed

_SIBLING_PORTS = Limit(
    3, "ports", "gpudoctor's own: where the maximum is not known, so many outvote one", name="sibling_ports"
)
_CLUSTER_GPUS = Limit(
    4, "GPUs", "gpudoctor's own: from so many on, a node is built to train with others", name="cluster_gpus"
)
_PORTS_PER_GPU = Limit(
    0.5, "ports a GPU", "HGX and DGX nodes have one adapter for one or two GPUs", name="ports_per_gpu"
)


@check(
    "network.infiniband",
    title="RDMA ports are up at full rate, and GPUs can reach them",
    needs_gpu=False,
    limits=(_SIBLING_PORTS, _CLUSTER_GPUS, _PORTS_PER_GPU),
)
def infiniband(case: Case) -> Iterator[Finding]:
    """Warn about ports that are down or slower while most of their siblings are not."""
    every = case.node.network.rdma_ports
    if isinstance(every, Missing):
        yield unread(NODE, "RDMA ports", every)
        return
    # a hypervisor's virtual functions wait for their virtual machines
    ports = tuple(
        p for p in every if p.is_active or isinstance(p.state, Missing) or known(p.virtual_function) is not True
    )
    active = [port for port in ports if port.is_active]
    unread_state = next((port.state for port in ports if isinstance(port.state, Missing)), None)
    if not every:
        yield skip(NODE, "no InfiniBand or RoCE adapter here")
    elif not ports:
        yield skip(NODE, "only virtual functions of adapters here, and none is in use")
    elif active:
        yield from _judged(case, ports, active)
        yield from _gpudirect(case)
    elif unread_state is not None:
        yield unread(NODE, "RDMA port state", unread_state)
    else:
        yield _none_active(case, ports)


def _judged(case: Case, ports: tuple[RdmaPort, ...], active: list[RdmaPort]) -> Iterator[Finding]:
    outliers = [*_down(ports), *_slow(active, case.limit(_SIBLING_PORTS))]
    if not outliers and _alone(case.node):
        outliers = [*_unused(ports)]
    silent = [*_not_read(ports)]
    yield from (*outliers, *silent)
    if not outliers and not silent:
        yield _all_in_use(ports, active)


def _all_in_use(ports: tuple[RdmaPort, ...], active: list[RdmaPort]) -> Finding:
    rates = sorted({known(p.rate_gbit_s) or 0 for p in active} - {0})
    speed = " at " + " and ".join(f"{rate:g} Gbit/s" for rate in rates) if rates else ""
    unused = len(ports) - len(active)
    kind = "EFA" if all(port.is_efa for port in active) else "RDMA"
    text = f"{len(active)} {kind} ports active{speed}" + (f", {unused} unused" if unused else "")
    return ok(NODE, Found(text, len(active), "ports"), None, *(_evidence(port) for port in active))


def _not_read(ports: tuple[RdmaPort, ...]) -> Iterator[Finding]:
    """Ports whose state, or whose rate if they are active, could not be read."""
    for port in ports:
        name, rate = f"port {port.port}", port.rate_gbit_s if port.is_active else None
        yield from failed_readings(of_nic(port.device), (f"{name}, state", port.state), (f"{name}, rate", rate))


def carries_training(node: Node) -> bool:
    """Whether the active ports show that jobs here use RDMA: InfiniBand or EFA, or as many as a cluster's node has.

    The Ethernet adapter of any server (mlx5, irdma, bnxt_re) is an active RDMA port too, used for that or not.
    """
    active = [port for port in known(node.network.rdma_ports) or () if port.is_active]
    ethernet = [port for port in active if known(port.link_layer) == "Ethernet"]
    gpus = len(node.gpus)
    many = gpus >= _CLUSTER_GPUS.value and len(ethernet) >= gpus * _PORTS_PER_GPU.value
    return len(ethernet) < len(active) or (bool(active) and many)


def _none_active(case: Case, ports: tuple[RdmaPort, ...]) -> Finding:
    """A warning if the node is built for multi-node training or a cable is plugged in; else a skip."""
    states = ", ".join(sorted({known(port.state) or "state not known" for port in ports}))
    text = f"none of the {len(ports)} RDMA ports is in use ({states}): {listed([*map(_label, ports)], 4)}"
    cabled = [port for port in ports if (known(port.physical_state) or "").lower() == "linkup"]
    gpus, share = len(case.node.gpus), case.limit(_PORTS_PER_GPU)
    if not cabled and (gpus < case.limit(_CLUSTER_GPUS) or len(ports) < gpus * share):
        return unknown(NODE, text, *map(_evidence, ports[:4])) if _alone(case.node) else skip(NODE, text)
    return warn(
        NODE,
        Found(text, 0, "ports"),
        Expected("active ports on a node with so many", ">", 0, "ports", case.limit_source(_PORTS_PER_GPU)),
        *(_evidence(port) for port in ports),
        likely="the links are up, but no subnet manager has set up the ports"
        if cabled
        else "the switch is off, the driver of the adapters did not start them, or the node was never cabled",
        advice=(
            Advice("Look at the ports.", "ibstat"),
            Advice("No cables, on purpose? Suppress this check in the configuration, with that as the reason."),
        ),
    )


def _alone(node: Node) -> bool:
    """Whether nothing is known of GPUs: a text of ports alone was pasted for the ports.

    Beside GPUs, ports without a cable are usual.
    """
    return not node.gpus and isinstance(node.pci.nvidia_devices, Missing) and isinstance(node.driver.init_code, Missing)


def _unused(ports: tuple[RdmaPort, ...]) -> Iterator[Finding]:
    """Ports that are down beside one that is up: whether they are meant to be used is not in a text of ports alone.

    Any server has an unused port of Ethernet, and some have one of InfiniBand; of more than are up nothing is known.
    """
    down = [port for port in ports if not port.is_active and not isinstance(port.state, Missing)]
    if not down:
        return
    names = [f"{_label(port)} is {port.state} ({known(port.physical_state) or '?'})" for port in down]
    text = f"{listed(names, 4)}; whether it is meant to carry traffic is not known here"
    advice = (Advice("See whether a cable is in the port, and what the switch says.", "ibstat; iblinkinfo"),)
    rails = [port for port in ports if known(port.link_layer) != "Ethernet"]
    if 2 * sum(port in down for port in rails) <= len(rails):
        yield warn(NODE, text, "active ports, or unused ones", *map(_evidence, down), advice=advice)
    else:
        yield unknown(NODE, text, *map(_evidence, down), advice=advice)


def _label(port: RdmaPort) -> str:
    return f"{port.device} port {port.port}"


def _evidence(port: RdmaPort) -> Evidence:
    parts = [known(port.state), known(port.physical_state), known(port.link_layer)]
    rate = known(port.rate_gbit_s)
    parts.append(f"{rate:g} Gbit/s" if rate is not None else None)
    return Evidence(f"/sys/class/infiniband/{port.device}/ports/{port.port}", ", ".join(word for word in parts if word))


def _down(ports: tuple[RdmaPort, ...]) -> Iterator[Finding]:
    """Ports with a cable that no subnet manager has activated; ports that are not active while most of their kind are.

    A kind is link layer, port number and maximum rate: the second ports of dual-port adapters are often all left
    without cables.
    """
    for port in ports:
        if port.is_active or isinstance(port.state, Missing):
            continue
        kind = [p for p in ports if _kind(p) == _kind(port)]
        up = sum(p.is_active for p in kind)
        # a subnet manager takes a port that has a link from INIT over ARMED to ACTIVE
        waits = "INIT" in port.state.upper() or "ARM" in port.state.upper()
        cabled = waits and (known(port.physical_state) or "").lower() == "linkup"
        if (up * 2 <= len(kind) or _second(port, kind)) and not cabled:
            continue
        yield warn(
            of_nic(port.device),
            Found(f"{_label(port)} is {port.state} ({known(port.physical_state) or 'physical state not known'})"),
            Expected(f"active, as {up} of {len(kind)} ports of its kind are", "==", "ACTIVE", source="peers")
            if up
            else Expected("active, or without a cable", "==", "ACTIVE", source="ibstat(8)"),
            _evidence(port),
            likely="the link is up, but no subnet manager has set up the port"
            if waits
            else "no cable, a dead cable or transceiver, or the switch port is off",
            advice=(
                Advice("Look at the port and its counters.", f"ibstat {port.device}"),
                Advice("See whether a subnet manager answers.", f"sminfo -C {port.device} -P {port.port}")
                if waits
                else Advice("Reseat or swap the cable, and look at the switch's side of it."),
            ),
        )


def _kind(port: RdmaPort) -> tuple[object, ...]:
    return known(port.link_layer), port.port, known(port.max_rate_gbit_s)


def _second(port: RdmaPort, kind: list[RdmaPort]) -> bool:
    """Whether it is the second port of an adapter, and no second port of its kind is in use.

    Adapters with one PCI function a port (mlx5) number each port 1.
    """
    function = (known(port.bus_id) or "").rpartition(".")[2]
    return function not in ("", "0") and not any(
        p.is_active for p in kind if (known(p.bus_id) or "").endswith(f".{function}")
    )


def _slow(active: list[RdmaPort], siblings: float) -> Iterator[Finding]:
    for port in active:
        rate, most = known(port.rate_gbit_s), known(port.max_rate_gbit_s)
        if rate is None:
            continue
        peers = [p for p in active if p is not port and known(p.link_layer) == known(port.link_layer)]
        if most is not None:
            # compare with adapters of the same maximum rate that run faster
            rates = [r for p in peers if known(p.max_rate_gbit_s) == most and (r := known(p.rate_gbit_s)) is not None]
            usual = max(rates, default=rate) if rate < most else rate
        else:
            rates = [r for p in peers if (r := known(p.rate_gbit_s)) is not None]
            alike = majority(rates) if len(set(rates)) == 1 and len(rates) >= siblings else None
            usual = alike if alike is not None else rate
        if rate < usual:
            yield warn(
                of_nic(port.device),
                Found(f"{_label(port)} runs at {rate:g} Gbit/s", rate, "Gbit/s"),
                Expected(f"{usual:g} Gbit/s, as its peers run at", ">=", usual, "Gbit/s", "peers"),
                _evidence(port),
                likely="the link came up at a lower speed or with fewer lanes: a bad cable or transceiver",
                advice=(
                    Advice("Look at speed and width that the link agreed on.", f"ibstatus {port.device}:{port.port}"),
                    Advice("Reseat or swap the cable and reset the port."),
                ),
            )


def _gpudirect(case: Case) -> Iterator[Finding]:
    """GPUDirect RDMA needs nvidia_peermem, or dma-buf in kernel and driver."""
    if not case.gpus:
        return
    if not carries_training(case.node):
        yield skip(NODE, "GPUDirect RDMA: the active ports are a few of Ethernet, which any server has")
        return
    if all("geforce" in (known(gpu.name) or "").lower() for gpu in case.gpus):
        yield skip(NODE, "GPUDirect RDMA: GeForce GPUs do not have it")
        return
    network = case.node.network
    if all(port.is_efa for port in known(network.rdma_ports) or ()):
        # the EFA driver maps GPU memory through efa_nv_peermem or dma-buf, not through nvidia_peermem
        yield skip(NODE, "GPUDirect RDMA: the EFA driver has its own way, which nothing here tells of")
        return
    # a module that is not registered with the InfiniBand core maps nothing
    idle = network.peermem_loaded is True and network.peermem_registered is False
    peermem = False if idle else network.peermem_loaded
    ways = (("nvidia_peermem", peermem), ("dma-buf", network.dmabuf_supported))
    possible = [name for name, state in ways if state is True]
    if possible:
        yield ok(NODE, f"GPUDirect RDMA possible ({' and '.join(possible)})")
        return
    for name, state in ways:
        if isinstance(state, Missing):
            yield unread(NODE, f"GPUDirect RDMA by {name}", state)
            return
    lack = "is loaded, but not registered with the InfiniBand core," if idle else "is not loaded"
    yield warn(
        NODE,
        f"GPUDirect RDMA is not possible: nvidia_peermem {lack} and there is no dma-buf support",
        "one of the two, where RDMA ports are in use",
        Evidence("/sys/kernel/mm/memory_peers", "no nv_mem")
        if idle
        else Evidence("/proc/modules", "no nvidia_peermem"),
        likely="traffic between nodes is copied through host memory",
        advice=(
            Advice(
                "Load MLNX_OFED's ib_core first, then the module,",
                "modprobe -r nvidia_peermem; modprobe nvidia_peermem",
            )
            if idle
            else Advice("Load the module,", "modprobe nvidia_peermem"),
            Advice("or use the open kernel modules on Linux 5.12 or later, which have dma-buf."),
        ),
    )
