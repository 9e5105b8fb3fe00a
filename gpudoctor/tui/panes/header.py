"""The lines around the panes: source and verdict, alerts, and the position in a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from textual import events
from textual.message import Message

from gpudoctor import __version__
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_pattern
from gpudoctor.report.model import Report
from gpudoctor.text.output import printable
from gpudoctor.tui.labels import clock
from gpudoctor.tui.panes.pane import DrawnLines
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import Lines, Run, length, row

_MAKER = lazy_pattern(r"^(NVIDIA|Tesla)\s+(?=\S)")
_DRIVER_SILENT = "driver not answering: "


class HeaderLine(Lines):
    """The first line. On a narrow terminal it drops, in this order: driver, number of skips, version, GPUs, clock,
    program name, label. Tags (SIMULATED, INJECTED ...) and the verdict are always shown."""

    _shown: tuple[State, float] | None = None

    def show(self, state: State, now_s: float) -> None:
        self._shown = state, now_s
        self.on_resize()

    def on_resize(self) -> None:
        if self._shown is not None and self.size.width:
            self.show_rows([row(*header_runs(*self._shown, self.size.width))])


class AlertLine(Lines):
    """Shown only if data is missing, if verdicts may be out of date, or while a check above level quick runs."""

    def show(self, state: State) -> None:
        text, kind = alert(state)
        self.set_class(bool(text), "-shown")
        self.set_class(kind == "trouble", "-trouble")
        self.set_class(kind == "hint", "-hint")
        self.show_rows([row(f" {text}")])


def header_runs(state: State, now_s: float, width: int) -> list[Run]:
    """The runs that fit into `width`."""
    node = state.node
    version: Run = (f" gpudoctor {__version__}", "title")
    tags = [(f" {tag} ", "tag") for tag in tags_of(state)]
    at_s = state.playback.at_s if state.playback is not None else now_s
    parts: dict[str, list[Run]] = {
        "name": [version],
        "label": [(printable(state.label), "strong")],
        "gpus": [(gpus_in_words(node), "")] if node is not None else [],
        "driver": [(f"driver {driver}", "")] if node is not None and (driver := driver_of(node)) else [],
        "tags": [run for tag in tags for run in (tag, (" ", ""))][:-1],
    }
    right: dict[str, list[Run]] = {
        "verdict": verdict_runs(state, with_skip=True),
        "clock": [(f"{clock(at_s)} ", "dim")],
    }
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: parts.pop("driver"),
        lambda: right.update(verdict=verdict_runs(state, with_skip=False)),
        lambda: parts.update(name=[(" gpudoctor", "title")]),
        lambda: parts.pop("gpus"),
        lambda: right.pop("clock"),
        lambda: parts.pop("name"),
        lambda: parts.pop("label"),
    ]
    left_runs: list[Run] = []
    right_runs: list[Run] = []
    for give_way in steps:
        give_way()
        left_runs, right_runs = _spaced(parts), _spaced(right)
        if length(left_runs) + length(right_runs) + 2 <= width:
            break
    blanks = max(1, width - length(left_runs) - length(right_runs))
    return [*left_runs, (" " * blanks, ""), *right_runs]


def _spaced(parts: dict[str, list[Run]]) -> list[Run]:
    runs: list[Run] = []
    for part in parts.values():
        if part:
            runs += [("  ", ""), *part] if runs else part
    return runs


def tags_of(state: State) -> list[str]:
    """Tags that keep the screen from being mistaken for this machine as it is."""
    tags = ["SIMULATED"] if state.simulated else []
    if state.report is not None and state.report.run.injected:
        tags.append("INJECTED")
    if state.playback is not None:
        tags.append("PLAYBACK")
    if state.read_only:
        tags.append("READ-ONLY")
    return tags


def gpus_in_words(node: Node) -> str:
    """ "8 x H100 80GB HBM3"; each model of a mixed node."""
    models = Counter(_MAKER.sub("", printable(known(gpu.name) or "unknown GPU")) for gpu in node.gpus)
    return ", ".join(f"{count} x {name}" for name, count in models.items()) or "no GPU shown"


def driver_of(node: Node) -> str | None:
    return known(node.driver.library_version) or known(node.driver.module_version)


def verdict_runs(state: State, *, with_skip: bool) -> list[Run]:
    """Whether a check is running, and the counts of the newest report."""
    running: list[Run] = [("running", "warn")] if state.running is not None else []
    if state.report is None:
        return running or [("not checked yet", "dim")]
    return [*running, *([(" ", "")] if running else []), *report_runs(state.report, with_skip=with_skip)]


def report_runs(report: Report, *, with_skip: bool) -> list[Run]:
    """ "1 FAULT  2 warn  31 ok  3 skip"; most serious first, zero counts left out except that of ok."""
    counts, faults = report.counts, len(report.faults)
    of_failures = (faults, f"FAULT{'S' if faults > 1 else ''}") if faults else (counts.fail, "FAIL")
    runs: list[Run] = [
        (f"{count} {word}", tone)
        for count, word, tone in (
            (*of_failures, "fail"),  # without a fault, failures that a finding explains which is no fault itself
            (counts.unknown, "unknown", "unknown"),
            (counts.warn, "warn", "warn"),
            (counts.passed, "ok", "ok" if counts.passed else "dim"),
            (counts.skip if with_skip else 0, "skip", "dim"),
        )
        if count or word == "ok"
    ]
    return [run for each in runs for run in ((" ", ""), each)][1:]


def alert(state: State) -> tuple[str, str]:
    """The text and kind of the alert line, in this priority: trouble, the running check, the hint."""
    if state.trouble is not None:
        since = clock(state.trouble_since_s) if state.trouble_since_s is not None else "?"
        why = printable(state.trouble)
        if why.startswith(_DRIVER_SILENT):
            return f"driver not answering since {since}: {why[len(_DRIVER_SILENT) :]}", "trouble"
        return f"no data since {since}: {why}", "trouble"
    # a quick run is over before its line could be read
    if state.running is not None and state.running.level != "quick":
        what = ", ".join(state.running.only) or "all checks"
        progress = f": {printable(state.running.progress)}" if state.running.progress else ""
        return f"running {what}, level {state.running.level}{progress}   c cancels", "run"
    return (state.hint, "hint") if state.hint else ("", "")


@dataclass
class Sought(Message):
    """The user clicked on this time (Unix time)."""

    at_s: float


class TimeSlider(DrawnLines):
    """The position in a recording; a click seeks to the time under it."""

    _line = (0, 0)
    _times = (0.0, 0.0)

    def show(self, state: State) -> None:
        self.set_class(state.playback is not None, "-shown")
        super().show(state)

    def _draw(self, state: State, width: int, height: int) -> None:
        playback = state.playback
        if playback is None:
            return
        sign = "paused " if playback.paused else "playing"
        left = f" {sign} {clock(playback.at_s)} "
        right = f" {clock(playback.end_s)}  x{playback.speed:g}  space -/+ left/right "
        if width < 70:
            right = f" x{playback.speed:g} "
        width = max(1, width - len(left) - len(right))
        length_s = playback.end_s - playback.begin_s
        share = (playback.at_s - playback.begin_s) / length_s if length_s > 0 else 1.0
        position = round(share * (width - 1))
        self._line, self._times = (len(left), width), (playback.begin_s, playback.end_s)
        done, rest = "━" * position, "─" * (width - 1 - position)
        self.show_rows([row((left, "strong"), (done, "bar"), ("█", "strong"), (rest, "rest"), (right, "dim"))])

    def on_click(self, event: events.Click) -> None:
        start, width = self._line
        if width > 1 and start <= event.x < start + width:
            begin_s, end_s = self._times
            self.post_message(Sought(begin_s + (end_s - begin_s) * (event.x - start) / (width - 1)))
