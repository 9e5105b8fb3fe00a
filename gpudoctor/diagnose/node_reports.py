"""Reads reports of `gpudoctor check` on the job's nodes, which raise or lower the confidence of a hypothesis."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor.diagnose.causes import text_of_cause
from gpudoctor.diagnose.diagnosis import Confidence, Unread
from gpudoctor.diagnose.rules.model import Hypothesis
from gpudoctor.diagnose.sources import walk
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.opened import read_file, read_stream
from gpudoctor.report.saved_report import report_in

_MAX_FILES = 10_000
_UP: dict[Confidence, Confidence] = {"possible": "likely", "likely": "certain", "certain": "certain"}
# what a program or a kernel said of itself: a node that is fit now makes it no less true
_OWN_WORDS = {
    *("user_exception", "import_error", "cuda_oom", "gpu_ecc", "gpu_lost", "gpu_xid", "host_oom", "killed_sigkill"),
}


class _Host(msgspec.Struct, frozen=True):
    name: str | None


class _Check(msgspec.Struct, frozen=True):
    id: str
    status: str


class NodeReport(msgspec.Struct, frozen=True):
    """What is read of a node's report: another version may write the rest differently."""

    schema: Literal["gpudoctor.report/1"]
    host: _Host
    checks: tuple[_Check, ...]
    error: str | None = None

    @property
    def name(self) -> str:
        return self.host.name or "?"

    def ids(self, status: str) -> list[str]:
        return [check.id for check in self.checks if check.status == status]


def read_reports(paths: list[Path]) -> tuple[list[NodeReport], list[Unread]]:
    """The reports in files and folders, and the files that are no reports."""
    found: list[NodeReport] = []
    unread: list[Unread] = []
    for path in paths:
        is_folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises, e.g. for a name that is too long
        for file in sorted(_below(path, unread))[:_MAX_FILES] if is_folder else [path]:
            try:
                found.append(report_in(_content(file, named=not is_folder), NodeReport))
            except SourceError as error:
                unread.append(Unread(str(file), str(error)))
    return found, unread


def _content(file: Path, *, named: bool) -> bytes:
    """Raise SourceError. `named` on the command line: it may be a shell's <(COMMAND); another pipe may not end."""
    with suppress(OSError):  # read_file tells of it
        if named and stat.S_ISFIFO(file.stat().st_mode):
            with file.open("rb") as pipe:
                return read_stream(pipe)
    return read_file(str(file))


def _below(folder: Path, unread: list[Unread]) -> Iterator[Path]:
    for place, _, names in walk(folder, unread):
        yield from (Path(place, name) for name in names if name.endswith(".json"))


def weigh(best: Hypothesis, reports: list[NodeReport]) -> tuple[Hypothesis, Confidence, list[str]]:
    """The hypothesis, its confidence given the nodes' reports, and a note for each report that counts."""
    confidence = best.confidence
    notes: list[str] = []
    expected = text_of_cause(best.what).checks
    named = [r for r in reports if best.host and _same(r.name, best.host)]
    for report in named:
        failed = [check for check in report.ids("fail") if check in expected]
        if failed:
            confidence = _UP[confidence]
            notes.append(f"the report of {report.name} agrees: {', '.join(failed)} failed")
        elif expected and set(expected) <= set(report.ids("pass")):
            confidence = "likely" if confidence == "certain" and best.what not in _OWN_WORDS else confidence
            notes.append(f"the report of {report.name} shows no fault: {', '.join(expected)} passed")
    if not named and best.host is None:
        unfit = [r for r in reports if r.ids("fail")]
        if len(unfit) == 1 and len(reports) > 1 and (best.unknown or confidence == "possible"):
            best.host = unfit[0].name
            notes.append(f"only {best.host} of {len(reports)} nodes is unfit: {', '.join(unfit[0].ids('fail')[:4])}")
    return best, confidence, notes


def _same(one: str, other: str) -> bool:
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()
