"""The Ranks tab: trainings that go on, each rank's time in the last training probe, the speed of collectives."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpudoctor.checks.core.finding import PROBLEMS, Finding
from gpudoctor.facts.model.measurements import Measurements, Training
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import Spread
from gpudoctor.report.model import Report, findings_of
from gpudoctor.report.tables.devices import STEP_PARTS, gpu_of_rank, on_cpus, step_parts_ms, training_table
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable
from gpudoctor.text.units import short_figure, size_text, time_text
from gpudoctor.tui.labels import WORDS, following, worst_first
from gpudoctor.tui.panes.checks import running_words
from gpudoctor.tui.panes.live_runs import live_runs
from gpudoctor.tui.panes.pane import DrawnPane, RunWanted, put
from gpudoctor.tui.widgets.bars import nice_limit, plot_lines, stacked
from gpudoctor.tui.widgets.lines import hanging

_SIGNS = dict(zip(STEP_PARTS, "█░▒╌", strict=True))
_PLOT_HEIGHT, _PLOT_WIDTH_MAX = 9, 100  # an odd height has a middle line to label
_BAR_WIDTH_MAX = 80
_WIDE = 100
_LOAD = (("utilization_pct", "util %"), ("power_w", "power W"), ("temperature_c", "temp C"), ("sm_mhz", "SM MHz"))
_WHAT_TO_PRESS = (
    "Nothing measured yet.",
    "r  measures collectives and a short train here",
    "R  runs all checks",
    "l  runs a level: standard trains, full measures every link and pair as well",
)


def figures(report: Report | None, node: Node | None, op: str | None, width: int, running: str = "") -> Content:
    """Everything on the tab, in lines of at most `width` characters if the words of a finding allow it.

    `running`: one line on the current run, if it puts load on ranks.
    """
    if running:
        now = list(hanging("", running, "", width))
        measured = report is not None and report.measurements.launch is not None
        before = [Content(""), figures(report, node, op, width)] if measured else []
        return Content("\n").join([*now, *before])
    if report is None:
        return Content("\n".join(_WHAT_TO_PRESS))
    measurements = report.measurements
    lines: list[Content] = [Content.styled(_where(measurements), "head")]
    if measurements.injected:
        injected = ", ".join(measurements.injected)
        lines.append(Content.styled(printable(f"INJECTED on purpose: {injected}"), "warn"))
    lines += _problems(measurements, width)
    if measurements.training is not None:
        lines += _training(report, measurements.training, node, width)
    lines += _why_not(measurements, width)
    if measurements.collectives:
        lines += [Content(""), *_busbw(measurements, op or operations(report)[0], width)]
    lines += _load(measurements, width)
    return Content("\n").join(lines)


def operations(report: Report | None) -> tuple[str, ...]:
    """The measured collectives in the order in which they ran."""
    return tuple(dict.fromkeys(row.op for row in report.measurements.collectives)) if report is not None else ()


def _where(measurements: Measurements) -> str:
    launch = measurements.launch
    if launch is None:
        return "\n".join(("No ranks have run in the last check.", *_WHAT_TO_PRESS[1:]))
    kind = f"CPU ranks ({launch.backend}), no GPU is judged by them" if on_cpus(measurements) else "GPUs"
    seconds = known(launch.total_s)
    return f"Measured on {launch.world_size} {kind}" + ("" if seconds is None else f"; took {seconds:.0f} s")


def _problems(measurements: Measurements, width: int) -> Iterator[Content]:
    """Each rank that hangs or died, in which phase, and the ranks that wait for it."""
    for problem in measurements.problems:
        who = "" if problem.rank is None else f" rank {problem.rank}"
        parts = [f"{problem.probe}: {problem.text}"]
        if problem.phase and problem.phase not in problem.text:
            parts.append(f"in {problem.phase}")
        if problem.waiting:
            parts.append(f"rank {', '.join(str(rank) for rank in problem.waiting)} waiting for it")
        yield from hanging(f"{problem.kind.upper()}{who}  ", "; ".join(parts), "unknown", width)
        for line in problem.output[-2:]:
            yield Content(printable(f"    {line}"))


def _why_not(measurements: Measurements, width: int) -> Iterator[Content]:
    for reason, names in grouped((missing.reason, name) for name, missing in measurements.not_run.items()).items():
        yield from hanging("not measured  ", f"{', '.join(names)}: {reason}", "", width)


def _training(report: Report, training: Training, node: Node | None, width: int) -> Iterator[Content]:
    yield Content(
        f"DDP train: {training.world_size} x {training.batch_per_rank} samples a step, "
        f"{training.parameters / 1e6:.2f} M parameters, {training.steps} steps"
    )
    yield from _scaling(training, report, width)
    findings = sorted((f for f in findings_of(report, "train.balance") if f.status in PROBLEMS), key=worst_first)
    yield Content("")
    yield from _bars(report.measurements, training, findings, node, width)
    for finding in findings:
        yield from _straggler(finding, width)


def _bars(
    measurements: Measurements, training: Training, findings: Sequence[Finding], node: Node | None, width: int
) -> Iterator[Content]:
    """A bar for each rank, all on one scale; a rank that a finding names is marked with its status."""
    # show the worst finding of a rank, which comes first
    uneven = {f.subject.rank: f for f in reversed(findings) if f.subject.rank is not None}
    table = training_table(training, partial(_name, measurements, node), "NaN").rows
    longest = max((len(WORDS[finding.status]) for finding in uneven.values()), default=-1)
    who_width = max((len(row[0]) for row in table), default=0) + longest + 3
    limit = nice_limit(
        max((sum(max(part, 0.0) for part in step_parts_ms(rank)) for rank in training.ranks), default=0.0)
    )
    wide = width >= _WIDE
    tail = _tail_head(wide)
    room = max(min(width - who_width - len(tail) - 2, _BAR_WIDTH_MAX), 10)
    legend = "  ".join(f"{sign} {name}" for name, sign in _SIGNS.items())
    yield Content.styled(f"a step of each rank, all on one scale:  {legend}", "head")
    yield Content.styled(f"{'':<{who_width}}|{f'0 to {limit:g} ms':<{room}}|{tail}", "quiet")
    for rank, row in zip(training.ranks, table, strict=True):
        finding = uneven.get(rank.rank)
        parts = tuple((max(ms, 0.0), sign) for ms, sign in zip(step_parts_ms(rank), _SIGNS.values(), strict=True))
        drawn = stacked(parts, limit, room)
        name = f"{'>' if finding else ' '}{row[0]} "
        word = f"{WORDS[finding.status] if finding else '':<{who_width - len(name)}}"
        tone = finding.status if finding else ""
        yield Content.assemble(name, (word, tone), f"|{drawn}|{_tail(row, wide)}")


def _name(measurements: Measurements, node: Node | None, rank: int) -> str:
    gpu = gpu_of_rank(measurements, node, rank)
    return f"rank {rank}" + (f" (GPU {gpu})" if gpu is not None else "")


def _tail_head(wide: bool) -> str:
    """The headings of the figures beside a bar; a narrow screen has only the most important."""
    more = f"{'compute':>9}{'wait':>8}{'data':>8}{'other':>8}" if wide else ""
    return f"{more}{'timed ms':>9}{'loss':>14}" + (f"{'peak MiB':>10}" if wide else "")


def _tail(row: tuple[str, ...], wide: bool) -> str:
    _, compute, wait, data, other, step, _, peak, first, last = row
    more = f"{compute:>9}{wait:>8}{data:>8}{other:>8}" if wide else ""
    return f"{more}{step:>9}{f'{first}->{last}':>14}" + (f"{peak:>10}" if wide else "")


def _straggler(finding: Finding, width: int) -> Iterator[Content]:
    reported = finding.found.text if finding.found else finding.reason or ""
    head = f"{WORDS[finding.status]} train.balance  "
    yield from hanging(head, f"{finding.subject.label}: {reported}", finding.status, width)
    rows = [("expected", finding.expected.text)] if finding.expected else []
    rows += [("likely", finding.likely)] if finding.likely else []
    rows += [("explained by", finding.explained_by)] if finding.explained_by else []
    rows += [("evidence", f"{one.source}: {one.value}") for one in finding.evidence]
    for name, text in rows:
        yield from hanging(f"  {name:<14}", text, "quiet", width)


def _scaling(training: Training, report: Report, width: int) -> Iterator[Content]:
    parts = []
    rate, step_ms = known(training.samples_per_s), known(training.steady_step_ms)
    parts += [f"{rate:.0f} samples/s"] if rate is not None else []
    parts += [f"{step_ms:.2f} ms a plain step"] if step_ms is not None else []
    alone = training.solo_step_ms
    parts.append(f"alone: {alone.reason}" if isinstance(alone, Missing) else f"{alone:.2f} ms with one rank alone")
    yield from hanging("Speed    ", ", ".join(parts), "", width)
    for finding in findings_of(report, "train.scaling"):
        text = finding.found.text if finding.found else finding.reason
        if text:
            yield from hanging("Scaling  ", f"{WORDS[finding.status]}  {text}", "", width)


def _busbw(measurements: Measurements, op: str, width: int) -> Iterator[Content]:
    """A plot of one operation and a table of all."""
    done = measurements.collectives
    rows = sorted((row for row in done if row.op == op), key=lambda row: row.size_bytes)
    who = ", CPU ranks: not judged" if on_cpus(measurements) else ""
    title = f"busbw of {op} in {rows[0].dtype if rows else '-'}, GB/s by message size{who} (m: next operation)"
    yield Content.styled(title, "head")
    # the same axis for all operations makes them comparable
    limit = nice_limit(max((row.busbw_gb_s for row in done), default=0.0))
    points = [(float(row.size_bytes), row.busbw_gb_s) for row in rows]
    labels = [size_text(_round_size(row.size_bytes)) for row in rows]
    plotted = plot_lines(points, labels, min(width - 1, _PLOT_WIDTH_MAX), _PLOT_HEIGHT, limit)
    yield from (Content(line) for line in plotted)
    yield Content.styled(f"{'operation':<15}{'size':>10}{'busbw GB/s':>12}{'time':>12}{'+-':>10}", "head")
    for row in done:
        wrong = f"  WRONG on rank {', '.join(map(str, row.wrong_ranks))}" if row.wrong_ranks else ""
        wrong += f"  without rank {', '.join(map(str, row.missing_ranks))}" if row.missing_ranks else ""
        text = f"{row.op:<15}{size_text(_round_size(row.size_bytes)):>10}{short_figure(row.busbw_gb_s):>12}"
        text += f"{time_text(row.time_us, exact=True):>12}{time_text(row.time_us_mad, exact=True):>10}"
        yield Content.assemble((text, "head" if row.op == op else ""), (wrong, "fail"))


def _round_size(size_bytes: int) -> int:
    # sizes that must be divisible by the number of ranks are a few bytes below a power of two
    near = 1 << max(size_bytes.bit_length() - 1, 0)
    return next((size for size in (near, near * 2) if abs(size - size_bytes) <= size // 64), size_bytes)


def _load(measurements: Measurements, width: int) -> Iterator[Content]:
    """The driver's readings of each GPU during the training probe: lowest, median and highest."""
    for telemetry in measurements.telemetry:
        if telemetry.during != "train" or not telemetry.gpus:
            continue
        yield Content("")
        ended = f"; sampling ended early: {telemetry.ended}" if telemetry.ended else ""
        yield from hanging("", f"GPUs during the train: low / median / high{ended}", "head", width)
        names = _LOAD if width >= _WIDE else _LOAD[:3]
        yield Content(f"{'':<7}{''.join(f'{title:>17}' for _, title in names)}   clocks held by")
        for gpu in telemetry.gpus:
            cells = "".join(f"{_spread(gpu.readings.get(name)):>17}" for name, _ in names)
            held = ", ".join(f"{reason} {share:.0%}" for reason, share in gpu.event_share.items() if reason != "idle")
            yield from hanging(f"GPU {gpu.index:<3}{cells}   ", held or ("-" if not gpu.readings else ""), "", width)


