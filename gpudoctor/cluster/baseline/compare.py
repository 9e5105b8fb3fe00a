"""One node over time: the figures and configuration of its healthy runs, and how a later run differs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Literal

import msgspec
from rich.console import RenderableType
from rich.text import Text

from gpudoctor import __version__
from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.fleet.figures import Entry, figure_of, figure_words, less_is_better, unit_of, with_gpus
from gpudoctor.cluster.fleet.records import ReportRecord
from gpudoctor.errors import UserError
from gpudoctor.process.exit_codes import FAILED, OK, UNKNOWN
from gpudoctor.report.model import Verdict
from gpudoctor.report.text import TextRows, laid_out, plain, status_word
from gpudoctor.text.grouped import grouped

# reference (probes, 5.1): a stored baseline warns at -5 % and fails at -10 %, after three healthy runs
WARN_LOSS, FAIL_LOSS = 0.05, 0.10
RUNS_TO_JUDGE = 3
MOST_RUNS = 20

ChangeStatus = Literal["fail", "warn", "said"]


class SavedRun(msgspec.Struct, frozen=True):
    """One healthy run. `boards` are (bus id, UUID) of the GPUs; `figures` are measured entries with their values."""

    id: str
    started_s: float | None
    level: str
    verdict: Verdict
    configuration: dict[str, str]
    boards: tuple[tuple[str, str], ...]
    figures: tuple[tuple[Entry, float], ...]


class Baseline(msgspec.Struct, frozen=True):
    """The healthy runs of one node, oldest first, at most `MOST_RUNS`."""

    schema: Literal["gpudoctor.baseline/1"]
    host: str
    simulated: bool
    runs: tuple[SavedRun, ...]


class Change(msgspec.Struct, frozen=True):
    """One difference from the baseline. Status `said` does not affect the verdict.

    `before` is the median of the saved runs, `ratio` is now / before; both are for figures only.
    """

    status: ChangeStatus
    what: Literal["configuration", "gpu", "figure", "verdict"]
    text: str
    before: float | None = None
    now: float | None = None
    ratio: float | None = None


class Comparison(msgspec.Struct, frozen=True):
    """The result. `compared` figures were measured now and before, `not_measured` ones only before."""

    schema: Literal["gpudoctor.comparison/1"]
    version: str
    host: str
    simulated: bool
    runs: int
    place: str
    verdict: Verdict
    exit_code: int
    changes: tuple[Change, ...] = ()
    compared: int = 0
    not_measured: int = 0
    notes: tuple[str, ...] = ()
    error: str | None = None


def with_run(old: Baseline | None, record: ReportRecord) -> Baseline:
    """The baseline with one more run. Raise UserError if it is not healthy, already there, or of another node."""
    if record.verdict not in ("pass", "warn"):
        raise UserError(f"{record.place}: not saved: a baseline holds healthy runs, and this one is {record.reason}")
    if record.injected:
        raise UserError(f"{record.place}: not saved: its probes were made to go wrong (--inject)")
    run = SavedRun(
        record.run_id,
        record.started_s,
        record.level,
        record.verdict,
        dict(record.configuration),
        record.boards,
        tuple(zip(record.entries, record.values, strict=True)),
    )
    if old is None:
        return Baseline("gpudoctor.baseline/1", record.name, record.simulated, (run,))
    _of_the_same(old, record)
    if run.id and any(run.id == saved.id for saved in old.runs):
        raise UserError(f"{record.place}: not saved: this run is in the baseline already")
    runs = sorted((*old.runs, run), key=lambda each: each.started_s or 0.0)
    return msgspec.structs.replace(old, runs=tuple(runs[-MOST_RUNS:]))


def _of_the_same(baseline: Baseline, record: ReportRecord) -> None:
    """Raise UserError if neither the host name nor a GPU is the same: figures of two machines do not compare."""
    boards = {uuid for run in baseline.runs for _, uuid in run.boards}
    if record.simulated != baseline.simulated:
        raise UserError(f"{record.place}: simulated and real runs do not compare")
    if record.named and record.name == baseline.host:
        return
    if not boards & {uuid for _, uuid in record.boards}:
        raise UserError(f"{record.place}: a report of {record.name}, and the baseline is of {baseline.host}")


def compare(baseline: Baseline, record: ReportRecord) -> Comparison:
    """How a run differs from the saved ones, the worst first.

    Raise UserError for a report of another node, and for the run that is itself the whole baseline.
    """
    _of_the_same(baseline, record)
    if record.run_id and all(run.id == record.run_id for run in baseline.runs):
        raise UserError(f"{record.place}: this run is the baseline; compare a later one")
    saved = _saved(baseline, record)
    now = dict(zip(record.entries, record.values, strict=True))
    both = [entry for entry in saved if entry in now]
    changes = [*_of_configuration(baseline, record), *_of_boards(baseline, record)]
    if record.verdict != "pass":
        status: ChangeStatus = "fail" if record.verdict == "fail" else "warn"
        changes.insert(0, Change(status, "verdict", f"the report itself says {record.reason}"))
    changes += [change for entry in both for change in _of_figure(entry, saved[entry], now[entry])]
    changes.sort(key=lambda change: (("fail", "warn", "said").index(change.status), change.ratio or 1.0))
    had_figures = any(run.figures for run in baseline.runs)
    missing = len(saved) - len(both)
    notes = [f"{missing} saved figures were not measured now"] if missing else []
    if not both and not missing and had_figures:
        notes.append("the saved figures are of other GPUs: none was compared; save runs of these in a new baseline")
    elif not both and not missing:
        notes.append("no figures of GPUs in the baseline or the report: only the configuration was compared")
    elif len(baseline.runs) < RUNS_TO_JUDGE:
        notes.append(f"{len(baseline.runs)} saved runs: changes are only said until there are {RUNS_TO_JUDGE}")
    # figures were measured before and none of them can be compared now: no verdict on them
    verdict = _verdict(record, changes, in_vain=not both and had_figures)
    return Comparison(
        "gpudoctor.comparison/1",
        __version__,
        baseline.host,
        baseline.simulated,
        len(baseline.runs),
        record.place,
        verdict,
        {"fail": FAILED, "unknown": UNKNOWN}.get(verdict, OK),
        tuple(changes),
        len(both),
        missing,
        tuple(notes),
    )


def _verdict(record: ReportRecord, changes: list[Change], *, in_vain: bool) -> Verdict:
    statuses = {change.status for change in changes}
    if record.verdict == "fail" or "fail" in statuses:
        return "fail"
    if record.verdict == "unknown" or in_vain:
        return "unknown"
    return "warn" if record.verdict == "warn" or "warn" in statuses else "pass"


def _of_configuration(baseline: Baseline, record: ReportRecord) -> Iterator[Change]:
    """Changes against the newest saved run only: an update made on purpose becomes the new normal."""
    before, now = baseline.runs[-1].configuration, dict(record.configuration)
    for item, value in now.items():
        if item in before and before[item] != value:
            yield Change("said", "configuration", f"{item}: {before[item]} -> {value}")


def _of_boards(baseline: Baseline, record: ReportRecord) -> Iterator[Change]:
    before, now = dict(baseline.runs[-1].boards), dict(record.boards)
    for bus_id, uuid in before.items():
        if bus_id not in now:
            yield Change("warn", "gpu", f"no GPU at {bus_id} now: {uuid} was there")
        elif now[bus_id] != uuid:
            yield Change(
                "said", "gpu", f"another GPU at {bus_id}: {now[bus_id]}; no figure of it is compared with the old"
            )
    for bus_id in now.keys() - before.keys():
        yield Change("said", "gpu", f"a GPU at {bus_id} that was not there")


def _saved(baseline: Baseline, record: ReportRecord) -> dict[Entry, list[float]]:
    """The saved values of each figure, from runs with the same GPUs in the same slots."""
    now = dict(record.boards)
    others = (run for run in baseline.runs if run.id != record.run_id)
    alike = (run for run in others if all(now.get(bus_id, uuid) == uuid for bus_id, uuid in run.boards))
    return grouped(figure for run in alike for figure in run.figures)


def _of_figure(entry: Entry, saved: list[float], now: float) -> Iterator[Change]:
    """A loss counts only if it is worse than every saved run; gains and results of too few runs are only `said`."""
    before = median(saved)
    if before <= 0:
        return
    ratio = now / before
    loss = 1 - (before / now if now > 0 else 0.0) if less_is_better(entry) else 1 - ratio
    if abs(loss) < WARN_LOSS:
        return
    worse = loss > 0 and (now > max(saved) if less_is_better(entry) else now < min(saved))
    status: ChangeStatus = "said"
    if worse and len(saved) >= RUNS_TO_JUDGE:
        status = "fail" if loss >= FAIL_LOSS else "warn"
    figure, gpus = figure_of(entry)
    message = with_gpus(figure_words(figure), gpus)
    few = (
        f" ({len(saved)} of {RUNS_TO_JUDGE} runs that a verdict needs)" if worse and len(saved) < RUNS_TO_JUDGE else ""
    )
    text = f"{message}: {before:.4g} -> {now:.4g} {unit_of(figure)} ({ratio - 1:+.0%}){few}"
    yield Change(status, "figure", text, before, now, round(ratio, 4))


def render_comparison(comparison: Comparison, *, width: int, color: bool) -> str:
    rows = []
    for change in comparison.changes:
        word = Text("said", style="dim") if change.status == "said" else status_word(Status(change.status))
        rows.append((word, plain(change.text)))
    parts: list[RenderableType] = []
    if comparison.simulated:
        parts.append(plain("SIMULATED: made up, no verdict on a real machine", "bold yellow"))
    what = f"{comparison.host} against {comparison.runs} saved runs: {comparison.compared} figures compared"
    parts += [plain(what, "bold"), TextRows(rows) if rows else plain("nothing changed")]
    parts += [plain(f"Note: {note}") for note in comparison.notes]
    worse = sum(1 for change in comparison.changes if change.what == "figure" and change.status != "said")
    reported = f"{worse} of {comparison.compared} figures worse than in the saved runs" if worse else ""
    parts.append(Text.assemble(status_word(Status(comparison.verdict)), "  ", reported))
    return laid_out(parts, width=width, color=color)
