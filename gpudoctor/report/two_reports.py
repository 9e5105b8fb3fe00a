"""Two reports of one node: what changed from one to the next, and one report of both after some checks ran again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpudoctor.checks.core.faults import explain
from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Finding, Status, worst
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import Subject
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.judge import exit_code, reason_line
from gpudoctor.report.model import Report, counts_of, node_verdict
from gpudoctor.text.units import size_text

# repeated busbw measurements on one healthy node differ by 2 to 3 %; smaller differences mean nothing
FIGURE_CHANGE_MIN = 0.05

Kind = Literal["new", "changed", "gone", "figure"]
_Key = tuple[object, ...]
_NOTE = "only some checks were run again; the others are as found at "
_APART = ("frameworks", "deepspeed", "tensorflow")
_FIELDS: dict[str, tuple[str, ...]] = {
    "collective": ("collectives", "pairs"),
    "link": ("host_links", "peer_links"),
    "compute": ("compute",),
    "train": ("training",),
    "strategy": ("strategies",),
    "data": ("data_loading",),
}


class Difference(msgspec.Struct, frozen=True):
    """One difference; `text` describes it.

    `new`: a problem that was not there before. `gone`: a problem that the same check, run again, did not find.
    `changed`: the same subject has another status; a problem that was not looked at again becomes skip or unknown,
    never gone. `figure`: a measured number moved, for information.
    """

    kind: Kind
    text: str
    after: Status | None = None


def differences(old: Report, new: Report) -> tuple[Difference, ...]:
    """What is different in `new`, worst first; only checks that both reports contain are compared."""
    was = {result.id: result for result in old.checks}
    missing = frozenset(gpu.index for gpu in old.gpus) - {gpu.index for gpu in new.gpus}
    judged_twice = (result for result in new.checks if result.id in was)
    found = [each for result in judged_twice for each in _of_check(was[result.id], result, missing)]
    found.sort(key=_order)
    return (*found, *_figures(old.measurements, new.measurements))


def status_said(status: Status) -> str:
    """The word for a status in lists: only FAIL is in capitals, to stand out.

    >>> status_said(Status.FAIL), status_said(Status.PASS)
    ('FAIL', 'pass')
    """
    word: str = status.value
    return word.upper() if status is Status.FAIL else word


def _of_check(old: CheckResult, new: CheckResult, gpus_gone: frozenset[int]) -> Iterator[Difference]:
    before, after = _by_subject(old), _by_subject(new)
    for key, finding in after.items():
        earlier = before.get(key)
        if earlier is None:
            if finding.status in PROBLEMS:
                yield _difference("new", new.id, finding, None, finding.status)
        elif earlier.status is not finding.status:
            yield _difference("changed", new.id, finding, earlier.status, finding.status)
    for key, finding in before.items():
        if key in after or finding.status not in PROBLEMS:
            continue
        # no finding on this subject is good news only if the check could look at it
        unseen = worst(f.status for f in new.findings if f.subject.kind == "node")
        missing = finding.subject.gpu in gpus_gone
        if missing or new.status is Status.SKIP or (unseen is Status.UNKNOWN and new.findings):
            status = Status.UNKNOWN if missing else unseen
            yield _difference("changed", new.id, finding, finding.status, status, "no longer there" if missing else "")
        else:
            yield _difference("gone", new.id, finding, finding.status, None)


def _difference(
    kind: Kind, check_id: str, finding: Finding, before: Status | None, after: Status | None, note: str = ""
) -> Difference:
    subject = finding.subject
    who = "" if subject.kind == "node" and not subject.name else f" {_short(subject)}"
    statuses = " -> ".join(status_said(status) for status in (before, after) if status is not None)
    note = f" ({note})" if note else ""
    return Difference(kind, f"{check_id}{who} {statuses}{note}", after)


def _short(subject: Subject) -> str:
    """The subject, without the bus id if it has an index."""
    return f"GPU {subject.gpu}" if subject.kind == "gpu" and subject.gpu is not None else subject.label


def _by_subject(result: CheckResult) -> dict[_Key, Finding]:
    """The worst finding on each subject."""
    retained: dict[_Key, Finding] = {}
    for finding in result.findings:
        key = _key(finding.subject)
        if key not in retained or WORST_FIRST.index(finding.status) < WORST_FIRST.index(retained[key].status):
            retained[key] = finding
    return retained


def _key(subject: Subject) -> _Key:
    # compare by slot, so that a replaced GPU matches its predecessor: the index, or the bus id if there is none
    bus_id = subject.bus_id if subject.gpu is None else None
    return subject.kind, subject.gpu, bus_id, subject.gpus, subject.link, subject.rank, subject.name


def _order(difference: Difference) -> tuple[int, int]:
    """New problems, then changed ones, then vanished ones, each worst first."""
    now = WORST_FIRST.index(difference.after) if difference.after is not None else len(WORST_FIRST)
    return ("new", "changed", "gone", "figure").index(difference.kind), now


def _figures(old: Measurements, new: Measurements) -> Iterator[Difference]:
    """Numbers that moved by more than 5 %; none if the backend or the number of ranks differs."""
    if old.launch is None or new.launch is None:
        return
    if (old.launch.backend, old.launch.world_size) != (new.launch.backend, new.launch.world_size):
        return
    was = dict(_named_figures(old))
    for name, (value, unit) in _named_figures(new):
        before = was.get(name)
        if before is None or before[0] <= 0:
            continue
        change = value / before[0] - 1
        if abs(change) > FIGURE_CHANGE_MIN:
            yield Difference("figure", f"{name} {before[0]:.4g} -> {value:.4g} {unit} ({change:+.0%})")


def _named_figures(measured: Measurements) -> Iterator[tuple[str, tuple[float, str]]]:
    for row in measured.collectives:
        yield f"{row.op} of {size_text(row.size_bytes)} busbw", (row.busbw_gb_s, "GB/s")
    for link in measured.host_links:
        yield f"rank {link.rank} host to GPU", (link.h2d_alone_gb_s, "GB/s")
        yield f"rank {link.rank} GPU to host", (link.d2h_alone_gb_s, "GB/s")
    for compute in measured.compute:
        for gemm in compute.gemms:
            yield f"rank {compute.rank} {gemm.dtype} gemm", (gemm.tflops, "TFLOP/s")
    training = measured.training
    if training is None:
        return
    if not isinstance(training.steady_step_ms, Missing):
        yield "train step", (training.steady_step_ms, "ms")
    for rank in training.ranks:
        yield f"rank {rank.rank} step", (rank.step_ms, "ms")


def joined(old: Report, new: Report) -> Report:
    """`new`, plus the results of `old` for checks that `new` did not run; causes are computed again for all.

    Facts, GPUs and the run are those of `new`; a note says which results are older. Figures of probes that did not run
    again are kept if the backend and the number of ranks are the same.
    """
    again = {result.id: result for result in new.checks}
    retained = [result for result in old.checks if result.id not in again]
    if not retained:
        return new
    ids = {result.id for result in old.checks}
    results = [again.get(result.id, result) for result in old.checks]
    results += [result for result in new.checks if result.id not in ids]
    explained, faults = explain(results)
    verdict = node_verdict(explained)
    notes = [note for note in old.run.notes if note.startswith(_NOTE)][-1:] or [f"{_NOTE}{old.run.started_at}"]
    run = msgspec.structs.replace(new.run, notes=(*new.run.notes, *notes))
    return msgspec.structs.replace(
        new,
        run=run,
        checks=explained,
        faults=faults,
        verdict=verdict,
        counts=counts_of(explained),
        reason=reason_line(explained, faults, verdict),
        exit_code=exit_code(explained, verdict, "fail", lacking=False),
        measurements=_measured(old.measurements, new.measurements),
    )


def _measured(old: Measurements, new: Measurements) -> Measurements:
    if old.launch is not None and new.launch is not None:
        if (old.launch.backend, old.launch.world_size) != (new.launch.backend, new.launch.world_size):
            return new
        ranks = _of_ranks(old, new)
    else:
        ranks = old if new.launch is None and old.launch is not None else new
    # a part that runs in separate processes comes from one run only: its figures, and the reasons for missing ones
    changes: dict[str, object] = {}
    not_run = {name: why for name, why in ranks.not_run.items() if name.partition(".")[0] not in _APART}
    for part in _APART:
        of_new = _reasons(part, new)
        asked = getattr(new, part) or any(why.kind != "absent" or name != part for name, why in of_new.items())
        changes[part] = getattr(new if asked else old, part)
        not_run |= of_new if asked else _reasons(part, old)
    return msgspec.structs.replace(ranks, **changes, not_run=not_run)


def _of_ranks(old: Measurements, new: Measurements) -> Measurements:
    not_asked = {probe for probe, why in new.not_run.items() if why.kind == "absent"}
    changes: dict[str, object] = {}
    for probe, fields in _FIELDS.items():
        if probe in not_asked:
            changes |= {field: getattr(old, field) for field in fields if not getattr(new, field)}
    not_run = {probe: why for probe, why in new.not_run.items() if not any(map(changes.get, _FIELDS.get(probe, ())))}
    return msgspec.structs.replace(new, **changes, not_run=not_run)


def _reasons(part: str, measured: Measurements) -> dict[str, Missing]:
    """The reasons why figures of this part, or of a component of it, are missing."""
    return {name: why for name, why in measured.not_run.items() if name.partition(".")[0] == part}
