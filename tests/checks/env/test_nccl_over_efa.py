"""env.nccl and network.* on nodes with Elastic Fabric Adapters."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import NcclNetPlugin, Node
from gpudoctor.facts.redaction.redact import redacted
from gpudoctor.facts.simulated.load import load_node
from tests.checks.one_check import env, expect, judge, words
from tests.narrowed import present

EFA = "aws-a100-efa-8"


def efa_node(**software: Any) -> Node:
    node = load_node(EFA)
    return replace(node, software=replace(node.software, **software))


def nccl(node: Node | None = None, **variables: str) -> CheckResult:
    node = efa_node() if node is None else node
    return judge("env.nccl", replace(node, environment=env(**variables)))


def test_a_node_with_the_plugin_passes_and_names_it() -> None:
    expect(nccl(), Status.PASS, "its plugin for the 4 EFA adapters: /opt/amazon/ofi-nccl/lib/libnccl-net.so")


def test_without_the_plugin_it_warns_with_what_to_do() -> None:
    result = nccl(efa_node(nccl_net_plugins=()))
    expect(result, Status.WARN, "no plugin", "TCP sockets", "LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib")


OFI = NcclNetPlugin("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", True)
HPCX = NcclNetPlugin("/opt/hpcx/lib/libnccl-net.so", False)
SPCX = NcclNetPlugin("/opt/hpcx/lib/libnccl-net-spcx.so", False)
UNREAD = NcclNetPlugin("/opt/x/libnccl-net.so", Missing("input/output error", "failed"))


@pytest.mark.parametrize(
    ("plugins", "setting", "status", "said"),
    [
        ((OFI,), "ofi", Status.PASS, OFI.path),
        ((OFI,), OFI.path, Status.PASS, OFI.path),
        ((OFI,), "libnccl-net-ofi.so", Status.PASS, OFI.path),
        ((OFI, HPCX), "ofi", Status.PASS, OFI.path),
        # NCCL loads libnccl-net.so by default
        ((OFI,), "", Status.WARN, f"export NCCL_NET_PLUGIN={OFI.path}"),
        ((OFI, HPCX), "", Status.WARN, f"has no use for the 4 EFA adapters: {HPCX.path}"),
        ((HPCX,), "", Status.WARN, "AWS's EFA installer"),
        # as some images set it for other networks
        ((OFI, SPCX), "spcx", Status.WARN, f"has no use for the 4 EFA adapters: {SPCX.path}"),
        ((OFI,), "spcx", Status.WARN, "NCCL_NET_PLUGIN=spcx is not found"),
        ((UNREAD,), "", Status.UNKNOWN, "input/output error"),
    ],
)
def test_the_plugin_is_the_one_that_nccl_would_load(
    plugins: tuple[NcclNetPlugin, ...], setting: str, status: Status, said: str
) -> None:
    expect(nccl(efa_node(nccl_net_plugins=plugins), **({"NCCL_NET_PLUGIN": setting} if setting else {})), status, said)


def test_where_training_does_not_run_from_here_its_plugin_is_not_looked_for() -> None:
    """The host of a container that brings torch and the plugin, and a build of torch without NCCL."""
    assert nccl(efa_node(nccl_net_plugins=(), torch=Missing("not installed", "absent"))).status is Status.PASS
    assert nccl(efa_node(nccl_net_plugins=(), torch_cuda=None)).status is Status.PASS


def test_plugins_that_could_not_be_looked_for_are_unknown_and_those_of_an_old_capture_no_matter() -> None:
    expect(nccl(efa_node(nccl_net_plugins=Missing("/etc/ld.so.cache: Input/output error", "failed"))), Status.UNKNOWN)
    assert nccl(efa_node(nccl_net_plugins=Node().software.nccl_net_plugins)).status is Status.PASS


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("FI_PROVIDER", "efa", Status.PASS),
        ("FI_PROVIDER", "EFA,tcp", Status.PASS),
        ("FI_PROVIDER", "^tcp", Status.PASS),
        ("FI_PROVIDER", "", Status.PASS),
        ("FI_PROVIDER", "tcp", Status.WARN),
        ("FI_PROVIDER", "^efa", Status.WARN),
        ("NCCL_NET", "AWS Libfabric", Status.PASS),
        ("NCCL_NET", "Socket", Status.WARN),
        ("NCCL_NET", "IB", Status.WARN),
        ("NCCL_NET_PLUGIN", "libnccl-net.so", Status.PASS),
        ("NCCL_NET_PLUGIN", "none", Status.WARN),
        # both are about NCCL's own InfiniBand transport, which no EFA uses
        ("NCCL_IB_DISABLE", "1", Status.PASS),
        ("NCCL_IB_HCA", "mlx5", Status.PASS),
    ],
)
def test_settings_are_judged_by_whether_they_turn_nccl_away_from_the_adapters(
    name: str, value: str, status: Status
) -> None:
    result = nccl(efa_node(), **{name: value})
    assert result.status is status
    assert (f"{name}={value} keeps NCCL from the 4 EFA adapters" in words(result)) is (status is Status.WARN)


def test_without_an_efa_the_same_settings_say_nothing() -> None:
    node = replace(load_node("rtx4090-4"), software=replace(load_node("rtx4090-4").software, nccl_net_plugins=()))
    assert nccl(node, FI_PROVIDER="tcp", NCCL_NET="Socket").status is Status.PASS


def test_redacted_settings_are_judged_as_before() -> None:
    for name, value in (("FI_PROVIDER", "tcp"), ("NCCL_NET", "Socket"), ("NCCL_NET_PLUGIN", "none")):
        node = redacted(replace(efa_node(), environment=env(**{name: value})))
        assert judge("env.nccl", node).status is Status.WARN, name


def test_a_plugin_is_found_in_redacted_facts_too_and_a_hidden_setting_is_not_guessed_at() -> None:
    assert "its plugin for the 4 EFA adapters" in words(judge("env.nccl", redacted(efa_node())))
    named = replace(efa_node(nccl_net_plugins=(OFI,)), environment=env(NCCL_NET_PLUGIN=OFI.path))
    expect(judge("env.nccl", redacted(named)), Status.PASS, "NCCL_NET_PLUGIN is hidden")


def test_adapters_without_a_link_of_infiniband_raise_no_alarm() -> None:
    ports = judge("network.infiniband", efa_node())
    adapters = judge("network.adapters", efa_node())
    assert (ports.status, adapters.status) == (Status.PASS, Status.PASS)
    assert "4 EFA ports active at 100 Gbit/s" in words(ports)
    assert "the EFA driver has its own way" in words(ports)
    assert "nvidia_peermem is not loaded" not in words(ports)
    assert "4 adapters without a fault in kernel log" in words(adapters)


def test_an_efa_beside_infiniband_leaves_the_verdict_on_gpudirect_to_the_latter() -> None:
    node = efa_node()
    ports = present(node.network.rdma_ports)
    mixed = (*ports, replace(ports[0], device="mlx5_0", driver="mlx5_core", link_layer="InfiniBand"))
    result = judge("network.infiniband", replace(node, network=replace(node.network, rdma_ports=mixed)))
    expect(result, Status.WARN, "GPUDirect RDMA is not possible")
