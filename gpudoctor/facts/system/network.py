"""Network interfaces, RDMA ports, and the support for GPUDirect RDMA."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Interface, Network, RdmaPort
from gpudoctor.facts.system.pci import BUS_ID, read_numa_node
from gpudoctor.facts.system.sysfs import link_name, list_names, present, read_int, read_match, read_text

_RATE = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")  # 400 Gb/sec (4X NDR)
_NUMBERED = re.compile(r"^\d+:\s*(\S.*)$")  # 4: ACTIVE
_KERNEL = re.compile(r"(\d+)\.(\d+)")
_DRIVER_MAJOR = re.compile(r"\b(\d{3})\.\d+")
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
# the modules with which peers register: MLNX_OFED's, and that of Ubuntu's kernel
PEER_CORES = ("ib_core", "ib_uverbs")
# RDMA supports DMA-BUF since Linux 5.12; NVIDIA's driver since 515, in its open kernel module only
# (NVIDIA GPU Operator documentation, "GPUDirect RDMA": prerequisites of DMA-BUF)
_DMABUF_KERNEL = (5, 12)
_DMABUF_DRIVER = 515
_MAX_GIDS = 256


def read_network(root: Path) -> Network:
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


def _interfaces(root: Path) -> tuple[Interface, ...] | Missing:
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


def _interface_speed(interface: Path) -> float | Missing:
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


def _rdma_ports(root: Path) -> tuple[RdmaPort, ...] | Missing:
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


def _rdma_port(device: Path, number: int) -> RdmaPort:
    port = device / "ports" / str(number)
    behind = Path(os.path.realpath(device / "device"))
    rate, driver = read_match(port / "rate", _RATE), link_name(device / "device/driver")
    on_pci = BUS_ID.fullmatch(behind.name) is not None
    return RdmaPort(
        device=device.name,
        port=number,
        state=read_match(port / "state", _NUMBERED),
        physical_state=read_match(port / "phys_state", _NUMBERED),
        link_layer=read_text(port / "link_layer"),
        rate_gbit_s=rate if isinstance(rate, Missing) else float(rate),
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


def _interface_of(behind: Path, port: Path) -> str | Missing:
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


def _peermem_loaded(root: Path) -> bool | Missing:
    if any(present(root / "sys/module" / name) for name in _PEERMEM):
        return True
    modules = read_text(root / "proc/modules")
    if isinstance(modules, Missing):
        return modules
    return any(line.startswith(f"{name} ") for line in modules.splitlines() for name in _PEERMEM)


def _peermem_registered(root: Path) -> bool | Missing:
    """Whether the module is registered with the InfiniBand core: in its list of peers, else among its holders.

    Source: NCCL's net_ib.cc checks the same list, which MLNX_OFED's ib_core creates.
    """
    if not present(root / "sys/module"):
        return Missing("/sys/module: not there", "absent")
    if any(name.startswith("nv_mem") for name in known(list_names(root / "sys/kernel/mm/memory_peers")) or ()):
        return True
    holders = (root / "sys/module" / core / "holders" / name for core in PEER_CORES for name in _PEERMEM)
    return any(present(holder) for holder in holders)


def _dmabuf_supported(root: Path) -> bool | Missing:
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
