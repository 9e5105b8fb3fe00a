"""network.infiniband."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.missing import Missing, MissingKind
from gpudoctor.facts.model.node import Network, Node, PciBus, RdmaPort
from tests.checks.one_check import blames, expect, gpus, judge, words


def port(number: int, *, physical: int = 1, **facts: Any) -> RdmaPort:
    defaults: dict[str, Any] = {
        "state": "ACTIVE",
        "physical_state": "LinkUp",
        "link_layer": "InfiniBand",
        "rate_gbit_s": 400.0,
    }
    return RdmaPort(f"mlx5_{number}", physical, **{**defaults, **facts})


DOWN: dict[str, Any] = {"state": "DOWN", "physical_state": "Polling", "rate_gbit_s": 10.0}


def check(*ports: RdmaPort, gpu_name: str | None = None, **network: Any) -> CheckResult:
    cards = gpus(2, gpu_name) if gpu_name else ()
    node = Node(gpus=cards, pci=PciBus(()), network=Network(rdma_ports=ports, **network))
    return judge("network.infiniband", node)


def eight(**last: Any) -> tuple[RdmaPort, ...]:
    return tuple(port(i, bus_id=f"0000:0{i}:00.0", **(last if i == 7 else {})) for i in range(8))


def test_no_adapter_or_an_unread_one_is_skipped() -> None:
    assert check().status is Status.SKIP
    assert judge("network.infiniband", Node()).status is Status.SKIP
    failed = Network(rdma_ports=Missing("error", "failed"))
    assert judge("network.infiniband", Node(network=failed)).status is Status.UNKNOWN


def test_eight_active_ports_pass_with_their_rate() -> None:
    expect(check(*eight()), Status.PASS, "8 RDMA ports active at 400 Gbit/s")


def test_a_port_that_is_down_among_active_siblings_is_named() -> None:
    expect(check(*eight(**DOWN)), Status.WARN, "7 of 8 ports", name="mlx5_7")


def test_a_port_without_a_subnet_manager_is_told_apart_from_a_cable() -> None:
    for state in ("INIT", "ARMED"):
        result = check(*eight(state=state))
        assert "sminfo -C mlx5_7 -P 1" in words(result)
        assert "dead cable" not in words(result)
    assert "cable" in words(check(*eight(**DOWN)))


def test_a_cabled_port_without_a_subnet_manager_warns_whatever_its_siblings_do() -> None:
    for others in ((port(0),), (port(0, **DOWN), port(2)), (port(0, max_rate_gbit_s=100.0),)):
        result = check(*others, port(1, state="Initializing", rate_gbit_s=200.0))
        [odd] = [f for f in result.findings if f.status is Status.WARN]
        assert (odd.subject.name, "subnet manager" in words(result)) == ("mlx5_1", True)
    assert check(port(0), port(1, state="INIT", physical_state="Polling")).status is Status.PASS


@pytest.mark.parametrize(
    "unused",
    [
        [port(8, link_layer="Ethernet", **DOWN)],
        [port(8, link_layer="Ethernet"), port(9, link_layer="Ethernet", **DOWN)],
        [port(i, physical=2, **DOWN) for i in range(8)],
        [port(8, max_rate_gbit_s=100.0, **DOWN)],
        [port(8, state=Missing("unreadable", "denied"))],
        [port(i, bus_id=f"0000:{i:02x}:00.1", **DOWN) for i in range(8, 10)],  # mlx5: a PCI function a port
        [port(i, state="INIT", virtual_function=True) for i in range(8, 24)],  # kept for virtual machines
    ],
)
def test_unused_ports_of_another_kind_are_left_alone(unused: list[RdmaPort]) -> None:
    assert check(*eight(), *unused).status is Status.PASS


def test_virtual_functions_of_a_hypervisor_alone_are_skipped() -> None:
    expect(check(*(port(i, state="INIT", virtual_function=True) for i in range(16))), Status.SKIP, "virtual functions")
    unread = Missing("I/O error", "failed")
    assert check(port(0, state=unread, virtual_function=True)).status is Status.UNKNOWN
    assert check(port(0, virtual_function=True)).status is Status.PASS


def test_ports_that_are_all_down_are_unused() -> None:
    expect(check(port(0, **DOWN), port(1, **DOWN)), Status.SKIP, "none of the 2 RDMA ports")


def test_a_text_of_ports_alone_that_are_all_down_names_them_and_passes_nothing() -> None:
    network = Network(rdma_ports=(port(0, **DOWN), port(1, **DOWN)))
    expect(judge("network.infiniband", Node(network=network)), Status.UNKNOWN, "mlx5_0 port 1, mlx5_1 port 1")
    beside = Node(gpus=gpus(2, "NVIDIA L4"), network=network)
    assert judge("network.infiniband", beside).status is Status.SKIP


def test_a_port_that_is_down_in_a_text_of_ports_alone_is_no_pass_even_if_half_of_them_are() -> None:
    """NVIDIA/nccl-tests #128: mlx5_1 is Down and Disabled, one of two of its kind."""
    down = port(1, state="DOWN", physical_state="Disabled")
    node = Node(network=Network(rdma_ports=(port(0), down)))
    expect(judge("network.infiniband", node), Status.WARN, "mlx5_1 port 1 is DOWN (Disabled)")
    assert judge("network.infiniband", replace(node, gpus=gpus(2, "NVIDIA L4"))).status is Status.PASS
    unused = port(2, state="DOWN", physical_state="Disabled", link_layer="Ethernet")
    ethernet = replace(node, network=Network(rdma_ports=(port(0), unused)))
    expect(judge("network.infiniband", ethernet), Status.WARN, "mlx5_2 port 1 is DOWN (Disabled)")
    beside = replace(ethernet, gpus=gpus(2, "NVIDIA L4"))
    assert judge("network.infiniband", beside).status is not Status.WARN, "any server has an unused Ethernet port"


