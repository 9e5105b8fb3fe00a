"""How the tests of this room run probes, and how they see that nothing is left of a run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.probes.runner.launch import ProbePlan, run_probes

# Far more than a run needs, for the sake of a loaded machine; only runs that hang wait for a deadline.
DEADLINE_S = 120.0
# A rank that is ended obeys in 2 s; where the machine stalls it may take a multiple. One that is left stays for ever.
GONE_WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of this test make their private directories."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def measure(plan: ProbePlan, *, deadline_s: float = DEADLINE_S, probe_deadline_s: float = DEADLINE_S) -> Measurements:
    """Run the plan; no process and no open file of it may be left afterwards."""
    me = psutil.Process()
    before, files_before = set(me.children(recursive=True)), me.num_fds()
    measurements = run_probes(plan, deadline_s=deadline_s, probe_deadline_s=probe_deadline_s)
    left = set(me.children(recursive=True)) - before
    assert not left, f"processes left behind: {left}"
    assert me.num_fds() == files_before, "pipes left open"
    return measurements
