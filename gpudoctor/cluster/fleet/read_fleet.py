"""Reads the reports of a fleet and judges them: `gpudoctor cluster report`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from gpudoctor.cluster.fleet.files import as_text
from gpudoctor.cluster.fleet.judge import fleet_of
from gpudoctor.cluster.fleet.model import Fleet
from gpudoctor.cluster.fleet.reading import Gathered, Refused, ReportReader, without_collector
from gpudoctor.cluster.fleet.records import ReportRecord
from gpudoctor.errors import UserError
from gpudoctor.process.signals import InterruptedBySignal, hold_signals
from gpudoctor.text.standard_input import standard_input

Progress = Callable[[Gathered | None], None]
Arrived = Callable[[ReportRecord | Refused], None]


class ClusterReportRequest(msgspec.Struct, frozen=True):
    """Which reports to read (`-` is stdin), the older set to compare with, and the hosts that should have a report.

    Raise UserError for `-` given twice.
    """

    sources: tuple[str, ...]
    against: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (*self.sources, *self.against).count("-") > 1:
            raise UserError("-: stdin can be read once only")


def read_fleet(request: ClusterReportRequest, progress: Progress, arrived: Arrived) -> tuple[Fleet, list[int]]:
    """The fleet report, and a list of the signals that interrupted the reading, to which later signals are added.

    `progress` is called with what was read so far, None at the end; `arrived` with each report as it comes on stdin.
    Raise UserError if there is no report.
    """
    reader = ReportReader()
    with without_collector():
        gathered = _read(reader, request.sources, progress, arrived, request.expected)
        older = None
        if request.against and gathered.interrupted is None:
            older = _read(reader, request.against, progress, arrived)
        signals = hold_signals()
        now_s, expected = time.time(), request.expected
        fleet = fleet_of(texts_of(request.sources), gathered, now_s, texts_of(request.against), older, expected)
    signals += [read.interrupted for read in (gathered, older) if read is not None and read.interrupted is not None]
    if signals:
        fleet = msgspec.structs.replace(fleet, exit_code=InterruptedBySignal(signals[0]).exit_code)
    return fleet, signals


def texts_of(paths: Sequence[str]) -> list[str]:
    """The paths with undecodable bytes escaped, as JSON needs them."""
    return [as_text(path) for path in paths]


def _read(
    reader: ReportReader, sources: Sequence[str], progress: Progress, arrived: Arrived, expected: Sequence[str] = ()
) -> Gathered:
    """Read the sources; after a signal, return what was read until then.

    Raise UserError if there is no report: of expected hosts, that is what the report has to show, unless no source
    exists, which is a mistake in the command.
    """
    stdin = standard_input("paste reports") if "-" in sources else None
    reading = reader.read(list(sources), stdin, arrived if "-" in sources else None)
    gathered = next(reading)
    try:
        progress(gathered)
        for _ in reading:
            progress(gathered)
    except InterruptedBySignal as stop:
        if not gathered.records:
            raise
        gathered.interrupted = stop.number
    finally:
        progress(None)
    if gathered.found.absent == len(sources):
        raise UserError(f"{gathered.broken[0].place}: {gathered.broken[0].why}")
    if expected or gathered.records or gathered.jobs or gathered.runs:
        return gathered
    if gathered.broken:
        first = gathered.broken[0]
        raise UserError(f"no report could be read of {len(gathered.broken)}: {first.place}: {first.why}")
    others = len(gathered.foreign) + gathered.found.others
    present = f"{others} other files and documents" if others else "no file"
    raise UserError(
        f"{' '.join(sources)}: no report there, {present}; reports are written by gpudoctor check --json -o FILE, and "
        "by gpudoctor run --format json -o FILE"
    )
