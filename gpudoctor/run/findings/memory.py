"""run.memory: does a rank need more and more memory, or did it run out of it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.run.findings.balance import subject_of
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.watched import Watched, WatchedRank

_GROWTH = Limit(
    5, "% of its memory", "gpudoctor's own choice: caches and allocators settle below that", name="growth_warn"
)
_GROWTH_MIB = Limit(24, "MiB", "gpudoctor's own choice: less may be one cache that fills", name="growth_mib")
# allocators may not have settled before: the growth must be twice as large
_SETTLED_STEPS = 100
_PARTS = 8
_LEAST_STEPS = 24


def growth_mib(values: Sequence[float]) -> float | None:
    """How much memory grew over the steps, if it grew all the time and did not level off; else None.

    The median of each eighth must exceed the one before, and the second half must grow at least 0.6 x as much as the
    first: what fills a cache or settles an allocator slows down.
    """
    values = [value for value in values if value > 0]
    if len(values) < _LEAST_STEPS:
        return None
    size = len(values) // _PARTS
    parts = [median(values[n * size : (n + 1) * size]) for n in range(_PARTS)]
    rises = [after - before for before, after in pairwise(parts)]
    first, second = parts[_PARTS // 2 - 1] - parts[0], parts[-1] - parts[_PARTS // 2]
    if sum(rise > 0 for rise in rises) >= len(rises) - 1 and min(rises) >= 0 and second >= 0.6 * first:
        return values[-1] - values[0]
    return None


@run_check("run.memory", title="Memory does not grow from step to step", limits=(_GROWTH, _GROWTH_MIB))
def memory(watched: Watched) -> Iterator[Finding]:
    """Report ranks whose memory grows steadily."""
    if watched.oom_kills:
        killed = [rank for rank in watched.ranks if rank.ending == "abrupt"]
        first = min(killed, key=lambda rank: rank.ended_s or 0.0, default=None)
        subject = NODE if first is None else subject_of(watched, first)
        text = "killed by the kernel: the memory limit of its cgroup was reached"
        yield fail(
            subject,
            Found(text, watched.oom_kills, "kills"),
            "memory within the limit",
            Evidence("oom_kill of its cgroup", f"+{watched.oom_kills}"),
            likely="out of memory: the limit of the container or job is smaller than what its ranks need",
            advice=(Advice("Raise the memory limit, or use less: fewer loader workers, a smaller batch."),),
        )
        return
    ranks = [rank for rank in watched.ranks if rank.steps]
    if not ranks:
        yield skip(NODE, "no steps were seen")
        return
    grows = False
    for rank in ranks:
        values = [step.memory_mib for step in rank.steps]
        grown = growth_mib(values)
        share = _GROWTH.value / 100 * (1 if len(values) >= _SETTLED_STEPS else 2)
        if grown is not None and grown >= max(_GROWTH_MIB.value, share * values[0]):
            grows = True
            yield _growing(watched, rank, values, grown)
    if not grows:
        most = max(step.memory_mib for rank in ranks for step in rank.steps)
        yield ok(NODE, Found(f"no steady growth; at most {most:.0f} MiB in a rank", round(most, 1), "MiB"))


def _growing(watched: Watched, rank: WatchedRank, values: Sequence[float], grown: float) -> Finding:
    a_step = grown / max(1, rank.steps[-1].number - rank.steps[0].number)
    where = "GPU memory" if rank.gpu is not None else "memory"
    text = f"its {where} grows with every step: {values[0]:.0f} to {values[-1]:.0f} MiB, {a_step:.2f} MiB a step"
    return warn(
        subject_of(watched, rank),
        Found(text, round(a_step, 3), "MiB/step"),
        Expected("no steady growth"),
        likely="a memory leak: something keeps data of past steps, such as a list of losses with their graphs",
        advice=(
            Advice("Keep loss.item() or loss.detach(), not loss; clear lists and caches that grow with the steps."),
        ),
    )
