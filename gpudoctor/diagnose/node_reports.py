"""Reads reports of `gpudoctor check` on the job's nodes, which raise or lower the confidence of a hypothesis."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpudoctor.diagnose.causes import text_of_cause
from gpudoctor.diagnose.diagnosis import Confidence, Unread
from gpudoctor.diagnose.rules.model import Hypothesis
from gpudoctor.text.grouped import grouped

_MAX_BYTES = 64 << 20
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


def read_reports(paths: list[Path]) -> tuple[list[NodeReport], list[Unread]]:
    """The reports in files and folders, and the files that are no reports."""
    found: list[NodeReport] = []
    unread: list[Unread] = []
    for path in paths:
        is_folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises, e.g. for a name that is too long
        files = sorted(_below(path, unread))[:_MAX_FILES] if is_folder else [path]
        for file in files:
            try:
                info = file.stat()
                if is_folder and not stat.S_ISREG(info.st_mode):
                    # a pipe may never end; one that was named on the command line is a shell's <(COMMAND)
                    unread.append(Unread(str(file), "no plain file"))
                    continue
                if info.st_size > _MAX_BYTES:
                    raise ValueError("too large")
                found.append(_report(msgspec.json.decode(file.read_bytes())))
            except OSError as error:
                unread.append(Unread(str(file), error.strerror or str(error)))
            except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                unread.append(Unread(str(file), "no gpudoctor report"))
    return found, unread


def _below(folder: Path, unread: list[Unread]) -> Iterator[Path]:
    def denied(error: OSError) -> None:
        unread.append(Unread(str(error.filename), error.strerror or str(error)))

    for place, _, names in os.walk(folder, onerror=denied):
        yield from (Path(place, name) for name in names if name.endswith(".json"))


def _report(data: object) -> NodeReport:
    if not isinstance(data, dict) or not str(data.get("schema", "")).startswith("gpudoctor.report/"):
        raise ValueError("schema")
    by_status = grouped((str(check["status"]).lower(), str(check["id"])) for check in data.get("checks", ()))
    host = data.get("host") or {}
    name = host.get("hostname") if isinstance(host, dict) else None
    return NodeReport(str(name or "?"), *(tuple(by_status.get(status, ())) for status in ("fail", "pass")))


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
