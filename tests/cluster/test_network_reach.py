"""How a node is reached: the reader's facts, and the verdict on settings that leave gloo without a route."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from unittest.mock import Mock

import msgspec
import psutil
import pytest

from gpudoctor.cluster.check.network_findings import gloo_trouble, interface_for_gloo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system import network
from gpudoctor.facts.system.network import LocalInterface, Reach, own_addresses, read_reach
from tests.narrowed import missing

_NODE = Reach(
    hostname="n1",
    resolved=("10.0.0.1",),
    interfaces=(
        LocalInterface("eth0", True, 1500, ("10.0.0.1", "fe80::1")),
        LocalInterface("lo", True, 65536, ("127.0.0.1",)),
    ),
)


def with_(node: Reach, **changes: object) -> Reach:
    return msgspec.structs.replace(node, **changes)


def test_this_machine_has_a_loopback_interface_and_a_boot_id() -> None:
    reach = read_reach()
    loopback = reach.interface_of("127.0.0.1")
    assert reach.hostname == socket.gethostname()
    assert loopback is not None
    assert (loopback.name, loopback.up) == ("lo", True)
    assert isinstance(reach.boot_id, str)
    assert not any(address.startswith("127.") for address in own_addresses())


def test_only_the_settings_of_between_nodes_are_kept(tmp_path: Path) -> None:
    environment = {"NCCL_SOCKET_IFNAME": "ib0", "SECRET": "x", "GLOO_SOCKET_IFNAME": ""}
    reach = read_reach(tmp_path, environment)
    assert reach.settings == {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": ""}
    assert isinstance(reach.boot_id, Missing)


def test_a_name_that_does_not_resolve_is_a_missing_fact_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n7")
    for error, kind in (
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "absent"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "failed"),
    ):
        monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=error))
        resolved = read_reach().resolved
        assert isinstance(resolved, Missing)
        assert (resolved.kind, resolved.reason) == (kind, f"n7 does not resolve: {error.strerror}")


def test_a_resolver_that_does_not_answer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(network, "_RESOLVER_LIMIT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60) and [])
    resolved = read_reach().resolved
    released.set()
    assert "took longer than 0.05 s" in missing(resolved).reason


def test_where_no_thread_can_be_started_the_name_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    resolved = read_reach().resolved
    assert missing(resolved).reason == f"resolving {socket.gethostname()}: can't start new thread"


def test_interfaces_that_the_kernel_does_not_tell_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(psutil, "net_if_addrs", denied)
    reach = read_reach()
    assert isinstance(reach.interfaces, Missing)
    assert reach.interface_of("127.0.0.1") is None
    assert own_addresses() == []


def test_gloos_own_choice_stands_where_it_works() -> None:
    for reach in (
        _NODE,
        with_(_NODE, settings={"GLOO_SOCKET_IFNAME": "eth0"}, resolved=("127.0.1.1",)),
        with_(_NODE, resolved=("127.0.1.1", "10.0.0.1")),
        with_(_NODE, settings={"GLOO_SOCKET_IFNAME": "eth7"}, interfaces=Missing("not told", "failed")),
    ):
        assert gloo_trouble(reach) is None
        assert interface_for_gloo(reach, "10.0.0.1") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resolved": ("127.0.1.1",)}, "resolves to 127.0.1.1"),
        ({"resolved": ("::1",)}, "resolves to ::1"),
        ({"resolved": ("::ffff:127.0.0.1",)}, "resolves to ::ffff:127.0.0.1"),
        ({"resolved": Missing("n1 does not resolve", "absent")}, "does not resolve"),
        ({"settings": {"GLOO_SOCKET_IFNAME": "eth0,ib0"}}, "there is no interface ib0"),
        ({"settings": {"GLOO_SOCKET_IFNAME": "lo"}}, "is the loopback interface"),
    ],
)
def test_where_gloo_would_be_led_nowhere_the_interface_that_was_reached_is_taken(
    changes: dict[str, object], words: str
) -> None:
    reach = with_(_NODE, **changes)
    assert words in str(gloo_trouble(reach))
    assert interface_for_gloo(reach, "10.0.0.1") == "eth0"
    assert interface_for_gloo(reach, "10.9.9.9") is None


def test_a_resolver_that_gave_no_answer_says_nothing_against_the_name_and_gloo_is_not_left_to_it() -> None:
    late = Missing("resolving n1 took longer than 5 s", "failed")
    reach = with_(_NODE, resolved=late)
    assert gloo_trouble(reach) == late
    assert interface_for_gloo(reach, "10.0.0.1") == "eth0"
    named = with_(reach, settings={"GLOO_SOCKET_IFNAME": "eth0"})
    assert interface_for_gloo(named, "10.0.0.1") is None
