"""Tensors that some ranks submitted and others did not, from Horovod's stall warnings."""

from __future__ import annotations

import re

from gpudoctor.diagnose.job import Job
from gpudoctor.diagnose.rules.model import Hypothesis, named

_NUMBER = re.compile(r"\d+")


def stalled_tensors(job: Job, attempt: int) -> list[Hypothesis]:
    """Ranks that are missing for every tensor are behind; if they differ by tensor, the ranks took different paths.

    A warning after which the work went on does not count: that tensor was only late.
    """
    events = [e for e in job.of("wait", attempt=attempt) if e.what == "stalled_tensor" and not job.worked_behind(e)]
    if not events:
        return []
    missing: dict[str, set[int]] = {}
    ready: dict[str, set[int]] = {}
    for event in events:
        for said, of in (("missing", missing), ("ready", ready)):
            of.setdefault(event.word("op") or "", set()).update(map(int, _NUMBER.findall(event.word(said) or "")))
    heard = set[int]().union(*ready.values())
    for op, there in ready.items():
        if there:
            missing.setdefault(op, set()).update(heard - there)
    sets = {frozenset(absent) for absent in missing.values() if absent}
    if len(sets) == 1:
        ranks = tuple(sorted(next(iter(sets))))
        return [
            Hypothesis(
                what="rank_behind",
                ranks=ranks,
                confidence="likely",
                events=events[:4],
                text=f"{named(ranks)} did not submit the tensors that the others wait for",
            )
        ]
    if sets:
        words = "; ".join(f"{named(absent)} not {op}" for op, absent in list(missing.items())[:3] if absent)
        return [
            Hypothesis(
                what="collective_mismatch",
                confidence="likely",
                events=events[:4],
                text=f"the ranks submit different tensors: {words}",
            )
        ]
    return [
        Hypothesis(
            what="timeout_undecidable",
            confidence="possible",
            unknown=True,
            events=events[:3],
            text="some ranks wait for tensors that others did not submit; which ones is not in this text",
        )
    ]
