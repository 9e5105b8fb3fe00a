"""From one document to one record: what the fleet keeps of a report, or why it is none."""

from __future__ import annotations

import array
import datetime
import re
from contextlib import suppress
from typing import TypeVar

import msgspec

from gpudoctor.cluster.fleet.figures import Entry, figures
from gpudoctor.cluster.fleet.files import Document, Listed, documents_of
from gpudoctor.cluster.fleet.shapes import REPORT, ReportOf, SchemaOf, Verdict
from gpudoctor.facts.redaction.private_shapes import REDACTED

# half of a surrogate pair, which the standard library writes for a name that is not UTF-8 and msgspec cannot read
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_WORST_FIRST: tuple[Verdict, ...] = ("fail", "unknown", "warn", "pass")
_LONGEST_NAME = 253
_T = TypeVar("_T")
NO_GPU = "no GPU"
# no gpudoctor was there before 2025: a clock that says so was reset, as a flat battery does
_EARLIEST_S = 1735689600.0


class BrokenError(Exception):
    """The document should be a report and cannot be used: the node it is of is not known."""


class ForeignError(Exception):
    """The document is no report at all, and no node is missed with it."""


class NodeFault(msgspec.Struct, frozen=True):
    """A fault of one node: the check that found it, and what it found, in one line."""

    check: str
    headline: str


class ReportRecord(msgspec.Struct, frozen=True, gc=False):
    """What is kept of one report.

    `name` is the host's, or made of the file's name where `named` is False. `boards` are (bus id, UUID) of its
    GPUs. `judged` are the checks that gave pass, warn or fail; None
    where they were stepped over, see `judged_of`. `configuration` is (item, value) of what is compared
    with other nodes of the same `kind`. `values` belong to `entries`, one by one.
    """

    name: str
    named: bool
    place: str
    run_id: str
    started_s: float | None
    ended_s: float | None
    modified_s: float | None
    level: str
    verdict: Verdict
    reason: str
    kind: str
    simulated: bool
    injected: tuple[str, ...]
    boards: tuple[tuple[str, str], ...]
    faults: tuple[NodeFault, ...]
    judged: frozenset[str] | None
    unknown: tuple[str, ...]
    warned: tuple[str, ...]
    configuration: tuple[tuple[str, str], ...]
    entries: tuple[Entry, ...]
    values: array.array[float]


