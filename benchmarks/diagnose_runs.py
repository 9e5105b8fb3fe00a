"""How often `gpudoctor diagnose` is right about jobs that really fail, over torchrun on CPU.

    python -m benchmarks.diagnose_runs 5 [FAULT...]        # each fault five times

GPUDOCTOR_KEEP_RUNS=DIR keeps the logs of those that were not right.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.diagnose.asking import answer_of, said
from tests.diagnose.real_runs import FAULTS, Run, can_limit_memory, run_job


def main(times: int, faults: list[str]) -> None:
    """Print the wrong diagnoses and the totals."""
    sums: Counter[str] = Counter()
    for fault in faults or list(FAULTS):
        if fault == "eat-memory" and not can_limit_memory():
            print(f"{fault:13} skipped: no memory cgroup can be made here")
            continue
        verdicts = Counter(_verdict(fault, seed) for seed in range(times))
        print(f"{fault:13} {verdicts['right']} of {times} right", flush=True)
        sums += verdicts
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(sums.items())), "of", sums.total())


def _verdict(fault: str, seed: int) -> str:
    with tempfile.TemporaryDirectory(prefix="gpudoctor-run-") as made:
        folder = Path(made) / f"{fault}-{seed}"
        folder.mkdir()
        run = run_job(fault, seed, folder)
        verdict = run.verdict()
        if verdict != "right":
            _show(run, seed, folder)
    return verdict


def _show(run: Run, seed: int, folder: Path) -> None:
    what, rank = said(answer_of(folder))
    where = f"rank {run.rank} of {run.world} at step {run.at}, {run.layout}"
    print(f"{run.fault:13} {seed}: {where}: said {what}, rank {rank}", flush=True)
    if keep := os.environ.get("GPUDOCTOR_KEEP_RUNS"):
        folder.rename(Path(keep) / folder.name)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
