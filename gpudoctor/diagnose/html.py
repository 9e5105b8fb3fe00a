"""The answer as one self-contained page: no scripts, nothing loaded, all text from logs escaped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

import gpudoctor.report.html
from gpudoctor.diagnose.causes import steps_for, text_of_cause
from gpudoctor.diagnose.diagnosis import Cause, Diagnosis, EvidenceLine
from gpudoctor.report.html.elements import Child, document, element, section, table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_CLASS = {"cause": "fail", "unknown": "unknown", "nothing": "pass"}


def render_html(answer: Diagnosis) -> str:
    """The page; the same answer gives the same bytes."""
    return document(element("html", _head(answer), element("body", *_body(answer)), lang="en"))


def _head(answer: Diagnosis) -> Element:
    style = element("style")
    style.text = "\n" + (Path(gpudoctor.report.html.__file__).parent / "page.css").read_text(encoding="utf-8")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{_headline(answer)}: gpudoctor diagnosis"),
        style,
    )


def _headline(answer: Diagnosis) -> str:
    if answer.error is not None:
        return "no answer"
    if answer.cause is None:
        if answer.verdict == "nothing":
            return "nothing found"
        return "unknown" if answer.recognised else "not recognised"
    return f"{answer.cause.what}: {text_of_cause(answer.cause.what).title}"


def _body(answer: Diagnosis) -> Iterator[Child]:
    yield element("header", element("h1", _headline(answer)), class_=f"verdict {_CLASS[answer.verdict]}")
    yield element("main", *_parts(answer))


def _parts(answer: Diagnosis) -> Iterator[Child]:
    if answer.cause is None:
        yield element("p", answer.reason)
        if answer.unexplained:
            last = [(f"{line.file}:{line.line}", line.text) for line in answer.unexplained]
            yield section("Last words", table(("line", "text"), last), id_="last-words")
    else:
        yield section("Cause", _cause(answer.cause), id_="cause")
        if answer.victims:
            rows = [(_who(v.rank, v.host), v.text, *_evidence_cells(v.evidence)) for v in answer.victims]
            yield section("Only victims", table(("who", "what", "line", "text"), rows), id_="victims")
        steps = [
            *steps_for(answer.cause.what, answer.cause.confidence),
            *(f"on {s.host or 'the nodes'}: {s.command}" for s in answer.next),
            *answer.collect,
        ]
        yield section("What to do", element("ul", *(element("li", step) for step in steps)), id_="do")
        if answer.clocks:
            yield section("Clocks of the hosts", *(element("p", skew.words) for skew in answer.clocks), id_="clocks")
        if answer.others:
            yield section("What else remains", *(_cause(other) for other in answer.others), id_="others")
    if answer.unread:
        yield section("Not read", table(("file", "why"), [(u.file, u.reason) for u in answer.unread]), id_="unread")
    if answer.timeline:
        events = [(e.time or "-", _who(e.rank, e.host), e.what, f"{e.file}:{e.line}", e.text) for e in answer.timeline]
        yield section("Timeline", table(("time", "who", "what", "line", "text"), events), id_="timeline")


def _cause(cause: Cause) -> Element:
    place = ", ".join(filter(None, (_who(cause.rank, cause.host), f"GPU {cause.gpu}" if cause.gpu else "")))
    return element(
        "div",
        element("p", element("strong", f"{cause.what} ({cause.confidence})"), f": {cause.text}"),
        element("p", f"Where: {place}"),
        table(("line", "text"), [_evidence_cells((shown,)) for shown in cause.evidence]),
    )


def _evidence_cells(evidence: tuple[EvidenceLine, ...]) -> tuple[str, str]:
    first = evidence[0] if evidence else EvidenceLine("", 0, "")
    return f"{first.file}:{first.line}" if first.line else first.file, first.text


def _who(rank: int | None, host: str | None) -> str:
    return ", ".join(filter(None, (f"rank {rank}" if rank is not None else "", host or ""))) or "no single one"
