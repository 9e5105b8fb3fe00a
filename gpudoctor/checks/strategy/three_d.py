"""strategy.3d: do data, tensor and pipeline parallelism together train correctly here?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, ok, skip
from gpudoctor.checks.core.probe_outcome import ranks_in_words
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.strategy.agreement import FP32_ERROR, judged_strategy, runs_of, strategy_check


@strategy_check("3d", "Data, tensor and pipeline parallelism together train what one rank alone trains", (FP32_ERROR,))
def three_d(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate under data x tensor x pipeline; report the split."""
    yield from judged_strategy(
        case, "3d", "data x tensor x pipeline", likely="a group of ranks that exchanged with the wrong members"
    )
    for run in runs_of(case, "3d"):
        copies, shards, stages = (run.figures.get(name, 0) for name in ("data", "shards", "stages"))
        if copies == 1:
            ranks, split = ranks_in_words(case, len(run.ranks)), f"tensor {shards:g} x pipeline {stages:g}"
            yield skip(NODE, f"{ranks}: a split in two dimensions was run, {split}; all three need 8")
        elif copies:
            yield ok(NODE, f"{run.variant}: data {copies:g} x tensor {shards:g} x pipeline {stages:g}")
