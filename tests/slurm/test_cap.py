"""The cap: how many nodes of a partition may be drained by gpudoctor, and what several at the same moment do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpudoctor.slurm import drain as drain_module
from gpudoctor.slurm.drain import DrainResult, NodeRecord, above_cap, drain, parse_node
from tests.slurm.conftest import Node


def _node(name: str, reason: str = "", state: str = "IDLE", partitions: tuple[str, ...] = ("main",)) -> NodeRecord:
    return NodeRecord(
        name, f"{state}+DRAIN" if reason else state, "gpu:8", partitions, reason, "root@2026-01-01T00:00:00"
    )


def _partition(count: int, drained: int, reason: str = "gpudoctor: FAIL x") -> list[NodeRecord]:
    return [_node("own"), *(_node(f"n{i}", reason if i < drained else "") for i in range(count - 1))]


@pytest.mark.parametrize(
    ("count", "drained", "cap", "refused"),
    [
        (4, 0, 25, False),
        (4, 1, 25, True),
        (8, 1, 25, False),
        (8, 2, 25, True),
        (500, 124, 25, False),
        (500, 125, 25, True),
        (2, 0, 25, False),
        (1, 0, 1, False),
        (2, 1, 25, True),
        (3, 2, 100, False),
    ],
)
def test_one_more_drain_is_refused_from_the_share_on_and_one_node_may_always_be_drained(
    count: int, drained: int, cap: int, refused: bool
) -> None:
    assert (above_cap(_partition(count, drained), _node("own"), cap) is not None) == refused


def test_drains_of_others_and_reasons_of_nodes_in_service_do_not_count() -> None:
    nodes = [*_partition(4, 3, "ticket 12"), NodeRecord("back", "IDLE", "", ("main",), "gpudoctor: FAIL x")]
    assert above_cap(nodes, _node("own"), 25) is None


def test_the_cap_holds_in_each_partition_of_the_node() -> None:
    own = _node("own", partitions=("large", "small"))
    nodes = [own, *(_node(f"n{i}", partitions=("large",)) for i in range(40))]
    nodes += [_node("s1", "gpudoctor: x", partitions=("small",)), _node("s2", partitions=("small",))]
    assert (
        above_cap(nodes, own, 25) == "GPUDOCTOR_DRAIN_CAP=25%: 1 of 3 nodes is drained by gpudoctor in partition small"
    )


def test_a_refused_drain_says_why_and_a_node_that_is_ours_already_may_change_its_reason(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.settings["GPUDOCTOR_DRAIN_CAP"] = "25%"
    node.nodes(("n1", "IDLE", ""), ("n2", "IDLE+DRAIN", "gpudoctor: FAIL x"), ("n3", "IDLE", ""))
    assert node.run("prolog").go_on
    assert node.updates() == []
    words = (
        "n1: not drained, GPUDOCTOR_DRAIN_CAP=25%: 1 of 3 nodes is drained by gpudoctor in partition main: gpudoctor: "
    )
    assert words in capsys.readouterr().err
    assert 'gpudoctor_slurm_withheld{hook="prolog",simulated="true"} 1' in node.state("gpudoctor_slurm_prolog.prom")

    node.nodes(("n1", "IDLE+DRAIN", "gpudoctor: FAIL y"), ("n2", "IDLE+DRAIN", "gpudoctor: FAIL x"), ("n3", "IDLE", ""))
    assert not node.run("prolog").go_on
    assert len(node.updates()) == 1


class _Slurmctld:
    """Nodes that are drained at the same moment: each read waits until all have come there.

    It makes one change after the other, as the real one does.
    """

    def __init__(self, names: list[str]) -> None:
        self.reasons = dict.fromkeys(names, "")
        self.most = 0
        self._lock = threading.Lock()
        self._barriers = threading.Barrier(len(names)), threading.Barrier(len(names))
        self._looks = threading.local()

    def read_nodes(self, name: str | None = None) -> tuple[NodeRecord, ...]:
        self._looks.count = getattr(self._looks, "count", 0) + 1
        if self._looks.count == 2:
            self._barriers[1].wait(60)
        with self._lock:
            found = tuple(_node(name, reason) for name, reason in self.reasons.items())
        if self._looks.count == 1:
            self._barriers[0].wait(60)
        return found

    def set_drain(self, name: str, reason: str) -> bool:
        with self._lock:
            self.reasons[name] = reason
            self.most = max(self.most, sum(map(bool, self.reasons.values())))
        return True

    def undo_drain(self, name: str) -> bool:
        with self._lock:
            self.reasons[name] = ""
        return True


def test_of_nodes_that_drain_at_the_same_moment_as_many_stay_as_the_cap_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{i}" for i in range(8)]
    slurmctld = _Slurmctld(names)
    for name in ("read_nodes", "set_drain", "undo_drain"):
        monkeypatch.setattr(drain_module, name, getattr(slurmctld, name))
    results: dict[str, DrainResult] = {}

    def run(name: str) -> None:
        results[name] = drain(name, "FAIL gpu.xid", 25, lambda line: None)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    stayed = sorted(name for name, reason in slurmctld.reasons.items() if reason)
    assert slurmctld.most == 8  # they did collide
    assert stayed == ["n0", "n1"]
    assert sorted(name for name, result in results.items() if result is DrainResult.OUT_OF_SERVICE) == stayed


def test_a_reason_with_brackets_equals_signs_and_fields_behind_it_is_read_whole(tmp_path: Path) -> None:
    line = (
        "NodeName=n1 Arch=x86_64 Gres=gpu:h100:8(S:0-1) State=IDLE+DRAIN ThreadsPerCore=1 Partitions=a,b "
        "Reason=gpudoctor: FAIL env State=DOWN [x@y] A=1 [root@2026-11-21T12:00:00] Comment=State=DOWN"
    )
    assert parse_node(line) == NodeRecord(
        "n1",
        "IDLE+DRAIN",
        "gpu:h100:8(S:0-1)",
        ("a", "b"),
        "gpudoctor: FAIL env State=DOWN [x@y] A=1",
        "root@2026-11-21T12:00:00",
    )
    assert parse_node("Node nowhere not found") is None
