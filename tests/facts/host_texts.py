"""Texts of host tools, made from facts: the writers against which the readers of captures are tried."""

from __future__ import annotations

from gpudoctor.facts.model.driver import DkmsBuild
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Host, RdmaPort

PORTS = (
    RdmaPort("mlx5_0", 1, "ACTIVE", "LinkUp", "InfiniBand", 400.0, adapter="MT4129", firmware="28.39.2048"),
    RdmaPort("mlx5_1", 1, "DOWN", "Polling", "InfiniBand", 40.0, adapter="MT4129", firmware="28.39.2048"),
    RdmaPort("mlx5_bond_0", 1, "ACTIVE", "LinkUp", "Ethernet", 100.0, adapter="MT4125", firmware="22.36.1010"),
    RdmaPort("mlx5_bond_0", 2, "INIT", "LinkUp", "Ethernet", 100.0, adapter="MT4125", firmware="22.36.1010"),
)


def ibstat(ports: tuple[RdmaPort, ...]) -> str:
    """As ibstat of rdma-core prints them."""
    lines, device = [], ""
    for port in ports:
        if port.device != device:
            device = port.device
            lines += [
                f"CA '{port.device}'",
                f"\tCA type: {port.adapter}",
                f"\tNumber of ports: {sum(p.device == port.device for p in ports)}",
                f"\tFirmware version: {port.firmware}",
                "\tHardware version: 0",
                "\tNode GUID: 0x0123456789abcdef",
            ]
        lines += [
            f"\tPort {port.port}:",
            f"\t\tState: {(known(port.state) or '').capitalize()}",
            f"\t\tPhysical state: {port.physical_state}",
            f"\t\tRate: {known(port.rate_gbit_s) or 0:g}",
            "\t\tBase lid: 5",
            f"\t\tLink layer: {port.link_layer}",
        ]
    return "\n".join(lines) + "\n"


def ibstatus(ports: tuple[RdmaPort, ...]) -> str:
    """As the script ibstatus prints them, with the numbers of sysfs."""
    states, physical = {"ACTIVE": 4, "DOWN": 1, "INIT": 2}, {"LinkUp": 5, "Polling": 2}
    lines = []
    for port in ports:
        state, phys = known(port.state) or "", known(port.physical_state) or ""
        lines += [
            f"Infiniband device '{port.device}' port {port.port} status:",
            "\tdefault gid:\t fe80:0000:0000:0000:0123:4567:89ab:cdef",
            f"\tstate:\t\t {states[state]}: {state}",
            f"\tphys state:\t {physical[phys]}: {phys}",
            f"\trate:\t\t {known(port.rate_gbit_s) or 0:g} Gb/sec (4X NDR)",
            f"\tlink_layer:\t {port.link_layer}",
            "",
        ]
    return "\n".join(lines) + "\n"


def ibv_devinfo(ports: tuple[RdmaPort, ...]) -> str:
    """As ibv_devinfo -v prints them: the rate as lanes and speed of one."""
    states = {"ACTIVE": "PORT_ACTIVE (4)", "DOWN": "PORT_DOWN (1)", "INIT": "PORT_INIT (2)"}
    physical = {"LinkUp": "LINK_UP (5)", "Polling": "POLLING (2)"}
    lines = []
    for port in ports:
        if port.port == 1:
            lines += [
                f"hca_id:\t{port.device}",
                "\ttransport:\t\t\tInfiniBand (0)",
                f"\tfw_ver:\t\t\t\t{port.firmware}",
            ]
        lines += [
            f"\t\tport:\t{port.port}",
            f"\t\t\tstate:\t\t\t{states[known(port.state) or '']}",
            "\t\t\tmax_mtu:\t\t4096 (5)",
            "\t\t\tactive_width:\t\t4X (2)",
            f"\t\t\tactive_speed:\t\t{(known(port.rate_gbit_s) or 0) / 4:.1f} Gbps (128)",
            f"\t\t\tphys_state:\t\t{physical[known(port.physical_state) or '']}",
            f"\t\t\tlink_layer:\t\t{port.link_layer}",
        ]
    return "\n".join(lines) + "\n"


def dkms_status(builds: tuple[DkmsBuild, ...], separator: str = "/") -> str:
    """`dkms status`; before version 3 it had a comma in place of the slash."""
    name = "nvidia/" if separator == "/" else "nvidia, "
    return "".join(
        f"{name}{build.version}{f', {build.kernel}, x86_64' if build.kernel else ''}: {build.state}\n"
        for build in builds
    )


def ulimit_a(host: Host) -> str:
    """`ulimit -a` of bash."""
    memlock, files, processes = (
        "unlimited" if value is None else value for value in (host.memlock_kib, host.open_files, host.processes)
    )
    return (
        "real-time non-blocking time  (microseconds, -R) unlimited\n"
        "core file size              (blocks, -c) 0\n"
        "data seg size               (kbytes, -d) unlimited\n"
        f"max locked memory           (kbytes, -l) {memlock}\n"
        f"open files                          (-n) {files}\n"
        "pipe size                (512 bytes, -p) 8\n"
        f"max user processes                  (-u) {processes}\n"
    )


def proc_limits(host: Host) -> str:
    """/proc/self/limits."""

    def row(name: str, value: int | None, unit: str) -> str:
        words = "unlimited" if value is None else str(value)
        return f"{name:<26}{words:<21}{words:<21}{unit:<10}\n"

    memlock = known(host.memlock_kib)
    return (
        f"{'Limit':<26}{'Soft Limit':<21}{'Hard Limit':<21}{'Units':<10}\n"
        + row("Max locked memory", None if memlock is None else memlock * 1024, "bytes")
        + row("Max open files", known(host.open_files), "files")
        + row("Max processes", known(host.processes), "processes")
    )
