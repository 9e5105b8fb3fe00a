"""`gpudoctor cluster check` in an allocation of a real Slurm."""

from __future__ import annotations

import sys

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.check.report import ClusterReport
from tests.cluster.hosts import Hosts
from tests.cluster.slurm import Slurm, SlurmError

_CHECK = [sys.executable, "-m", "gpudoctor", "cluster", "check", "--level", "quick", "--node", "hgx-h100-8"]


@pytest.fixture(scope="module")
def slurm(module_hosts: Hosts) -> Slurm:
    slurm = Slurm(module_hosts)
    try:
        slurm.start()
    except SlurmError as error:
        pytest.skip(str(error))
    return slurm


def test_srun_checks_every_node_of_the_allocation_and_names_the_one_with_the_fault(slurm: Slurm) -> None:
    done = slurm.run(
        "salloc", "--nodes=4", "--gpus-per-node=8", *_CHECK, "--json", "--fault", "node3:xid-79@3", timeout=240
    )

    report = msgspec.json.decode(done.stdout, type=ClusterReport)
    assert (report.run.launcher, report.run.nodes_expected, report.exit_code) == ("slurm", 4, 1), done.stderr
    assert {node.name: node.verdict for node in report.nodes} == {
        "node1": "pass",
        "node2": "pass",
        "node3": "fail",
        "node4": "pass",
    }
    named = {f.subject.name for c in report.checks for f in c.findings if f.status in (Status.FAIL, Status.UNKNOWN)}
    assert named == {"node3"}
    assert done.returncode == 1
    assert "Xid 79" in report.nodes[2].reason
    slurm.wait(slurm.is_free)  # no step, and nothing of it, is left


def test_without_an_allocation_srun_makes_one_and_nodes_that_do_not_exist_end_it(slurm: Slurm) -> None:
    done = slurm.run(*_CHECK, "-N", "2", "--launcher-args=--gpus-per-node=8", timeout=240)
    assert done.returncode == 0, done.stderr
    assert "2 nodes by slurm, level quick" in done.stdout

    done = slurm.run(*_CHECK, "-N", "9", "--launcher-args=--immediate=2", timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no node came" in done.stderr
    assert "srun: error" in done.stderr
