"""`python -m tests.agent.one_round FOLDER [late|unkillable|twice] -- PROGRAM ...`: an agent's rounds for a moment."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from gpudoctor.agent import schedule
from gpudoctor.agent.state import StateDirectory, WatchedSubject
from gpudoctor.process import die_with_parent, ending
from gpudoctor.report.model import SourceSummary


async def _after(it: schedule.Schedule, runs: int) -> str:
    running = asyncio.ensure_future(it.run())
    while sum(it.scrape_figures().runs.values()) < runs:
        await asyncio.wait([running], timeout=0.01)
        if running.done():
            running.result()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return it.status().line


def main() -> None:
    """Print the node's state after one run ("twice": two)."""
    folder, *words = sys.argv[1:]
    how, program = words[: words.index("--")], words[words.index("--") + 1 :]
    if not die_with_parent.adopt_orphans():
        sys.exit(77)
    if "unkillable" in how:  # as in the kernel's D state
        ending.os.kill = lambda pid, number: None  # type: ignore[attr-defined]
        schedule.HARD_S = 0.2
    schedule.SOFT_S = 0.1
    plan = schedule.SchedulePlan(
        command=tuple(program),
        host="node7",
        source=SourceSummary("simulated", "hgx-h100-8"),
        interval_s=1.0,
        jitter_s=0.0,
        deadline_s=1.0 if "late" in how else 60.0,
        strikes=3,
    )
    it = schedule.Schedule(plan, StateDirectory(Path(folder), WatchedSubject("node7")))
    sys.stdout.write(asyncio.run(_after(it, 2 if "twice" in how else 1)))


if __name__ == "__main__":
    main()
