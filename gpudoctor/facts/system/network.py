"""Network interfaces, RDMA ports, the support for GPUDirect RDMA, and how other nodes reach this one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing, MissingKind, if_known, known
from gpudoctor.facts.model.node import Interface, Network, RdmaPort
from gpudoctor.facts.system.pci import BUS_ID, read_numa_node
from gpudoctor.facts.system.sysfs import (
    ROOT,
    AnyPath,
    SysPath,
    link_name,
    list_names,
    present,
    read_int,
    read_match,
    read_text,
)
from gpudoctor.lazy import lazy_imports, lazy_pattern

with lazy_imports():
    import psutil

_RATE = lazy_pattern(r"^(\d+(?:\.\d+)?) Gb/sec")  # 400 Gb/sec (4X NDR)
_NUMBERED = lazy_pattern(r"^\d+:\s*(\S.*)$")  # 4: ACTIVE
_KERNEL = lazy_pattern(r"(\d+)\.(\d+)")
_DRIVER_MAJOR = lazy_pattern(r"\b(\d{3})\.\d+")
PEERMEM = ("nvidia_peermem", "nv_peer_mem")
# the modules with which peers register: MLNX_OFED's, and that of Ubuntu's kernel
PEER_CORES = ("ib_core", "ib_uverbs")
# RDMA supports DMA-BUF since Linux 5.12; NVIDIA's driver since 515, in its open kernel module only
# (NVIDIA GPU Operator documentation, "GPUDirect RDMA": prerequisites of DMA-BUF)
_DMABUF_KERNEL = (5, 12)
_DMABUF_DRIVER = 515
_MAX_GIDS = 256
_RESOLVER_LIMIT_S = 5.0  # the resolver itself gives up on a dead name server only after half a minute or more
_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)  # every other error says nothing about the name
SETTINGS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE")


def read_network(root: AnyPath) -> Network:
    """Interfaces by name, RDMA ports by device and port.

    A machine without RDMA devices has an empty `rdma_ports`. States are without the kernel's
    number: ACTIVE, DOWN; LinkUp, Polling, Disabled. `max_rate_gbit_s` is not in sysfs.
    """
    return Network(
        interfaces=_interfaces(root),
        rdma_ports=_rdma_ports(root),
        peermem_loaded=_peermem_loaded(root),
        peermem_registered=_peermem_registered(root),
        dmabuf_supported=_dmabuf_supported(root),
    )


def _interfaces(root: AnyPath) -> tuple[Interface, ...] | Missing:
    folder = root / "sys/class/net"
    names = list_names(folder)
    if isinstance(names, Missing):
        return names
    return tuple(
        Interface(
            name=name,
            state=read_text(folder / name / "operstate"),
            mtu=read_int(folder / name / "mtu"),
            speed_gbit_s=_interface_speed(folder / name),
        )
        for name in names
        if present(folder / name / "operstate")
    )


def _interface_speed(interface: AnyPath) -> float | Missing:
    """Speed in Gbit/s. If there is none, reading it fails or returns -1, which is no fault of the interface."""
    speed = read_int(interface / "speed")
    # 4294967295 is the kernel's SPEED_UNKNOWN, unsigned
    if not isinstance(speed, Missing) and 0 < speed < 0xFFFFFFFF:
        return speed / 1000
    if not present(interface / "device"):
        return Missing("a virtual interface has no speed", "unsupported")
    if read_int(interface / "carrier") != 1:
        return Missing("no carrier", "absent")
    return Missing("the adapter does not tell its speed", "unsupported")


def _rdma_ports(root: AnyPath) -> tuple[RdmaPort, ...] | Missing:
    folder = root / "sys/class/infiniband"
    devices = list_names(folder)
    if isinstance(devices, Missing):
        # without this folder there is no RDMA; without /sys/class it is not known
        return () if devices.kind == "absent" and present(root / "sys/class") else devices
    ports: list[RdmaPort] = []
    for device in devices:
        numbers = known(list_names(folder / device / "ports")) or ()
        ports += [_rdma_port(folder / device, int(number)) for number in numbers if number.isdecimal()]
    return tuple(sorted(ports, key=lambda port: (port.device, port.port)))


def _rdma_port(device: AnyPath, number: int) -> RdmaPort:
    port = device / "ports" / str(number)
    behind = SysPath(os.path.realpath(device / "device"))
    rate, driver = read_match(port / "rate", _RATE), link_name(device / "device/driver")
    on_pci = BUS_ID.fullmatch(behind.name) is not None
    return RdmaPort(
        device=device.name,
        port=number,
        state=read_match(port / "state", _NUMBERED),
        physical_state=read_match(port / "phys_state", _NUMBERED),
        link_layer=read_text(port / "link_layer"),
        rate_gbit_s=if_known(rate, float),
        max_rate_gbit_s=Missing("sysfs does not tell the port's highest rate", "absent"),
        bus_id=behind.name if on_pci else Missing("not a PCI device", "absent"),
        numa_node=read_numa_node(behind) if on_pci else Missing("not a PCI device", "absent"),
        interface=_interface_of(behind, port),
        link_downed=read_int(port / "counters/link_downed"),
        adapter=read_text(device / "hca_type"),
        firmware=read_text(device / "fw_ver"),
        link_recoveries=read_int(port / "counters/link_error_recovery"),
        symbol_errors=read_int(port / "counters/symbol_error"),
        receive_errors=read_int(port / "counters/port_rcv_errors"),
        driver=Missing("no driver is bound to the device", "absent") if driver is None else driver,
        virtual_function=present(device / "device/physfn"),
    )


def _interface_of(behind: AnyPath, port: AnyPath) -> str | Missing:
    """The network interface of the port: that of its GIDs (RoCE), or the device's only one (IPoIB)."""
    folder = port / "gid_attrs/ndevs"
    # reading an unused GID fails with EINVAL; the used ones come first
    for name in sorted(known(list_names(folder)) or (), key=lambda n: (len(n), n))[:_MAX_GIDS]:
        if interface := known(read_text(folder / name)):
            return interface
    interfaces = known(list_names(behind / "net")) or ()
    if len(interfaces) == 1:
        return interfaces[0]
    return Missing("the port has no network interface", "absent")


