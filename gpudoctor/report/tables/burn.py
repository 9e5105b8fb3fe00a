"""What a burn found, in words and as a table of the counters that grew."""

from __future__ import annotations

from gpudoctor.facts.model.measured_burn import Burn, WrongResult
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.tables.table import Column, Table


def wrong_text(wrong: WrongResult) -> str:
    """A result that was not the right one, with its round."""
    return f"WRONG in round {wrong.round + 1} (until {wrong.at_s:.0f} s): {wrong.text}"


def counters_table(burn: Burn) -> Table:
    """A row for each GPU: the counters that were read and how much they grew, and why others were not read."""
    rows = (
        (
            f"GPU {gpu.index}",
            ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in gpu.growth.items()),
            ", ".join(f"{name.replace('_', ' ')}: {why.reason}" for name, why in gpu.unread.items()),
        )
        for gpu in (() if isinstance(burn.counters, Missing) else burn.counters)
    )
    return Table((Column("GPU"), Column("counters that grew"), Column("not read")), tuple(rows))