def test_states_that_could_not_be_read_are_no_verdict() -> None:
    assert check(port(0, state=Missing("error", "failed"))).status is Status.UNKNOWN


@pytest.mark.parametrize("leaf", ["state", "rate_gbit_s"])
@pytest.mark.parametrize("kind", ["failed", "absent"])
def test_a_port_that_shows_less_than_its_peers_is_no_pass(leaf: str, kind: MissingKind) -> None:
    result = check(*eight(**{leaf: Missing("unreadable", kind)}))
    unread = [f.subject.name for f in result.findings if f.status is Status.UNKNOWN]
    assert (result.status, unread) == (Status.UNKNOWN, ["mlx5_7"])
    # another adapter has its own reasons
    other: dict[str, Any] = {"adapter": "MT4117", "link_layer": "Ethernet", leaf: Missing("unreadable")}
    assert check(*eight(adapter="MT4129"), port(8, **other)).status is Status.PASS


def test_a_slower_port_among_equal_ones_warns() -> None:
    expect(check(*eight(rate_gbit_s=100.0)), Status.WARN, "100 Gbit/s", "400 Gbit/s, as its peers", name="mlx5_7")


@pytest.mark.parametrize(
    "ports",
    [
        (port(0), port(1, rate_gbit_s=100.0)),  # no majority against it
        (*(port(i, max_rate_gbit_s=400.0) for i in range(8)), port(8, max_rate_gbit_s=100.0, rate_gbit_s=100.0)),
        tuple(port(i, max_rate_gbit_s=400.0, rate_gbit_s=200.0) for i in range(8)),  # an older switch
        (*(port(i) for i in range(4)), *(port(i, rate_gbit_s=100.0) for i in range(4, 8))),
        (*eight(), port(8, link_layer="Ethernet", rate_gbit_s=25.0)),
    ],
)
def test_ports_that_are_slower_by_design_pass(ports: tuple[RdmaPort, ...]) -> None:
    assert check(*ports).status is Status.PASS


def test_a_port_below_what_its_class_does_warns() -> None:
    ports = (port(0, max_rate_gbit_s=400.0), port(1, max_rate_gbit_s=400.0, rate_gbit_s=200.0))
    assert check(*ports).status is Status.WARN


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("name", "peermem", "dmabuf", "status"),
    [
        (H100, True, False, Status.PASS),
        (H100, False, True, Status.PASS),
        (H100, False, False, Status.WARN),
        (H100, False, Missing("old kernel"), Status.PASS),
        ("NVIDIA GeForce RTX 4090", False, False, Status.PASS),
    ],
)
def test_gpudirect_needs_one_of_two_ways(name: str, peermem: Any, dmabuf: Any, status: Status) -> None:
    result = check(port(0), gpu_name=name, peermem_loaded=peermem, dmabuf_supported=dmabuf)
    assert result.status is status
    if isinstance(dmabuf, Missing):
        assert "old kernel" in words(result)


def test_gpudirect_is_no_matter_of_a_servers_own_ethernet_adapters() -> None:
    none: dict[str, Any] = {"peermem_loaded": False, "dmabuf_supported": False}
    ethernet = [port(i, link_layer="Ethernet", rate_gbit_s=25.0) for i in range(2)]
    assert check(*ethernet, gpu_name=H100, **none).status is Status.PASS
    assert check(*ethernet, port(2), gpu_name=H100, **none).status is Status.WARN
    roce = Network(rdma_ports=tuple(port(i, link_layer="Ethernet") for i in range(8)), **none)
    assert judge("network.infiniband", Node(gpus=gpus(8, H100), network=roce)).status is Status.WARN


@pytest.mark.parametrize(
    ("registered", "dmabuf", "status"),
    [(False, False, Status.WARN), (False, True, Status.PASS), (True, False, Status.PASS)],
)
def test_a_peermem_that_is_loaded_and_not_registered_maps_nothing(
    registered: bool, dmabuf: bool, status: Status
) -> None:
    facts = {"peermem_loaded": True, "peermem_registered": registered, "dmabuf_supported": dmabuf}
    blames(check(port(0), gpu_name="NVIDIA H100 80GB HBM3", **facts), status, "loaded, but not registered")
