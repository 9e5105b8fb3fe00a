"""The part of the Ranks tab that shows trainings under `gpudoctor run`: each rank now, and over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content

from gpudoctor.run.live import LiveRank, LiveRun
from gpudoctor.run.observer.layout import DATA, HOST, WAIT
from gpudoctor.run.step_series import COMPUTE
from gpudoctor.text.output import printable
from gpudoctor.text.units import counted
from gpudoctor.tui.labels import graph
from gpudoctor.tui.widgets.bars import nice_limit, stacked
from gpudoctor.tui.widgets.lines import hanging

# as in the table of the report: when a rank was ready to run without a CPU is a part of its own
_SIGNS = {"compute": "█", "wait": "░", "data": "▒", "host": "╌", "no CPU": "×"}
_SEEN_MS = 0.05
_WHO_WIDTH = 10
_BAR_WIDTH_MAX = 60
_MOST_RANKS = 64
_WIDE = 100


def live_runs(runs: Sequence[LiveRun], width: int) -> Iterator[Content]:
    """Each run that goes on now; nothing if there is none."""
    for run in runs:
        steps = max(rank.steps for rank in run.ranks)
        title = f"{printable(run.program)}: {counted(len(run.ranks), 'rank')}, step {steps}"
        yield from hanging("Live run  ", title, "head", width)
        wide = width >= _WIDE
        lacked = any(rank.now is not None and sum(rank.now.queued_ms) >= _SEEN_MS for rank in run.ranks)
        names = list(_SIGNS)[: len(_SIGNS) if lacked else -1]
        tail = f"{'step ms':>9}" + ("".join(f"{name:>9}" for name in names) if wide else "") + "  over time"
        room = max(min(width - _WHO_WIDTH - len(tail) - 18, _BAR_WIDTH_MAX), 10)
        limit = nice_limit(max((rank.now.step_ms for rank in run.ranks if rank.now is not None), default=0.0))
        legend = "  ".join(f"{_SIGNS[name]} {name}" for name in names)
        yield from hanging("", f"a step of each rank now, all on one scale:  {legend}", "head", width)
        yield Content.styled(f"{'':<{_WHO_WIDTH}}|{f'0 to {limit:g} ms':<{room}}|{tail}", "quiet")
        for rank in run.ranks[:_MOST_RANKS]:
            yield Content(_line(rank, limit, room, len(names) if wide else 0))
            if rank.stands:
                yield Content.styled(f"{'':<{_WHO_WIDTH}} {printable(rank.stands)}"[:width], "warn")
        if len(run.ranks) > _MOST_RANKS:
            yield Content(f"... and {len(run.ranks) - _MOST_RANKS} more ranks")
        yield Content("")


def _line(rank: LiveRank, limit: float, room: int, shown: int) -> str:
    """Name, bar, the whole step and its first `shown` parts in figures, and the step over time."""
    name = f"rank {rank.rank}"
    if rank.now is None:
        return f"{name:<{_WHO_WIDTH}}|{'':<{room}}|{'-':>9}"
    each_ms = (rank.now.undisturbed_ms(*phases) for phases in (COMPUTE, (WAIT,), (DATA,), (HOST,)))
    parts_ms = (*each_ms, sum(rank.now.queued_ms))
    drawn = stacked(tuple(zip(parts_ms, _SIGNS.values(), strict=True)), limit, room)
    (over_time,) = graph(rank.step_ms, 0.0, max(rank.step_ms))
    figures = "".join(f"{ms:>9.1f}" for ms in (rank.now.step_ms, *parts_ms[:shown]))
    return f"{name:<{_WHO_WIDTH}}|{drawn}|{figures}  {over_time}"
