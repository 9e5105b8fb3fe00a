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
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.opened import read_file, read_stream
from gpudoctor.report.saved_report import report_in
from gpudoctor.text.grouped import grouped

_MAX_FILES = 10_000
_UP: dict[Confidence, Confidence] = {"possible": "likely", "likely": "certain", "certain": "certain"}
# what a program or a kernel said of itself: a node that is fit now makes it no less true
_OWN_WORDS = {
    *("user_exception", "import_error", "cuda_oom", "gpu_ecc", "gpu_lost", "gpu_xid", "host_oom", "killed_sigkill"),
}


class NodeReport(msgspec.Struct, frozen=True):
    """A node's host name, and the ids of its checks that failed, and that passed."""

    host: str
    failed: tuple[str, ...]
    passed: tuple[str, ...]


class _Host(msgspec.Struct, frozen=True):
    name: str | None


class _Check(msgspec.Struct, frozen=True):
    id: str
    status: str


class _Report(msgspec.Struct, frozen=True):
    """What is read of a report: another version may write the rest differently."""

    schema: Literal["gpudoctor.report/1"]
    host: _Host
    checks: tuple[_Check, ...]
    error: str | None = None


def read_reports(paths: list[Path]) -> tuple[list[NodeReport], list[Unread]]:
    """The reports in files and folders, and the files that are no reports."""
    found: list[NodeReport] = []
    unread: list[Unread] = []
    for path in paths:
        is_folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises, e.g. for a name that is too long
        for file in sorted(_below(path, unread))[:_MAX_FILES] if is_folder else [path]:
            try:
                found.append(_node_report(report_in(_content(file, named=not is_folder), _Report)))
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
    def denied(error: OSError) -> None:
        unread.append(Unread(str(error.filename), error.strerror or str(error)))

    for place, _, names in os.walk(folder, onerror=denied):
        yield from (Path(place, name) for name in names if name.endswith(".json"))


def _node_report(report: _Report) -> NodeReport:
    by_status = grouped((check.status, check.id) for check in report.checks)
    return NodeReport(report.host.name or "?", *(tuple(by_status.get(status, ())) for status in ("fail", "pass")))


def weigh(best: Hypothesis, reports: list[NodeReport]) -> tuple[Hypothesis, Confidence, list[str]]:
    """The hypothesis, its confidence given the nodes' reports, and a note for each report that counts."""
    confidence = best.confidence
    notes: list[str] = []
    expected = text_of_cause(best.what).checks
    named = [r for r in reports if best.host and _same(r.host, best.host)]
    for report in named:
        failed = [check for check in report.failed if check in expected]
        if failed:
            confidence = _UP[confidence]
            notes.append(f"the report of {report.host} agrees: {', '.join(failed)} failed")
        elif expected and all(check in report.passed for check in expected):
            confidence = "likely" if confidence == "certain" and best.what not in _OWN_WORDS else confidence
            notes.append(f"the report of {report.host} shows no fault: {', '.join(expected)} passed")
    if not named and best.host is None:
        unfit = [r for r in reports if r.failed]
        if len(unfit) == 1 and len(reports) > 1 and (best.unknown or confidence == "possible"):
            best.host = unfit[0].host
            notes.append(f"only {unfit[0].host} of {len(reports)} nodes is unfit: {', '.join(unfit[0].failed[:4])}")
    return best, confidence, notes


def _same(one: str, other: str) -> bool:
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()