def _spread(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.low:.0f} / {spread.median:.0f} / {spread.high:.0f}"


class RanksPane(DrawnPane):
    """The figures of the report's ranks as scrolling text."""

    DEFAULT_CSS = """
    RanksPane { height: 1fr; }
    RanksPane #ranks-figures { height: auto; width: 1fr; }
    """
    BINDINGS = [Binding("m", "next_operation", "Operation"), Binding("r", "measure", "Measure ranks")]
    _operation: str | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True):
            yield Static(id="ranks-figures", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def action_next_operation(self) -> None:
        """Plot the next measured collective."""
        if names := operations(self._state.report):
            self._operation = following(names, self._operation if self._operation in names else names[0])
            self._draw()

    def action_measure(self) -> None:
        self.post_message(RunWanted(("collective", "train"), "standard"))

    def _draw(self) -> None:
        if not self.size.width:
            return
        names = operations(self._state.report)
        op = self._operation if self._operation in names else None
        # the scroll bar takes two columns
        run = self._state.running
        running = running_words(run, time.time()) if run is not None and run.level != "quick" else ""
        width = self.size.width - 2
        drawn = figures(self._state.report, self._state.node, op, width, running)
        lines = (*live_runs(self._state.live_runs, width), drawn)
        put(self.query_one("#ranks-figures", Static), Content("\n").join(lines))
