"""The packaged nodes, loaded once, and their verdicts."""

from __future__ import annotations

from functools import cache

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.subject import Subject
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report


@cache
def packaged(name: str) -> Node:
    return load_node(name)


@cache
def healthy_report(name: str) -> Report:
    return judge(packaged(name))


def findings(report: Report, status: Status) -> list[tuple[str, Finding]]:
    return [(c.id, f) for c in report.checks for f in c.findings if f.status is status]


def speaks_of(subject: Subject, gpu: int, bus_id: str) -> bool:
    """Whether a finding is about that GPU: by index, by bus id, or by a bridge that names it."""
    if gpu == subject.gpu or bus_id == subject.bus_id or gpu in (subject.gpus or ()):
        return True
    words = (subject.name or "").replace(",", " ").split()
    return "GPU" in (subject.name or "") and str(gpu) in words