def _peermem_loaded(root: AnyPath) -> bool | Missing:
    if any(present(root / "sys/module" / name) for name in PEERMEM):
        return True
    names = tuple(f"{name} " for name in PEERMEM)
    modules = read_text(root / "proc/modules")
    return if_known(modules, lambda text: any(line.startswith(names) for line in text.splitlines()))


def _peermem_registered(root: AnyPath) -> bool | Missing:
    """Whether the module is registered with the InfiniBand core: in its list of peers, else among its holders.

    Source: NCCL's net_ib.cc checks the same list, which MLNX_OFED's ib_core creates.
    """
    if not present(root / "sys/module"):
        return Missing("/sys/module: not there", "absent")
    if any(name.startswith("nv_mem") for name in known(list_names(root / "sys/kernel/mm/memory_peers")) or ()):
        return True
    holders = (root / "sys/module" / core / "holders" / name for core in PEER_CORES for name in PEERMEM)
    return any(present(holder) for holder in holders)


def _dmabuf_supported(root: AnyPath) -> bool | Missing:
    """Whether an RDMA adapter can map GPU memory without nvidia_peermem: both kernel and driver support it."""
    release = read_text(root / "proc/sys/kernel/osrelease")
    if isinstance(release, Missing):
        return release
    driver = read_text(root / "proc/driver/nvidia/version")
    if isinstance(driver, Missing):
        return driver
    kernel, major = _KERNEL.match(release), _DRIVER_MAJOR.search(driver)
    if kernel is None or major is None:
        return Missing("the version of the kernel or of the NVIDIA driver cannot be read", "failed")
    return (
        (int(kernel[1]), int(kernel[2])) >= _DMABUF_KERNEL
        and "Open Kernel Module" in driver
        and int(major[1]) >= _DMABUF_DRIVER
    )


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
        interfaces = known(self.interfaces) or ()
        return next((interface for interface in interfaces if address in interface.addresses), None)


def read_reach(root: AnyPath = ROOT, environment: Mapping[str, str] = os.environ) -> Reach:
    """Query kernel and resolver; interfaces are not read from /sys, which may show another network namespace."""
    hostname = socket.gethostname()
    return Reach(
        hostname=hostname,
        resolved=_resolved(hostname),
        interfaces=_own_interfaces(),
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


def _own_interfaces() -> tuple[LocalInterface, ...] | Missing:
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
    interfaces = _own_interfaces()
    if isinstance(interfaces, Missing):
        return []
    found = [address for interface in interfaces if interface.up for address in interface.addresses]
    usable = [a for a in found if not a.startswith(("127.", "fe80:")) and a != "::1"]
    return sorted(usable, key=lambda address: ":" in address)
