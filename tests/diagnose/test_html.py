"""The diagnosis as a page: its order, its paths, and the events of each rank."""

from __future__ import annotations

import doctest
import re

import pytest
from msgspec.structs import replace

from gpudoctor.diagnose import html
from gpudoctor.diagnose.diagnosis import Cause, Diagnosis, EvidenceLine, TimelineEntry, Unread, Victim
from gpudoctor.diagnose.html import in_order, render_html, short_paths

NODE_A, NODE_B = "/scratch/jobs/17/a/out.log", "/scratch/jobs/17/b/out.log"


def entry(time: str | None, rank: int, line: int, file: str = NODE_A) -> TimelineEntry:
    return TimelineEntry(time, rank, "a" if file == NODE_A else "b", "event", file, line, f"line {line}")


def answer_of(*timeline: TimelineEntry) -> Diagnosis:
    shown = EvidenceLine(NODE_B, 7, "line 7")
    return Diagnosis(
        verdict="cause",
        cause=Cause("user_exception", 1, "b", None, "certain", "KeyError: '<b>x'", (shown,)),
        victims=(Victim(0, "a", "lost a peer", (EvidenceLine(NODE_A, 3, "line 3"),)),),
        timeline=timeline,
        files=2,
    )


DATED = answer_of(
    entry("23:59:58.000", 0, 1), entry("23:59:59.000", 1, 7, NODE_B), entry("00:00:00.000", 0, 3), entry("00:00:02.000", 0, 4)
)  # fmt: skip
UNDATED = answer_of(entry(None, 0, 1), entry(None, 0, 3), entry(None, 1, 7, NODE_B))


def test_the_page_says_verdict_what_to_do_and_evidence_in_this_order() -> None:
    page = render_html(replace(DATED, unread=(Unread("/scratch/jobs/17/core", "no text"),)))
    marks = (
        'class="word">CAUSE<',
        ">What to do<",
        ">When it happened<",
        ">Lines that show it<",
        ">Not read<",
        ">Timeline<",
    )
    assert [page.index(mark) for mark in marks] == sorted(page.index(mark) for mark in marks)
    assert '<details class="rest" id="timeline">' in page
    assert "KeyError: &#39;&lt;b&gt;x&#39;" in page
    assert page == render_html(replace(DATED, unread=(Unread("/scratch/jobs/17/core", "no text"),)))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (replace(DATED, verdict="unknown"), "UNKNOWN"),
        (replace(DATED, verdict="nothing"), "RECOVERED"),
        (Diagnosis(verdict="nothing", cause=None, reason="no error in 2 files"), "NOTHING FOUND"),
        (Diagnosis(verdict="unknown", cause=None, reason="no job's line", recognised=False), "NOT RECOGNISED"),
        (Diagnosis(verdict="unknown", cause=None, reason="nothing shows that it ended"), "UNKNOWN"),
        (Diagnosis(verdict="unknown", cause=None, error="a.log: no such file"), "NO ANSWER"),
    ],
)
def test_what_was_not_found_is_never_called_a_cause(answer: Diagnosis, word: str) -> None:
    assert re.findall(r'class="word">([^<]*)<', render_html(answer)) == [word]


def test_paths_are_as_short_as_they_differ_and_whole_in_a_table() -> None:
    assert doctest.testmod(html).failed == 0
    page = render_html(DATED)
    assert f'<span title="{NODE_B}:7">b/out.log:7</span>' in page
    assert "a/out.log:3" in page
    assert re.search(rf'scope="row">b/out.log</th><td[^>]*>{NODE_B}</td>', page)
    assert short_paths(["same.log", "/x/same.log"]) == {"/x/same.log": "x/same.log", "same.log": "same.log"}


def places(answer: Diagnosis) -> list[tuple[str, str]]:
    """The (kind, place) of each mark in the lanes, lane by lane."""
    return re.findall(r'<i class="(cause|victim|event)" title="[^"]*" style="left:([0-9.]+)%"', render_html(answer))


def test_lanes_are_on_a_time_axis_over_midnight_with_the_cause_first() -> None:
    assert places(DATED) == [("cause", "25"), ("event", "0"), ("victim", "50"), ("victim", "100")]
    page = render_html(DATED)
    assert "<span>23:59:58.000</span><span>00:00:02.000</span>" in page
    assert "Each host by its own clock." in page


def test_lanes_without_times_are_in_the_order_of_the_lines_and_say_so() -> None:
    assert [kind for kind, _ in places(UNDATED)] == ["cause", "victim", "victim"]
    assert "In the order of the lines: not all of them have a time." in render_html(UNDATED)
    assert "<span>first line</span><span>last line</span>" in render_html(UNDATED)


def test_a_cause_without_a_time_stands_before_what_follows_from_it() -> None:
    answer = answer_of(entry("10:00:05.000", 0, 3), entry("10:00:05.000", 1, 9, NODE_B), entry(None, 1, 7, NODE_B))
    assert [each.line for each in in_order(answer)] == [7, 3, 9]
