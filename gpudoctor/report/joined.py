"""Merges two reports: checks that ran again replace their old results, the others are kept."""

from __future__ import annotations

import msgspec

from gpudoctor.checks.core.causes import explain
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.judge import exit_code, reason_line
from gpudoctor.report.model import Report, counts_of, verdict_of


def joined(old: Report, new: Report) -> Report:
    """`new`, plus the results of `old` for checks that `new` did not run; causes are computed again for all.

    Facts, GPUs and the run are those of `new`; a note says which results are older. Figures of probes that did not run
    again are kept if the backend and the number of ranks are the same.
    """
    again = {result.id: result for result in new.checks}
    kept = [result for result in old.checks if result.id not in again]
    if not kept:
        return new
    ids = {result.id for result in old.checks}
    results = [again.get(result.id, result) for result in old.checks]
    results += [result for result in new.checks if result.id not in ids]
    explained, faults = explain(results)
    verdict = verdict_of(explained)
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


_NOTE = "only some checks were run again; the others are as found at "


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


_APART = ("frameworks", "deepspeed", "tensorflow")
_FIELDS: dict[str, tuple[str, ...]] = {
    "collective": ("collectives", "pairs"),
    "link": ("host_links", "peer_links"),
    "compute": ("compute",),
    "train": ("training",),
    "strategy": ("strategies",),
    "data": ("data_loading",),
}
