"""What a check of many nodes reports about how they reach each other; the members are made up."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Literal

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.check import cluster_run
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import RdmaPort
from gpudoctor.facts.system.network import LocalInterface
from tests.cluster.puppets import Puppet, bad, findings, four, job, report_of, text_of

_SMALL_PACKETS = (LocalInterface("eth0", True, 1500, ("127.0.0.1",)),)


def test_two_machines_of_one_name_and_one_machine_given_twice_are_told() -> None:
    twins = [Puppet("same"), Puppet("same"), Puppet("other")]
    report = report_of(twins)
    assert [node.name for node in report.nodes] == ["other", "same", "same#2"]
    assert text_of(report, "cluster.nodes", "same", Status.WARN) == "2 machines have this hostname"
    twice = [Puppet("one"), Puppet("one"), Puppet("other")]
    twice[1].reach = twice[0].reach
    told = text_of(report_of(twice), "cluster.nodes", "one", Status.WARN)
    assert told == "2 of the nodes are one machine: one, one#2"
    mixed = [Puppet("same") for _ in range(3)]
    mixed[1].reach = mixed[0].reach
    found = [finding.found for check in report_of(mixed).checks for finding in check.findings]
    assert "2 machines have this hostname" in [each.text for each in found if each is not None]


def test_clock_mtu_and_rate_that_differ_from_the_majority_warn_of_that_node() -> None:
    nodes = four()
    port = RdmaPort("mlx5_0", 1, state="ACTIVE", rate_gbit_s=400.0)
    for node in nodes:
        node.reached(rdma_ports=(port,))
    nodes[0].clock_ahead_s = 40.0
    nodes[1].reached(interfaces=_SMALL_PACKETS)
    nodes[2].reached(rdma_ports=(msgspec.structs.replace(port, rate_gbit_s=100.0),))
    report = report_of(nodes)
    assert {(name, status) for _, name, status in bad(report)} == {("a", "warn"), ("b", "warn"), ("c", "warn")}
    assert text_of(report, "cluster.network", "a").startswith("its clock is 40.0 s ahead of the other nodes'")
    assert text_of(report, "cluster.network", "b") == "MTU: 1500 bytes"
    assert text_of(report, "cluster.network", "c") == "RDMA: 1 active ports at 100 Gbit/s"
    assert report.nodes[0].clock_offset_s == pytest.approx(40.0, abs=1.0)


def test_interfaces_that_nccl_and_gloo_are_told_to_use_must_be_there_on_every_node() -> None:
    nodes = job("a", "b", "c")
    for node in nodes:
        node.reached(settings={"NCCL_SOCKET_IFNAME": "eth,ib"})
    nodes[2].reached(interfaces=(LocalInterface("ens1", True, 9000, ("127.0.0.1",)),))
    report = report_of(nodes)
    assert bad(report) == {("cluster.network", "c", "fail")}
    told = findings(report, "cluster.network")["c"]
    assert told.expected is not None
    assert "one of ens1" in told.expected.text


@pytest.mark.parametrize(("backend", "status"), [("gloo", "fail"), ("auto", "warn")])
def test_a_hostname_that_leads_nowhere_fails_a_job_on_cpu_ranks_and_warns_one_on_gpus(
    backend: Literal["gloo", "auto"], status: str
) -> None:
    nodes = job("a", "b")
    nodes[0].reached(resolved=("127.0.1.1",))
    assert bad(report_of(nodes, backend=backend)) == {("cluster.network", "a", status)}


@pytest.mark.parametrize("backend", ["gloo", "auto"])
def test_a_resolver_that_gave_no_answer_is_unknown_and_no_fault_of_the_name(backend: Literal["gloo", "auto"]) -> None:
    nodes = job("a", "b")
    nodes[0].reached(resolved=Missing("resolving a took longer than 5 s", "failed"))
    report = report_of(nodes, backend=backend)
    assert bad(report) == {("cluster.network", "a", "unknown")}
    told = text_of(report, "cluster.network", "a")
    assert told == "what its hostname resolves to: resolving a took longer than 5 s"


def test_where_no_mtu_has_a_majority_all_are_told_and_nobody_is_named() -> None:
    nodes = job("a", "b")
    nodes[1].reached(interfaces=_SMALL_PACKETS)
    report = report_of(nodes)
    assert bad(report) == {("cluster.network", None, "warn")}
    assert text_of(report, "cluster.network", None) == "MTU differs: 9000 bytes on a; 1500 bytes on b"


def test_a_clock_of_the_hub_that_is_set_back_meanwhile_makes_no_node_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    set_back_s = itertools.count(0.0, 30.0)
    clock = SimpleNamespace(time=lambda: time.time() - next(set_back_s), monotonic=time.monotonic)
    monkeypatch.setattr(cluster_run, "time", clock)
    assert bad(report_of(job("a", "b", "c"))) == set()


def test_of_two_clocks_that_differ_neither_is_blamed() -> None:
    nodes = job("a", "b")
    nodes[0].clock_ahead_s = -5.0
    report = report_of(nodes)
    assert bad(report) == {("cluster.network", None, "warn")}
    assert text_of(report, "cluster.network", None) == "the clocks of the two nodes are 5.0 s apart"


def test_interfaces_and_rdma_ports_that_could_not_be_read_are_unknown_and_do_not_agree() -> None:
    nodes = job("a", "b", "c")
    broken = Missing("cannot allocate memory", "failed")
    port = RdmaPort("mlx5_0", 1, state=Missing("state reads 'x'", "failed"))
    nodes[0].reached(interfaces=broken)
    nodes[1].reached(rdma_ports=broken)
    nodes[2].reached(rdma_ports=(port,))
    report = report_of(nodes)
    assert report.verdict == "unknown"
    assert bad(report) == {("cluster.network", name, "unknown") for name in "abc"}
    found = findings(report, "cluster.network")
    assert {name: f.reason for name, f in found.items()} == {
        "a": "network interfaces: cannot allocate memory",
        "b": "RDMA ports: cannot allocate memory",
        "c": "RDMA ports: mlx5_0 port 1: state reads 'x'",
    }


def test_each_clock_that_was_not_read_is_unknown_and_those_read_are_compared() -> None:
    nodes = job("a", "b", "c")
    nodes[0].clock_ahead_s = None
    report = report_of(nodes)
    assert bad(report) == {("cluster.network", "a", "unknown")}
    assert None not in findings(report, "cluster.network")  # no "they agree"
    nodes = job("a", "b", "c")
    nodes[0].clock_ahead_s, nodes[1].clock_ahead_s = None, -5.0
    report = report_of(nodes)
    assert bad(report) == {("cluster.network", "a", "unknown"), ("cluster.network", None, "warn")}
    assert text_of(report, "cluster.network", None) == "the clocks of b and c are 5.0 s apart"
    nodes = job("a", "b")
    nodes[0].clock_ahead_s = nodes[1].clock_ahead_s = None
    assert bad(report_of(nodes)) == {("cluster.network", "a", "unknown"), ("cluster.network", "b", "unknown")}


def test_a_node_behind_address_translation_has_no_mtu_to_compare() -> None:
    nodes = job("a", "b")
    nodes[1].reached(interfaces=(LocalInterface("eth0", True, 1500, ("10.0.0.1",)),))
    report = report_of(nodes)
    assert not bad(report)
    assert list(findings(report, "cluster.network", Status.SKIP)) == ["b"]
    assert text_of(report, "cluster.network", "b").startswith("MTU: no interface has the address 127.0.0.1")
