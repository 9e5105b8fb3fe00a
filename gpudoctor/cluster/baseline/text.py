"""A comparison with a baseline as text for people."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.baseline.compare import Comparison
from gpudoctor.report.text import laid_out, plain, status_word


def render_comparison(comparison: Comparison, *, width: int, color: bool) -> str:
    """The comparison as text."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for change in comparison.changes:
        word = Text("said", style="dim") if change.status == "said" else status_word(Status(change.status))
        table.add_row(word, plain(change.text))
    parts: list[RenderableType] = []
    if comparison.simulated:
        parts.append(plain("SIMULATED: made up, no verdict on a real machine", "bold yellow"))
    what = f"{comparison.host} against {comparison.runs} saved runs: {comparison.compared} figures compared"
    parts += [plain(what, "bold"), table if comparison.changes else plain("nothing changed")]
    parts += [plain(f"Note: {note}") for note in comparison.notes]
    worse = sum(1 for change in comparison.changes if change.what == "figure" and change.status != "said")
    said = f"{worse} of {comparison.compared} figures worse than in the saved runs" if worse else ""
    parts.append(Text.assemble(status_word(Status(comparison.verdict)), "  ", said))
    return laid_out(parts, width=width, color=color)
