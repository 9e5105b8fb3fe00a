"""A real Ray cluster of four nodes on this machine: one check a node, on all of its GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.check.model import ClusterReport
from tests.needs import needs
from tests.subprocesses import completed

# the cluster runs in a separate process: it starts 26, with warnings that pytest makes errors here
_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
head = dict(num_cpus=0, num_gpus=0, include_dashboard=False, object_store_memory=80 * 2**20)
cluster = Cluster(initialize_head=True, head_node_args=head)
for _ in range(4):
    cluster.add_node(num_cpus=1, num_gpus=8, object_store_memory=80 * 2**20)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.mark.wide
@needs("ray")
def test_ray_runs_one_check_a_node_and_says_that_its_nodes_are_one_machine(tmp_path: Path) -> None:
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", _CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        assert address, "Ray did not start"
        command = [sys.executable, "-m", "gpudoctor", "cluster", "check", "--node", "hgx-h100-8", "--level", "quick"]
        done = completed([*command, "--json", "--reports", str(tmp_path)], env={**env, "RAY_ADDRESS": address})
        cluster.communicate()

    report = msgspec.json.decode(done.stdout, type=ClusterReport)
    assert (report.run.launcher, report.run.nodes_expected, done.returncode) == ("ray", 4, 0), done.stderr
    assert [(node.verdict, node.gpus) for node in report.nodes] == [("pass", 8)] * 4
    names = [node.name for node in report.nodes]
    assert names == [names[0], f"{names[0]}#2", f"{names[0]}#3", f"{names[0]}#4"]
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(names)
    told: list[Any] = [f for check in report.checks for f in check.findings if f.status is Status.WARN]
    assert [finding.found.text for finding in told] == [f"4 of the nodes are one machine: {', '.join(names)}"]
    seen = {gpus_of(tmp_path / f"{name}.json") for name in names}
    assert seen == {"0,1,2,3,4,5,6,7"}, "Ray gives each check all the GPUs of its node"


def gpus_of(report: Path) -> str | None:
    """CUDA_VISIBLE_DEVICES of the process that checked."""
    facts = msgspec.json.decode(report.read_bytes())["facts"]
    return next((v["value"] for v in facts["environment"]["variables"] if v["name"] == "CUDA_VISIBLE_DEVICES"), None)
