"""Turns a document into a record, the part of a report that the fleet needs, or into the reason why it is none."""

from __future__ import annotations

import array
import datetime
from contextlib import suppress
from typing import TypeVar

import msgspec

from gpudoctor.cluster.fleet.figures import Entry, figures
from gpudoctor.cluster.fleet.files import Document, Listed, documents_of
from gpudoctor.cluster.fleet.shapes import REPORT, WORST_FIRST, MeasuredOf, ReportOf, SchemaOf
from gpudoctor.facts.model.measurements import TorchView
from gpudoctor.facts.redaction.shapes import REDACTED
from gpudoctor.lazy import lazy_pattern
from gpudoctor.report.model import Verdict

# a lone surrogate, which the standard library writes for a name that is not UTF-8 and msgspec cannot read
_HALF_PAIR = lazy_pattern(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_LONGEST_NAME = 253
_T = TypeVar("_T")
NO_GPU = "no GPU"
# gpudoctor did not exist before 2025: an earlier time is from a clock that was reset, as by a flat battery
_EARLIEST_S = 1735689600.0


class BrokenError(Exception):
    """The document should be a report and cannot be used: its node is not known."""


class ForeignError(Exception):
    """The document is not a report: no node is missed with it."""


def refuse_other_version(schema: str, understood: str) -> None:
    """Raise BrokenError for the schema of the same kind of report in a form that cannot be read here."""
    if schema != understood and schema.startswith(f"{understood.rpartition('/')[0]}/"):
        raise BrokenError(f"a report of another version, {schema[:60]!r}: this one reads {understood!r}")


class NodeFault(msgspec.Struct, frozen=True):
    """A fault of one node: the check that found it, and its one-line headline."""

    check: str
    headline: str


class ReportRecord(msgspec.Struct, frozen=True, gc=False):
    """What the fleet needs of one report.

    `name` is the host name, or is taken from the file name if `named` is False. `boards` are (bus id, UUID) of the
    GPUs. `judged` are the checks that gave pass, warn or fail; None if they were skipped while reading (see
    `judged_of`). `configuration` are (item, value) that are compared with other nodes of the same `kind`. `values` has
    one value for each of `entries`. `is_partly_read`: a measurement could not be read, and has no entries.
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
    is_partly_read: bool


class Recorder:
    """Makes records; values that many reports have in common are stored once."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(ReportOf)
        self._measurements = {each.name: msgspec.json.Decoder(each.type) for each in msgspec.structs.fields(MeasuredOf)}
        self._kept: dict[object, object] = {}
        self._last: tuple[tuple[Entry, ...], tuple[Entry, ...]] = ((), ())

    def record(self, document: Document) -> ReportRecord:
        """The record of a document. Raise BrokenError or ForeignError with the reason."""
        if document.trouble is not None:
            raise BrokenError(document.trouble)
        report = self._all_passed(document) or self._decoded(document.data, document.should_be_one)
        verdict = _verdict(report)
        measured, is_partly_read = self._measured(report)
        entries, values = figures(measured)
        injected = tuple(dict.fromkeys(report.run.injected))
        name = _host_name(report)
        began = seconds_of(report.run.started_at)
        started, ended = (began, began + report.run.duration_s) if began >= _EARLIEST_S else (None, None)
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
            configuration=self._once(tuple(_configuration(report, measured.torch_view))),
            entries=self._once(() if injected else entries),
            values=array.array("d", () if injected else values),
            is_partly_read=is_partly_read,
        )

    def _measured(self, report: ReportOf) -> tuple[MeasuredOf, bool]:
        """The measurements that can be read, and whether others cannot: another version may write them differently."""
        found = {name: data for name, data in report.measurements.items() if name in self._measurements}
        read = {}
        for name, data in found.items():
            with suppress(msgspec.ValidationError, UnicodeDecodeError):
                read[name] = self._measurements[name].decode(data)
        return MeasuredOf(**read), len(read) < len(found)

    def shared(self, record: ReportRecord) -> ReportRecord:
        """A record from another process, with its values replaced by equal ones that are stored here."""
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
        """The report without its checks (three quarters of its size) if everything in it passed; None otherwise.

        Only for a file with one report, so that `judged_of` can read it again.
        """
        rest = _without_checks(document.data) if document.stem is not None else None
        if rest is None:
            return None
        try:
            report = self._decoder.decode(rest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # `_decoded` reads all of it and reports the error
        counts = report.counts
        amiss = counts.fail or counts.unknown or counts.warn or report.faults or report.verdict != "pass"
        return None if amiss or not counts.passed or report.error is not None else report

    def _decoded(self, data: bytes, should_be_one: bool, *, mended: bool = False) -> ReportOf:
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            self._no_report(data)
            raise BrokenError(f"damaged: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            escaped = data if mended else _HALF_PAIR.sub(rb"\\\g<0>", data)
            if escaped != data:
                return self._decoded(escaped, should_be_one, mended=True)
            reported = str(error)
            if b"gpudoctor." not in data[:200] and data.lstrip()[:1] not in (b"{", b"["):
                # zeros left by a crash, another encoding, or a shell's message that there is no gpudoctor
                raise (BrokenError if should_be_one else ForeignError)("not JSON") from None
            if isinstance(error, RecursionError):
                raise BrokenError("nested too deeply") from None
            raise BrokenError(
                f"cut off: {reported}" if "truncated" in reported else f"broken JSON: {reported}"
            ) from None

    def _no_report(self, data: bytes) -> None:
        """Raise ForeignError, or BrokenError for a report in a form that cannot be read here."""
        try:
            schema = msgspec.json.decode(data, type=SchemaOf).schema
        except msgspec.ValidationError:
            schema = ""
        except (msgspec.DecodeError, RecursionError):
            raise BrokenError("damaged, and not whole either") from None
        refuse_other_version(schema, REPORT)
        if not schema and b'"gpudoctor.report/' in data:
            raise BrokenError("reports within another document, as jq -s makes it: one a file or one a line is read")
        if schema != REPORT:
            what = f"its schema is {schema[:60]!r}" if schema else "it has no schema"
            raise ForeignError(f"JSON, but no report: {what}")


def judged_of(record: ReportRecord) -> frozenset[str]:
    """The checks that gave a verdict; reads the file again if they were skipped. Empty if that is not possible."""
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
    """The report without the value of its key "checks", if it is one line as gpudoctor writes it; else None.

    A quote within a JSON string has a backslash before it, so neither marker can occur in a string.
    """
    start = data.find(b',"checks":[{')
    end = data.rfind(b'}],"faults":[', start)  # from the end, which is nearer
    if start < 0 or end < 0 or data.find(b"\0", start, end) >= 0:  # zeros, left by a full disk or a crash
        return None
    return data[:start] + data[end + 2 :]


def _verdict(report: ReportOf) -> Verdict:
    """The report's verdict. Raise BrokenError if it is better than its own checks."""
    if report.error is not None:
        return "unknown"
    statuses = {check.status for check in report.checks} or ({"pass"} if report.counts.passed else set[str]())
    known = next((word for word in WORST_FIRST if word in statuses), "unknown")
    if report.faults:
        known = "fail"
    if WORST_FIRST.index(known) < WORST_FIRST.index(report.verdict):
        raise BrokenError(f"damaged: its verdict is {report.verdict}, and its checks say {known}")
    # an interrupted run has not checked everything
    return "unknown" if report.run.interrupted and report.verdict in ("pass", "warn") else report.verdict


def _unexplained(report: ReportOf, status: str) -> tuple[str, ...]:
    """The checks of this status that no fault of the node explains."""
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
    """The machine's own name; None for a simulated or redacted one, which does not identify a machine."""
    name = report.host.name
    if not name or name == REDACTED or (report.simulated and name == "simulated"):
        return None
    return name


def _kind(report: ReportOf) -> str:
    """The kind of nodes it is compared with: the model of most of its GPUs, and whether it is a VM."""
    models = [gpu.name for gpu in report.gpus if gpu.name]
    kind = NO_GPU if not models else models[0] if len(set(models)) == 1 else max(models, key=models.count)
    kind += " in VMs" if report.host.virtualization == "vm" else ""
    return f"SIMULATED {kind}" if report.simulated else kind


def _configuration(report: ReportOf, torch: TorchView | None) -> list[tuple[str, str]]:
    host = report.host
    versions = sorted({gpu.vbios for gpu in report.gpus if gpu.vbios})
    items = (
        ("driver", host.driver),
        ("CUDA of the driver", host.cuda),
        ("VBIOS", " and ".join(versions)),
        ("kernel", host.kernel),
        ("torch", (torch.torch if torch else None) or host.torch),
        ("CUDA of torch", torch.cuda if torch else None),
        ("NCCL", (torch.nccl if torch else None) or host.nccl),
        # a container or a job may be given only some of the GPUs
        ("GPUs", str(len(report.gpus)) if host.virtualization != "container" and report.gpus else None),
        ("gpudoctor", report.tool.version),
    )
    return [(item, value[:200]) for item, value in items if value]


def seconds_of(started_at: str) -> float:
    """Seconds since 1970; a time without zone is taken as UTC. 0 if it is not a time."""
    try:
        moment = datetime.datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.timezone.utc)).timestamp()
