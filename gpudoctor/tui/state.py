"""Everything the screen shows, in one place: handlers change it, widgets only draw it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from gpudoctor.checks.core.finding import Finding
from gpudoctor.checks.core.registry import Level
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.stream.messages import WATCHED, GpuTick, HostTick, Opening, ProcessTick, Tick, WatchLine
from gpudoctor.report.gpu_health import health_of, problems_of
from gpudoctor.report.model import Report
from gpudoctor.run.live import LiveRun
from gpudoctor.tui.labels import clock

HISTORY_TICKS = 600
LOG_LINES = 2000
RUNS_KEPT = 100
# bounds, because another machine may send anything and any amount
MOST_GPUS, MOST_NAMES, LONGEST_LINE = 1024, 64, 2000
LogKind = Literal["kernel", "driver", "run", "note"]


@dataclass(frozen=True)
class FeedFailure:
    """The source ended, could not be started or is silent; `since_s` is Unix time."""

    why: str
    since_s: float


@dataclass(frozen=True)
class LogLine:
    """One event at a Unix time; `kind` names its source."""

    at_s: float
    kind: LogKind
    text: str


@dataclass(frozen=True)
class FinishedRun:
    """One finished `gpudoctor check` of the screen. Without a report, `report` is None and `error` gives the reason."""

    at_s: float
    only: tuple[str, ...]
    level: Level
    report: Report | None
    error: str | None = None


@dataclass
class Running:
    """The running check: its arguments, its start (Unix time) and its last progress message.

    `ends_s`: when it will usually be over (Unix time), None if unknown.
    """

    only: tuple[str, ...]
    level: Level
    since_s: float
    progress: str = ""
    ends_s: float | None = None


@dataclass
class Playback:
    """The position in a recorded stream: its begin and end, the current time (Unix times), speed and pause."""

    begin_s: float
    end_s: float
    at_s: float
    speed: float = 1.0
    paused: bool = False


@dataclass
class State:
    """What is known now.

    `label` names the source in the header; `simulated`: it is no real node. `latest` merges the ticks
    of each GPU, so that readings taken only now and then stay. `lost`: GPUs of the facts that are missing in
    the last tick. `trouble`: why no data arrives, since `trouble_since_s` (Unix time). `report` is the newest
    report, `base` the saved one that the user loaded to compare with. `hint`: why the verdicts may be out of date.
    `live_runs`: trainings under `gpudoctor run` that go on now.
    """

    label: str = ""
    simulated: bool = False
    read_only: bool = False
    opening: Opening | None = None
    tick: Tick | None = None
    latest: dict[int, GpuTick] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    host: HostTick | None = None
    processes: tuple[ProcessTick, ...] | None = None
    history: dict[tuple[int, str], deque[tuple[float, float]]] = field(default_factory=dict)
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    trouble: str | None = None
    trouble_since_s: float | None = None
    report: Report | None = None
    base: Report | None = None
    runs: list[FinishedRun] = field(default_factory=list)
    running: Running | None = None
    playback: Playback | None = None
    selected_gpu: int = 0
    hint: str | None = None
    live_runs: tuple[LiveRun, ...] = ()
    _event_in_run: bool = False

    @property
    def level(self) -> Level:
        """The level of the current or last run of all checks; quick before the first."""
        if self.running is not None and not self.running.only:
            return self.running.level
        return next((run.level for run in reversed(self.runs) if not run.only), "quick")

    @property
    def node(self) -> Node | None:
        return self.opening.node if self.opening is not None else None

    def gpu(self, index: int | None) -> Gpu | None:
        """The facts of this GPU (NVML index), None if it is not in the facts."""
        return next((gpu for gpu in self.node.gpus if gpu.index == index), None) if self.node is not None else None

    def receive(self, line: WatchLine | FeedFailure) -> None:
        """Add what a feed has yielded."""
        if isinstance(line, FeedFailure):
            self.silent(line.why, line.since_s)
        elif isinstance(line, Opening):
            self.open(line)
        else:
            self.take(line)

    def open(self, opening: Opening) -> None:
        """Set the facts; a selected GPU that they do not contain is replaced by their first one."""
        self.opening = opening
        self.simulated = opening.node.source.kind == "simulated"
        indices = [gpu.index for gpu in opening.node.gpus]
        if self.selected_gpu not in indices:
            self.selected_gpu = indices[0] if indices else 0

    def take(self, tick: Tick) -> None:
        """Add one tick: the newest readings, the history, kernel lines, and whether the driver responds."""
        self.tick = tick
        lost_before = self.lost
        for sample in tick.gpus[:MOST_GPUS]:
            if sample.gpu not in self.latest and len(self.latest) >= MOST_GPUS:
                continue
            self.latest[sample.gpu] = _merged(self.latest.get(sample.gpu), sample)
            for name in WATCHED:
                value = sample.readings.get(name)
                if value is None:
                    continue
                series = self.history.setdefault((sample.gpu, name), deque(maxlen=HISTORY_TICKS))
                series.append((tick.at_s, value))
        if self.node is not None and tick.silence is None:
            self.lost = frozenset(gpu.index for gpu in self.node.gpus) - {sample.gpu for sample in tick.gpus}
        self.host = tick.host or self.host
        self.processes = self.processes if tick.processes is None else tick.processes
        for event in tick.kernel:
            self.log.append(LogLine(tick.at_s, "kernel", event.text[:LONGEST_LINE]))
        if tick.silence is None:
            self.answered(tick.at_s)
        else:
            self.silent(f"driver not answering: {tick.silence.why}", tick.silence.since_s)
        if self.report is not None and self.playback is None:
            self._date_checks(tick, self.lost - lost_before)

    def _date_checks(self, tick: Tick, lost: frozenset[int]) -> None:
        """Note a kernel line or a lost GPU that the checks cannot have seen."""
        when = clock(tick.at_s)
        if tick.kernel and all(event.kind == "gap" for event in tick.kernel):
            event = f"kernel lines were lost at {when}"
        elif tick.kernel:
            event = f"a kernel line at {when} names a GPU"
        elif lost:
            event = f"GPU {', '.join(str(index) for index in sorted(lost))} was lost at {when}"
        else:
            return
        self.hint = f"{event}: the checks are older than that; R runs them again"
        self._event_in_run = self.running is not None

    def finish(self, run: FinishedRun) -> None:
        """Add a finished run. Only a complete run of all checks that began after the event clears the hint."""
        self.running = None
        self.runs.append(run)
        del self.runs[:-RUNS_KEPT]
        complete = run.report is not None and not run.only and run.report.run.interrupted is None
        if complete and not self._event_in_run:
            self.hint = None
        self._event_in_run = False

    def rebuild(self, opening: Opening, ticks: Iterable[Tick]) -> None:
        """Start again from these facts and ticks: a recording jumps to another time."""
        self.tick = self.host = self.processes = None
        self.latest.clear()
        self.history.clear()
        self.lost = frozenset()
        self.trouble = self.trouble_since_s = None
        retained = [line for line in self.log if line.kind not in ("kernel", "driver")]
        self.log.clear()
        self.log.extend(retained)
        self.open(opening)
        for tick in ticks:
            self.take(tick)

    def silent(self, why: str, since_s: float) -> None:
        """Data stopped: keep the time of the first call until data arrives, and the newest reason."""
        why = why[:LONGEST_LINE]
        if self.trouble is None:
            self.log.append(LogLine(since_s, "driver", why))
            self.trouble_since_s = since_s
        self.trouble = why

    def answered(self, at_s: float) -> None:
        """Data arrives again."""
        if self.trouble is not None:
            self.log.append(LogLine(at_s, "driver", "answers again"))
        self.trouble = self.trouble_since_s = None

    def findings_of(self, gpu: int) -> list[tuple[str, Finding]]:
        """(check id, finding) of every problem of this GPU (NVML index), worst first."""
        return problems_of(self.report, gpu) if self.report is not None else []

    def health_of(self, gpu: int) -> str:
        """One word: FAIL, unknown, warn, ok; LOST if the driver no longer lists the GPU; "-" if no check judged it.

        While no data arrives, a GPU that was ok is unknown: silence is no pass.
        """
        if gpu in self.lost:
            return "LOST"
        health = health_of(self.report, gpu) if self.report is not None else "-"
        return "unknown" if health == "ok" and self.trouble is not None else health


def _merged(before: GpuTick | None, now: GpuTick) -> GpuTick:
    if before is None:
        return now
    # a value read now is no longer unread; one that cannot be read now is no longer known
    unread = {name: why for name, why in {**before.unread, **now.unread}.items() if name not in now.readings}
    readings = {name: value for name, value in {**before.readings, **now.readings}.items() if name not in unread}
    counters = {**before.counters, **now.counters}
    if len(unread) + len(readings) + len(counters) > MOST_NAMES:
        return now
    return GpuTick(
        gpu=now.gpu,
        readings=readings,
        events=before.events if now.events is None else now.events,
        counters=counters,
        links_up=before.links_up if now.links_up is None else now.links_up,
        links=before.links if now.links is None else now.links,
        unread=unread,
    )
