"""Interfaces, RDMA ports and GPUDirect, read from fake sysfs trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Interface, RdmaPort
from gpudoctor.facts.system.network import read_network
from tests.narrowed import missing, present
from tests.sysfs_tree import link, rdma_port, write

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (builder@host)"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023"


def port_of(root: Path) -> RdmaPort:
    (port,) = present(read_network(root).rdma_ports)
    return port


def interface(root: Path, name: str, *, physical: bool = True, **files: str) -> None:
    folder = f"/sys/class/net/{name}"
    write(root, {f"{folder}/{file}": text for file, text in {"operstate": "up", "mtu": "1500", **files}.items()})
    if physical:
        link(root, f"{folder}/device", "/sys/devices/pci0000:00/0000:00:03.0")
        (root / "sys/devices/pci0000:00/0000:00:03.0").mkdir(parents=True, exist_ok=True)


def test_an_infiniband_port_with_all_that_sysfs_tells(tmp_path: Path) -> None:
    rdma_port(tmp_path, link_downed="3")
    port = port_of(tmp_path)
    assert (port.device, port.port, port.state, port.physical_state) == ("mlx5_0", 1, "ACTIVE", "LinkUp")
    assert (port.link_layer, port.rate_gbit_s, port.link_downed) == ("InfiniBand", 400.0, 3)
    assert (port.bus_id, port.numa_node) == ("0000:18:00.0", 1)
    assert isinstance(port.max_rate_gbit_s, Missing)
    assert port.interface == Missing("the port has no network interface", "absent")


def test_a_virtual_function_is_told_from_an_adapter(tmp_path: Path) -> None:
    rdma_port(tmp_path)
    assert port_of(tmp_path).virtual_function is False
    link(tmp_path, "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0/physfn", "/sys/devices/pci0000:15")
    assert port_of(tmp_path).virtual_function is True


def test_a_port_that_is_down_is_read_as_down(tmp_path: Path) -> None:
    rdma_port(tmp_path, state="1: DOWN", physical_state="3: Disabled", rate="2.5 Gb/sec (1X SDR)")
    port = port_of(tmp_path)
    assert (port.state, port.physical_state, port.rate_gbit_s) == ("DOWN", "Disabled", 2.5)


def test_a_roce_port_names_its_interface_by_the_first_gid_in_use(tmp_path: Path) -> None:
    folder = rdma_port(tmp_path, link_layer="Ethernet", rate="200 Gb/sec (4X HDR)")
    write(tmp_path, {f"{folder}/ports/1/gid_attrs/ndevs/2": "ens1f0np0", f"{folder}/ports/1/gid_attrs/ndevs/10": "x"})
    (tmp_path / folder.lstrip("/") / "ports/1/gid_attrs/ndevs/0").mkdir()  # an unused GID cannot be read
    port = port_of(tmp_path)
    assert (port.link_layer, port.interface) == ("Ethernet", "ens1f0np0")


def test_ip_over_infiniband_is_found_by_the_device(tmp_path: Path) -> None:
    rdma_port(tmp_path)
    write(tmp_path, {"/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0/net/ib0/mtu": "2044"})
    assert port_of(tmp_path).interface == "ib0"


def test_ports_are_ordered_and_words_that_make_no_sense_are_failed(tmp_path: Path) -> None:
    rdma_port(tmp_path, "mlx5_1", place="pci0000:15/0000:15:02.0/0000:19:00.0", state="what", rate="fast")
    rdma_port(tmp_path, "mlx5_0")
    write(tmp_path, {"/sys/class/infiniband/mlx5_0/ports/README": "not a port"})
    (tmp_path / "sys/class/infiniband/mlx5_9").mkdir()
    ports = present(read_network(tmp_path).rdma_ports)
    assert [port.device for port in ports] == ["mlx5_0", "mlx5_1"]
    assert ports[1].state == Missing("state reads 'what'", "failed")
    assert ports[1].rate_gbit_s == Missing("rate reads 'fast'", "failed")


def test_a_software_device_has_no_place_on_the_bus(tmp_path: Path) -> None:
    write(tmp_path, {"/sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE"})
    port = port_of(tmp_path)
    assert port.bus_id == Missing("not a PCI device", "absent")
    assert isinstance(port.numa_node, Missing)
    assert missing(port.rate_gbit_s).kind == "absent"


def test_an_elastic_fabric_adapter_has_no_counters_of_a_link(tmp_path: Path) -> None:
    """As Linux's efa driver shows it: always active, with no link layer, and no folder of InfiniBand's counters."""
    rdma_port(
        tmp_path,
        "rdmap16s27",
        place="pci0000:10/0000:10:1b.0",
        rate="100 Gb/sec (4X EDR)",
        link_layer="Unknown",
        link_downed=None,
        driver="efa",
    )
    efa = port_of(tmp_path)
    assert (efa.device, efa.driver, efa.is_efa) == ("rdmap16s27", "efa", True)
    assert (efa.state, efa.link_layer, efa.rate_gbit_s) == ("ACTIVE", "Unknown", 100)
    assert missing(efa.link_downed).kind == "absent"


@pytest.mark.parametrize(
    ("device", "link_layer", "efa"),
    [
        ("efa_0", "InfiniBand", True),  # ibv_devinfo of older rdma-core
        ("rdmap16s27", "Unknown", True),
        ("rdmap16s27", "Unspecified", True),
        ("rdmap24s0", "Ethernet", False),  # RoCE under the same naming rule
        ("mlx5_0", "InfiniBand", False),
        ("rdmap16s27", None, False),
    ],
)
def test_without_its_driver_an_elastic_fabric_adapter_is_known_by_name_and_link_layer(
    device: str, link_layer: str | None, efa: bool
) -> None:
    layer = Missing("cut off", "absent") if link_layer is None else link_layer
    assert RdmaPort(device, 1, link_layer=layer).is_efa is efa


def test_without_rdma_there_are_no_ports_and_without_sysfs_nobody_knows(tmp_path: Path) -> None:
    assert isinstance(read_network(tmp_path).rdma_ports, Missing)
    assert isinstance(read_network(tmp_path).interfaces, Missing)
    interface(tmp_path, "eth0")
    assert read_network(tmp_path).rdma_ports == ()


def test_interfaces_with_state_mtu_and_speed(tmp_path: Path) -> None:
    interface(tmp_path, "ens1", speed="100000", mtu="9000", carrier="1")
    interface(tmp_path, "bond0", physical=False, speed="200000")
    write(tmp_path, {"/sys/class/net/bonding_masters": "bond0"})
    assert read_network(tmp_path).interfaces == (
        Interface("bond0", "up", 1500, 200.0),
        Interface("ens1", "up", 9000, 100.0),
    )


@pytest.mark.parametrize("speed", ["-1", "4294967295", "0", "Invalid argument"])
@pytest.mark.parametrize(
    ("physical", "carrier", "kind"),
    [(True, "1", "unsupported"), (True, "0", "absent"), (False, "1", "unsupported")],
    ids=["cloud adapter", "unplugged", "virtual"],
)
def test_an_unknown_speed_is_no_failure(tmp_path: Path, speed: str, physical: bool, carrier: str, kind: str) -> None:
    interface(tmp_path, "eth0", physical=physical, speed=speed, carrier=carrier)
    interfaces = present(read_network(tmp_path).interfaces)
    assert missing(interfaces[0].speed_gbit_s).kind == kind


@pytest.mark.parametrize(
    ("modules", "loaded"),
    [
        ("nvidia_peermem 16384 0 - Live 0x0\nnvidia 99 1 - Live 0x0", True),
        ("nv_peer_mem 16384 0 - Live 0x0", True),
        ("nvidia 99 1 nvidia_peermem_like, Live 0x0", False),
    ],
)
def test_peermem_is_looked_up_in_the_modules(tmp_path: Path, modules: str, loaded: bool) -> None:
    write(tmp_path, {"/proc/modules": modules})
    assert read_network(tmp_path).peermem_loaded is loaded


def test_peermem_is_registered_where_the_infiniband_core_knows_it(tmp_path: Path) -> None:
    assert isinstance(read_network(tmp_path).peermem_registered, Missing)
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert read_network(tmp_path).peermem_registered is False
    for place in ("module/ib_uverbs/holders/nvidia_peermem", "kernel/mm/memory_peers/nv_mem"):
        root = tmp_path / place.replace("/", "-")
        (root / "sys/module").mkdir(parents=True)
        (root / "sys" / place).mkdir(parents=True)
        assert read_network(root).peermem_registered is True


def test_peermem_is_found_in_sysfs_where_proc_is_hidden_and_is_else_unknown(tmp_path: Path) -> None:
    assert isinstance(read_network(tmp_path).peermem_loaded, Missing)
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert read_network(tmp_path).peermem_loaded is True


@pytest.mark.parametrize(
    ("kernel", "driver", "supported"),
    [
        ("5.15.0-1063-nvidia", OPEN, True),
        ("5.12.0", OPEN, True),
        ("5.4.0-150-generic", OPEN, False),
        ("6.8.0", CLOSED, False),
        ("6.8.0", OPEN.replace("560.35.03", "510.47.03"), False),
    ],
)
def test_dmabuf_needs_kernel_5_12_and_the_open_module_of_515(
    tmp_path: Path, kernel: str, driver: str, supported: bool
) -> None:
    write(tmp_path, {"/proc/sys/kernel/osrelease": kernel, "/proc/driver/nvidia/version": driver})
    assert read_network(tmp_path).dmabuf_supported is supported


def test_dmabuf_is_missing_without_a_driver_or_with_words_for_versions(tmp_path: Path) -> None:
    write(tmp_path, {"/proc/sys/kernel/osrelease": "6.8.0"})
    assert missing(read_network(tmp_path).dmabuf_supported).kind == "absent"
    write(tmp_path, {"/proc/driver/nvidia/version": "NVRM version: unknown"})
    assert missing(read_network(tmp_path).dmabuf_supported).kind == "failed"


def test_this_machine_is_read_without_a_failure() -> None:
    network = read_network(Path("/"))
    assert "lo" in {item.name for item in present(network.interfaces)}
    for item in present(network.interfaces):
        assert getattr(item.speed_gbit_s, "kind", "") != "failed"