class Recorder:
    """Makes records; what many reports have in common is kept once."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(ReportOf)
        self._kept: dict[object, object] = {}
        self._last: tuple[tuple[Entry, ...], tuple[Entry, ...]] = ((), ())

    def record(self, document: Document) -> ReportRecord:
        """The record of a document. Raise BrokenError or ForeignError with the reason, without the place."""
        if document.trouble is not None:
            raise BrokenError(document.trouble)
        report = self._all_passed(document) or self._decoded(document.data, document.should_be_one)
        verdict = _verdict(report)
        entries, values = figures(report.measurements)
        injected = tuple(dict.fromkeys((*report.run.injected, *report.measurements.injected)))
        name = _host_name(report)
        started = _seconds(report.run.started_at)
        ended = None if started is None else started + report.run.duration_s
        return ReportRecord(
            name=self._once(name or document.stem or document.place)[:_LONGEST_NAME],
            named=name is not None,
            place=document.place,
            run_id=report.run.id,
            started_s=started,
            ended_s=ended,
            modified_s=document.modified,
            level=self._once(report.run.level),
            verdict=verdict,
            reason=_reason(report, verdict)[:200],
            kind=self._once(_kind(report)),
            simulated=report.simulated,
            injected=injected,
            boards=tuple((gpu.bus_id, gpu.uuid) for gpu in report.gpus if gpu.uuid),
            faults=tuple(NodeFault(fault.check, fault.headline[:300]) for fault in report.faults),
            judged=self._once(_judged(report)) if report.checks else None,
            unknown=self._once(_unexplained(report, "unknown")),
            warned=self._once(_unexplained(report, "warn")),
            configuration=self._once(tuple(_configuration(report))),
            entries=self._once(() if injected else entries),
            values=array.array("d", () if injected else values),
        )

    def shared(self, record: ReportRecord) -> ReportRecord:
        """A record that another process made, with what is kept here already."""
        return msgspec.structs.replace(
            record,
            kind=self._once(record.kind),
            judged=self._once(record.judged),
            configuration=self._once(record.configuration),
            entries=self._entries(record.entries),
        )

    def _entries(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if entries is not self._last[0]:
            self._last = (entries, self._once(entries))
        return self._last[1]

    def _once(self, value: _T) -> _T:
        return self._kept.setdefault(value, value)  # type: ignore[return-value]  # an equal value is of the same type

    def _all_passed(self, document: Document) -> ReportOf | None:
        """A report in which nothing is amiss, read without its checks, which are three quarters of it; None for others.

        Only of a file of its own, so that `judged_of` can read it again.
        """
        rest = _without_checks(document.data) if document.stem is not None else None
        if rest is None:
            return None
        try:
            report = self._decoder.decode(rest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # what is wrong with it is said by who reads all of it
        counts = report.counts
        amiss = counts.fail or counts.unknown or counts.warn or report.faults or report.verdict != "pass"
        return None if amiss or not counts.passed or report.error is not None else report

    def _decoded(self, data: bytes, should_be_one: bool) -> ReportOf:
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            self._no_report(data)
            raise BrokenError(f"damaged: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            mended = _HALF_PAIR.sub(rb"\\\g<0>", data)
            if mended != data:
                return self._decoded(mended, should_be_one)
            said = str(error)
            if b"gpudoctor." not in data[:200] and data.lstrip()[:1] not in (b"{", b"["):
                # zeros as a crash leaves them, another encoding, the words of a shell that found no gpudoctor
                raise (BrokenError if should_be_one else ForeignError)("not JSON") from None
            if isinstance(error, RecursionError):
                raise BrokenError("nested too deeply") from None
            raise BrokenError(f"cut off: {said}" if "truncated" in said else f"broken JSON: {said}") from None

    def _no_report(self, data: bytes) -> None:
        """Raise ForeignError, or BrokenError for what gpudoctor wrote in a form that is not read here."""
        try:
            schema = msgspec.json.decode(data, type=SchemaOf).schema
        except msgspec.ValidationError:
            schema = ""
        except (msgspec.DecodeError, RecursionError):
            raise BrokenError("damaged, and not whole either") from None
        if schema.startswith("gpudoctor.report/") and schema != REPORT:
            raise BrokenError(f"a report of another version, {schema[:60]!r}: this one reads {REPORT!r}")
        if not schema and b'"gpudoctor.report/' in data:
            raise BrokenError("reports within another document, as jq -s makes it: one a file or one a line is read")
        if schema != REPORT:
            what = f"its schema is {schema[:60]!r}" if schema else "it has no schema"
            raise ForeignError(f"JSON, but no report: {what}")


def judged_of(record: ReportRecord) -> frozenset[str]:
    """The checks that gave an answer; reads the file again where they were stepped over, and says none if it cannot."""
    if record.judged is not None:
        return record.judged
    for document in documents_of(Listed(record.place, record.place)):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            report = msgspec.json.decode(document.data, type=ReportOf)
            if report.run.id == record.run_id:
                return _judged(report)
    return frozenset()


def _judged(report: ReportOf) -> frozenset[str]:
    return frozenset(check.id for check in report.checks if check.status in ("pass", "warn", "fail"))


def _without_checks(data: bytes) -> bytes | None:
    """The report without the value of its key "checks", where it is one line as the product writes it.

    A quote within a string has a backslash before it, so that neither mark can stand in one.
    """
    start = data.find(b',"checks":[{')
    end = data.rfind(b'}],"faults":[', start)  # from behind: it is nearer
    if start < 0 or end < 0 or data.find(b"\0", start, end) >= 0:  # a hole, as a full disk or a crash leaves it
        return None
    return data[:start] + data[end + 2 :]


def _verdict(report: ReportOf) -> Verdict:
    """The verdict it gives, never better than its own checks. Raise BrokenError where they contradict each other."""
    if report.error is not None:
        return "unknown"
    statuses = {check.status for check in report.checks} or ({"pass"} if report.counts.passed else set[str]())
    known = next((word for word in _WORST_FIRST if word in statuses), "unknown")
    if report.faults:
        known = "fail"
    if _WORST_FIRST.index(known) < _WORST_FIRST.index(report.verdict):
        raise BrokenError(f"damaged: its verdict is {report.verdict}, and its checks say {known}")
    # what was cut short has not looked at everything that it was to look at
    return "unknown" if report.run.interrupted and report.verdict in ("pass", "warn") else report.verdict


def _unexplained(report: ReportOf, status: str) -> tuple[str, ...]:
    """The checks of this status that no fault of the node accounts for."""
    ids = tuple(check.id for check in report.checks if check.status == status)
    if not ids or not report.faults:
        return ids
    explained = {line.partition(":")[0] for fault in report.faults for line in fault.explains}
    return tuple(each for each in ids if f"{each} {status}" not in explained)


def _reason(report: ReportOf, verdict: Verdict) -> str:
    if report.error is not None:
        return f"UNKNOWN gpudoctor could not do its work: {report.error}"
    if report.run.interrupted and verdict == "unknown":
        return f"UNKNOWN interrupted by {report.run.interrupted}"
    return report.reason


def _host_name(report: ReportOf) -> str | None:
    """The machine's own name; a made-up or redacted one tells no machines apart."""
    name = report.host.name
    if not name or name == REDACTED or (report.simulated and name == "simulated"):
        return None
    return name


def _kind(report: ReportOf) -> str:
    """What the node is compared with: nodes of the model that most of its GPUs are of, in VMs or not."""
    models = [gpu.name for gpu in report.gpus if gpu.name]
    kind = NO_GPU if not models else models[0] if len(set(models)) == 1 else max(models, key=models.count)
    kind += " in VMs" if report.host.virtualization == "vm" else ""
    return f"SIMULATED {kind}" if report.simulated else kind


def _configuration(report: ReportOf) -> list[tuple[str, str]]:
    host, torch = report.host, report.measurements.torch_view
    versions = sorted({gpu.vbios for gpu in report.gpus if gpu.vbios})
    items = (
        ("driver", host.driver),
        ("CUDA of the driver", host.cuda),
        ("VBIOS", " and ".join(versions)),
        ("kernel", host.kernel),
        ("torch", (torch.torch if torch else None) or host.torch),
        ("CUDA of torch", torch.cuda if torch else None),
        ("NCCL", (torch.nccl if torch else None) or host.nccl),
        # a container or a job is given some of them, and that is no fault
        ("GPUs", str(len(report.gpus)) if host.virtualization != "container" and report.gpus else None),
        ("gpudoctor", report.tool.version),
    )
    return [(item, value[:200]) for item, value in items if value]


def _seconds(started_at: str) -> float | None:
    """Seconds since 1970; a time without zone is taken as UTC. None for what is no time, or cannot be right."""
    try:
        moment = datetime.datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    seconds = moment.timestamp()
    return seconds if seconds >= _EARLIEST_S else None
