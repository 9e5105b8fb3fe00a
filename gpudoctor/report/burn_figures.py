"""What a burn showed, in lines for people."""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.facts.burn import Burn, Series, WrongResult
from gpudoctor.facts.missing import Missing

_WRONG_SHOWN = 5


def burn_lines(burn: Burn) -> list[str]:
    """The rounds, each figure early and late, what was wrong in which round, and what was counted."""
    lines = [f"  Burn: {burn.rounds} complete rounds in {burn.duration_s:.0f} s ({burn.asked_s:.0f} s asked for)"]
    by_metric: dict[str, list[Series]] = {}
    for series in burn.series:
        by_metric.setdefault(series.metric, []).append(series)
    lines += [f"    {_metric(same)}" for same in by_metric.values()]
    lines += [f"    {_wrong(wrong)}" for wrong in burn.wrong[:_WRONG_SHOWN]]
    if burn.wrong_count > _WRONG_SHOWN:
        lines.append(f"    and {burn.wrong_count - _WRONG_SHOWN} more results that were wrong")
    if not isinstance(burn.counters, Missing):
        for gpu in burn.counters:
            grown = ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in gpu.growth.items())
            lines.append(f"    GPU {gpu.index}: {grown or 'no counter read'}")
    if not isinstance(burn.kernel_events, Missing) and burn.kernel_events:
        lines.append(f"    new lines on GPUs in the kernel log: {len(burn.kernel_events)}")
    return lines


def _metric(same: Sequence[Series]) -> str:
    """One line for all ranks: the one that changed most, and how many there are."""
    most = max(same, key=lambda s: abs(s.late.median - s.early.median) / (s.early.median or 1.0))
    who = "" if most.rank is None else f" (rank {most.rank}"
    who += "" if most.rank is None else ", the most changed)" if len(same) > 1 else ")"
    return f"{most.metric}: {most.early.median:.4g} to {most.late.median:.4g} {most.unit}{who}"


def _wrong(wrong: WrongResult) -> str:
    return f"WRONG in round {wrong.round + 1} (until {wrong.at_s:.0f} s): {wrong.text}"
