"""The Processes tab: the processes on the GPUs. It only shows them; gpudoctor never ends a user's process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import DataTable, Static

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.stream.messages import ProcessTick
from gpudoctor.report.tables.table import cell
from gpudoctor.text.output import printable
from gpudoctor.tui.labels import following
from gpudoctor.tui.panes.pane import FILTER_KEYS, FilteredPane, FilterLine, put
from gpudoctor.tui.state import State

Column = Literal["gpu", "pid", "user", "job", "memory", "cpu", "command"]
CYCLE: tuple[Column, ...] = ("gpu", "memory", "cpu", "user")


# name: (title with the unit, alignment, width; 0: the rest)
HEADINGS: dict[Column, tuple[str, Literal["left", "right"], int]] = {
    "gpu": ("GPU", "right", 4),
    "pid": ("PID", "right", 8),
    "user": ("user", "left", 9),
    "job": ("job", "left", 15),
    "memory": ("MiB", "right", 8),
    "cpu": ("CPU %", "right", 7),
    "command": ("command", "left", 0),
}
TITLES: dict[Column, str] = {"gpu": "GPU", "pid": "PID", "memory": "GPU memory", "cpu": "CPU"}
_COMMAND_WIDTH_MIN = 12
_PADDING = 1


def processes_of(state: State) -> tuple[ProcessTick, ...] | None:
    """The processes of the last tick, before the first one those of the facts; None if neither has them."""
    if state.processes is not None or state.node is None:
        return state.processes
    if all(isinstance(gpu.processes, Missing) for gpu in state.node.gpus):
        return None
    return tuple(
        ProcessTick(gpu.index, p.pid, known(p.name), p.kind, known(p.user), known(p.memory_mib))
        for gpu in state.node.gpus
        for p in known(gpu.processes) or ()
    )


def cells(process: ProcessTick) -> dict[Column, str]:
    """The text of each column; "-" if it could not be read."""
    job = process.job or ("-" if process.rank is None else "")
    rank = "" if process.rank is None else f"rank {process.rank}"
    command = process.command or process.name or "-"
    kind = "" if process.kind == "C" else f"[{process.kind}] "
    return {
        "gpu": str(process.gpu),
        "pid": str(process.pid),
        "user": printable(process.user or "-"),
        "job": printable(" ".join(word for word in (job, rank) if word)),
        "memory": cell(process.memory_mib, ".0f"),
        "cpu": cell(process.cpu_pct, ".0f"),
        "command": printable(kind + command),
    }


def ordered(processes: Iterable[ProcessTick], by: Column) -> list[ProcessTick]:
    """Sorted by a column: memory and CPU descending, all others ascending, unknown values last."""

    def key(process: ProcessTick) -> tuple[bool, float, str, int, int]:
        tail = (process.gpu, process.pid)
        if by in ("memory", "cpu"):
            value = process.memory_mib if by == "memory" else process.cpu_pct
            return (value is None, -(value or 0.0), "", *tail)
        if by in ("gpu", "pid"):
            return (False, float(process.gpu if by == "gpu" else process.pid), "", *tail)
        text = cells(process)[by]
        return (text == "-", 0.0, text.lower(), *tail)

    return sorted(processes, key=key)


def filtered(processes: Iterable[ProcessTick], pattern: str) -> list[ProcessTick]:
    """The processes that have this text (lower case) in any column."""
    return [one for one in processes if not pattern or any(pattern in text.lower() for text in cells(one).values())]


def unread(state: State) -> list[str]:
    """A line for each reason why processes could not be read, with its GPUs."""
    reasons: dict[str, list[int]] = {}
    for gpu in state.node.gpus if state.node is not None else ():
        live = state.latest.get(gpu.index)
        why = live.unread.get("processes") if live is not None else None
        if why is None and state.processes is None and isinstance(gpu.processes, Missing):
            why = gpu.processes
        if why is not None:
            reasons.setdefault(why.reason, []).append(gpu.index)
    return [
        f"GPU {', '.join(str(index) for index in indices)}: processes could not be read: {printable(reason)}"
        for reason, indices in reasons.items()
    ]


def why_empty(state: State) -> str:
    """Why the table is empty: nothing runs, or nothing could be read."""
    if state.node is None:
        return "No facts yet."
    if not state.node.gpus:
        return "No GPU is known here, so there are no processes on one."
    reported = unread(state)
    if processes_of(state) is None:
        return "\n".join(reported) or "The processes were not read yet."
    every = len(reported) == 0
    return "No process runs on any GPU." if every else "\n".join(["No process is seen on the other GPUs.", *reported])


class ProcessesPane(FilteredPane):
    """A table whose cursor stays on its process while others come and go, with the full command below."""

    DEFAULT_CSS = """
    ProcessesPane { layout: vertical; height: 1fr; }
    ProcessesPane #processes-title { height: auto; }
    ProcessesPane #processes-none { height: auto; display: none; margin: 1 0; }
    ProcessesPane DataTable { height: 1fr; }
    ProcessesPane #processes-command { height: auto; max-height: 3; }
    ProcessesPane.-none DataTable { display: none; }
    ProcessesPane.-none #processes-none { display: block; }
    """
    BINDINGS = [
        Binding("o", "next_order", "Sort"),
        *FILTER_KEYS,
    ]

    def __init__(self) -> None:
        super().__init__()
        self._order: Column = "gpu"
        self._rows: dict[str, ProcessTick] = {}  # by row key, in the order shown
        self._drawn: dict[tuple[str, Column], str] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="processes-title", markup=False)
        yield FilterLine()
        yield Static(id="processes-none", markup=False)
        yield DataTable[Text](cursor_type="row", cell_padding=_PADDING, zebra_stripes=False)
        yield Static(id="processes-command", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        # the last column takes the rest of the width
        self._listed.clear(columns=True)
        self._rows, self._drawn = {}, {}
        self._draw()

    def action_next_order(self) -> None:
        """Sort by the next of GPU, memory, CPU and user."""
        self._sort_by(following(CYCLE, self._order))

    @on(DataTable.HeaderSelected)
    def _heading(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        column = next((name for name in HEADINGS if name == event.column_key.value), None)
        if column is not None:
            self._sort_by(column)

    @on(DataTable.RowHighlighted)
    def _turned(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._draw_command()

    @property
    def _listed(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    def _sort_by(self, column: Column) -> None:
        self._order = column
        self._draw()

    def _draw(self) -> None:
        if not self.size.width:
            return
        text = self.query_one(FilterLine).pattern
        every = processes_of(self._state) or ()
        shown = ordered(filtered(every, text), self._order)
        self._draw_title(len(every), len(shown), text)
        self.set_class(not every, "-none")
        put(self.query_one("#processes-none", Static), Content(why_empty(self._state) if not every else ""))
        self._draw_rows({f"{one.gpu}:{one.pid}:{one.kind}": one for one in shown})
        self._draw_command()

    def _draw_title(self, every: int, shown: int, text: str) -> None:
        parts = ["Processes"]
        if every:
            parts = [f"{every} process{'' if every == 1 else 'es'} on GPUs, by {TITLES.get(self._order, self._order)}"]
        if text:
            parts.append(f"filter {text!r} leaves {shown} (Esc clears it)")
        lines = [Content.styled("; ".join(parts), "head")]
        if every:
            lines += [Content.styled(line, "warn") for line in unread(self._state)]
        put(self.query_one("#processes-title", Static), Content("\n").join(lines))

    def _draw_rows(self, rows: dict[str, ProcessTick]) -> None:
        table = self._listed
        if not table.columns:
            self._add_columns()
        if list(rows) != list(self._rows):
            self._replace_rows(rows)
        for key, process in rows.items():
            for column, text in cells(process).items():
                if self._drawn.get((key, column)) != text:
                    self._drawn[key, column] = text
                    table.update_cell(key, column, _cell(column, text))
        self._rows = rows

    def _replace_rows(self, rows: dict[str, ProcessTick]) -> None:
        """Replace the rows; the cursor stays on its process, or on its line if that has ended."""
        table, chosen = self._listed, self._chosen()
        line, scrolled = table.cursor_row, table.scroll_y
        table.clear()
        self._drawn = {}
        for key, process in rows.items():
            texts = cells(process)
            table.add_row(*(_cell(column, text) for column, text in texts.items()), key=key)
            self._drawn |= {(key, column): text for column, text in texts.items()}
        if rows:
            position = list(rows).index(chosen) if chosen in rows else min(line, len(rows) - 1)
            table.move_cursor(row=position, animate=False, scroll=False)
            table.scroll_to(y=scrolled, animate=False)

    def _chosen(self) -> str | None:
        line = self._listed.cursor_row
        return list(self._rows)[line] if 0 <= line < len(self._rows) else None

    def _draw_command(self) -> None:
        chosen = self._chosen()
        process = self._rows.get(chosen) if chosen is not None else None
        text = f"PID {process.pid}: {cells(process)['command']}" if process is not None else ""
        put(self.query_one("#processes-command", Static), Content(text))

    def _add_columns(self) -> None:
        taken = sum(width + 2 * _PADDING for _, _, width in HEADINGS.values())
        rest = max(self.size.width - taken - 2, _COMMAND_WIDTH_MIN)
        for name, (title, side, width) in HEADINGS.items():
            width = width or rest
            self._listed.add_column(Text(title.rjust(width) if side == "right" else title), width=width, key=name)


def _cell(column: Column, text: str) -> Text:
    """A Text, because untrusted names must not be parsed for markup."""
    return Text(text, justify=HEADINGS[column][1], no_wrap=True, overflow="ellipsis")
