"""examples/condition-taint.yaml, run with the real kubectl against a few nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.kubernetes.api_server import LABEL, api_server, node
from tests.kubernetes.manifests import script_of, the
from tests.needs import needs
from tests.subprocesses import completed

pytestmark = needs("kubectl")
OURS = "gpudoctor.dev/gpu-problem"


def _round(tmp_path: Path, nodes: list[dict[str, Any]], most: str = "25") -> tuple[dict[str, list[str]], str]:
    """The taints of each node after one run of the script, and its output."""
    config = tmp_path / "kubeconfig"
    environ = {
        **os.environ,
        "KUBECONFIG": str(config),
        "MAX_PERCENT": most,
        "HOLD_OFF_S": "1800",
        "HOME": str(tmp_path),
    }
    script = script_of(the("CronJob/gpudoctor-taint"), "taint")
    with api_server(nodes, config):
        done = completed(["sh", "-c", script], env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    left = {each["metadata"]["name"]: [t["key"] for t in each["spec"].get("taints", [])] for each in nodes}
    return left, done.stdout


def test_a_node_with_the_condition_is_tainted_and_one_without_gets_its_own_taint_taken_back(tmp_path: Path) -> None:
    nodes = [
        node("well", "False"),
        node("bad", "True", "nvidia.com/gpu"),
        node("repaired", "False", "nvidia.com/gpu", OURS),
        node("passed-once", "False", OURS, since="2999-01-01T00:00:00Z"),
        node("silent", "Unknown", OURS),
        node("not-watched", None),
        *(node(f"n{i}", "False") for i in range(7)),
    ]

    left, said = _round(tmp_path, nodes)

    assert sorted(left["bad"]) == [OURS, "nvidia.com/gpu"]
    assert left["repaired"] == ["nvidia.com/gpu"]
    assert left["silent"] == left["passed-once"] == [OURS]
    assert not any(left[name] for name in ("well", "not-watched", "n0", "n1", "n2"))
    assert "is not tainted" not in said


def test_a_fault_of_all_nodes_at_once_taints_a_quarter_of_them(tmp_path: Path) -> None:
    nodes = [node(f"n{i}", "True") for i in range(8)]

    left, said = _round(tmp_path, nodes)
    again, _ = _round(tmp_path, nodes)

    assert sum(bool(taints) for taints in left.values()) == 2
    assert again == left
    assert said.count("is not tainted: 2 of 8 GPU nodes are") == 6


def test_in_a_small_cluster_one_node_may_be_tainted(tmp_path: Path) -> None:
    left, _ = _round(tmp_path, [node("a", "True"), node("b", "True")])

    assert sorted(map(len, left.values())) == [0, 1]


def test_a_cluster_without_gpu_nodes_is_left_alone(tmp_path: Path) -> None:
    left, said = _round(tmp_path, [])

    assert (left, said) == ({}, "")
    assert f"-l {LABEL}=true" in script_of(the("CronJob/gpudoctor-taint"), "taint")
