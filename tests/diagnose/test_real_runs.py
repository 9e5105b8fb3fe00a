"""Jobs that really fail, over torchrun on CPU: `GPUDOCTOR_DIAGNOSE_RUNS=20` makes each fault twenty times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.diagnose.real_runs import FAULTS, can_limit_memory, run_job
from tests.needs import missing, needs

TIMES = int(os.environ.get("GPUDOCTOR_DIAGNOSE_RUNS", "0"))

pytestmark = pytest.mark.skipif(
    not TIMES, reason="minutes for each fault: GPUDOCTOR_DIAGNOSE_RUNS=N makes N runs of it"
)


@needs("torch")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_failure_of_a_real_job_is_found(fault: str, tmp_path: Path) -> None:
    if fault == "eat-memory" and not can_limit_memory():
        missing("control groups")
    verdicts = []
    for seed in range(TIMES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run = run_job(fault, seed, folder)
        verdicts.append((run.verdict(), run))
    assert [run for verdict, run in verdicts if verdict == "blamed"] == []
    right = [verdict for verdict, _ in verdicts].count("right")
    assert right >= 0.95 * TIMES, [(verdict, run) for verdict, run in verdicts if verdict != "right"]
