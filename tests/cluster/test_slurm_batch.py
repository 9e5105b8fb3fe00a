"""contrib/slurm/check-nodes.sbatch without a Slurm: which nodes it lists as without a report, and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.fleet_reports import report, write
from tests.cluster.slurm import HOOKS
from tests.conftest import ROOT


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Programs that the script finds: a scontrol that knows node1 and node2, and this checkout's gpudoctor."""
    _script(tmp_path / "scontrol", "printf 'node1\\nnode2\\n'")
    _script(tmp_path / "gpudoctor", f'PYTHONPATH={ROOT} exec {sys.executable} -m gpudoctor "$@"')
    return tmp_path


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _job(bench: Path, *answering: str) -> subprocess.CompletedProcess[str]:
    """The batch script, with an srun that gets a report of these nodes only."""
    later = [write(bench / "later" / f"{n}.json", report(n, at="2025-11-03T22:00:00+00:00")) for n in answering]
    _script(bench / "srun", "\n".join(f'cp {file} "$folder/"' for file in later))
    (bench / "defaults").write_text(f"GPUDOCTOR={bench}/gpudoctor\n")
    return subprocess.run(
        ["bash", HOOKS / "check-nodes.sbatch", bench / "reports"],
        env=os.environ
        | {"PATH": f"{bench}:{os.environ['PATH']}", "GPUDOCTOR_DEFAULTS": str(bench / "defaults")}
        | {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_node_with_a_report_is_0(bench: Path) -> None:
    done = _job(bench, "node1", "node2")
    assert (done.returncode, "no report" in done.stdout) == (0, False)


def test_a_report_that_an_earlier_job_left_is_none_of_this_one(bench: Path) -> None:
    for name in ("node1", "node2"):
        write(bench / "reports" / f"{name}.json", report(name, at="2025-11-03T21:00:00+00:00"))
    done = _job(bench, "node1")
    assert "no report from node2\n" in done.stdout
    assert done.returncode == 3


def test_where_the_nodes_are_not_told_nothing_passes(bench: Path) -> None:
    _script(bench / "scontrol", "exit 1")
    assert _job(bench, "node1", "node2").returncode == 3
