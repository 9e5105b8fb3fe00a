"""The report of a run as a page: its order, its picture with the figures, and that names stay text."""

from __future__ import annotations

import re

from gpudoctor.checks.core.finding import Advice, Found, Status
from gpudoctor.checks.core.subject import Subject
from gpudoctor.report.model import Tool
from gpudoctor.run.html import render_html
from gpudoctor.run.report import FlatFinding, PhaseMs, RankPoint, RankReport, RunReport

PHASES = PhaseMs(data=1.0, forward=2.0, backward=4.0, optimizer=1.5, wait=3.0, between=0.5, host=0.25)
SLOW = FlatFinding(
    id="run.straggler",
    status=Status.WARN,
    subject=Subject("rank", rank=1),
    found=Found("computes 1.3 x as long"),
    advice=(Advice("Look at its GPU.", "gpudoctor check gpu"),),
)


def run_report() -> RunReport:
    points = (RankPoint(5, PHASES), RankPoint(10, PHASES))
    ranks = tuple(
        RankReport(rank=n, host="a", pid=7, gpu=None, steps=20, step_ms=12.25, phases=PHASES, over_time=points)
        for n in range(2)
    )
    return RunReport(
        tool=Tool("gpudoctor", "0.1.0"), command=("python", "<b>train.py"), host="a", started_at="", duration_s=3.0,
        exit_code=0, signal=None, verdict="warn", reason="rank 1 computes longer", world_size=2, precheck=None,
        settings={}, throughput=None, ranks=ranks, findings=(SLOW,), stalls=(), diagnosis=None, notes=("one note",),
    )  # fmt: skip


def test_the_page_has_the_order_of_all_pages_and_every_phase_of_a_step() -> None:
    page = render_html(run_report())
    marks = ('class="word">WARN<', 'id="do"', 'id="findings"', 'id="step"', 'id="time"', 'id="notes"')
    assert [page.index(mark) for mark in marks] == sorted(page.index(mark) for mark in marks)
    assert '<code class="command">gpudoctor check gpu</code>' in page
    assert re.findall(r'title="(\w+) ([0-9.]+) ms"', page)[:4] == [
        ("compute", "8.00"), ("wait", "3.00"), ("data", "1.00"), ("host", "0.25"),
    ]  # fmt: skip
    assert '<th scope="row">0</th><td>20</td><td>12.25</td><td>8.00</td><td>3.00</td><td>1.00</td><td>0.25</td>' in page
    assert '12.25 ms <b class="mark warn">◀ WARN</b>' in page
    assert "python &lt;b&gt;train.py" in page
    assert page == render_html(run_report())
