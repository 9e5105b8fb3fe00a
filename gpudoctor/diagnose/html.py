"""The answer as a page: verdict, what to do, the events of each rank in order, the lines that show it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from pathlib import PurePath

from gpudoctor.diagnose.causes import steps_for, text_of_cause
from gpudoctor.diagnose.diagnosis import AlsoSaid, Cause, Diagnosis, EvidenceLine, TimelineEntry
from gpudoctor.report.html.parts import (
    Card,
    Cell,
    Chip,
    Code,
    Command,
    Items,
    Lane,
    Lanes,
    Mark,
    Page,
    Paragraph,
    Part,
    Rows,
    Section,
    Short,
    Strong,
    pairs,
    section,
)
from gpudoctor.report.html.render import render_page
from gpudoctor.text.grouped import grouped

_STATUS = {"cause": "fail", "unknown": "unknown", "nothing": "pass"}
_MOST_LANES = 16
_DAY_S, _HALF_DAY_S = 86400, 43200
Paths = Mapping[str, str]


def render_html(answer: Diagnosis) -> str:
    """The page; the same answer gives the same bytes."""
    cause, timeline = answer.cause, in_order(answer)
    evidence = chain(*(cause.evidence for cause in _causes(answer)), *(victim.evidence for victim in answer.victims))
    lines: list[EvidenceLine | TimelineEntry | AlsoSaid] = [*answer.unexplained, *timeline, *evidence, *answer.also]
    paths = short_paths({line.file for line in lines} | {unread.file for unread in answer.unread})
    title = text_of_cause(cause.what).title if cause else "no answer" if answer.error else answer.reason
    page = Page(
        title=f"{answer.word}: {f'{cause.what}: {title}' if cause else title}: gpudoctor diagnosis",
        kicker="gpudoctor diagnosis",
        heading=title,
        status=_STATUS[answer.verdict],
        word=answer.word,
        verdict=f"{cause.what} ({cause.confidence}): {cause.text}" if cause else "",
        reason=f"Where: {cause.place}" if cause else "",
        where=_read(answer),
        banners=(("ERROR", answer.error, "loud"),) if answer.error else (),
        do=_do(answer),
        evidence=(
            *section("When it happened", _lanes(answer, timeline), "lanes"),
            *_shown(answer, paths),
        ),
        rest=tuple(_rest(answer, timeline, paths)),
    )
    return render_page(page)


def short_paths(files: Iterable[str]) -> dict[str, str]:
    """The shortest end of each path that no other file has.

    >>> short_paths(["/logs/a/out.log", "/logs/b/out.log", "/logs/b/err.log"])
    {'/logs/a/out.log': 'a/out.log', '/logs/b/err.log': 'err.log', '/logs/b/out.log': 'b/out.log'}
    """
    ends = {file: [str(PurePath(*PurePath(file).parts[-n:])) for n in range(1, file.count("/") + 2)] for file in files}
    count = Counter(end for each in ends.values() for end in {*each})
    return {file: next((end for end in ends[file] if count[end] == 1), file) for file in sorted(ends)}


def in_order(answer: Diagnosis) -> list[TimelineEntry]:
    """The timeline with undated lines between the dated ones of their file, and a cause before what follows from it."""
    both = [
        # a whole second says when at the earliest: what a launcher's table rounded down came after the lines above it
        (entry, time_s + 0.999 if time_s is not None and (entry.time or "").endswith(".000") else time_s)
        for entry, time_s in zip(answer.timeline, _times_s(answer.timeline), strict=True)
    ]
    by_line = sorted(both, key=lambda each: each[0].line)
    dated = grouped((entry.file, (entry.line, time_s)) for entry, time_s in by_line if time_s is not None)

    def place(entry: TimelineEntry, time_s: float | None) -> tuple[float, bool, bool, str, int]:
        is_cause = _kind(answer, entry) == "cause"
        if time_s is not None:
            return time_s, not is_cause, True, entry.file, entry.line
        own = dated.get(entry.file, [])
        after = bisect_left(own, (entry.line, 0.0))
        # what a launcher reports at the end of a file may be older than the lines before it
        near = max((at for _, at in own[max(after - 1, 0) : after + 1]), default=-inf if is_cause else inf)
        return near, not is_cause, False, entry.file, entry.line

    return [entry for entry, _ in sorted(both, key=lambda each: place(*each))]


def _times_s(timeline: Iterable[TimelineEntry]) -> list[float | None]:
    """Seconds of each entry since the first midnight: a log over midnight goes on."""
    times: list[float | None] = []
    last = 0.0
    for entry in timeline:
        if entry.time is None:
            times.append(None)
            continue
        hours, minutes, seconds = entry.time.split(":")
        clock_s = int(hours) * 3600 + int(minutes) * 60 + float(seconds) + last // _DAY_S * _DAY_S
        last = clock_s + (_DAY_S if clock_s < last - _HALF_DAY_S else 0)
        times.append(last)
    return times


def _kinds(answer: Diagnosis, ordered: Sequence[TimelineEntry]) -> list[str]:
    """The kind of each entry; nobody is a victim before the cause."""
    kinds = [_kind(answer, entry) for entry in ordered]
    first = kinds.index("cause") if "cause" in kinds else 0
    return ["event"] * first + kinds[first:]


def _kind(answer: Diagnosis, entry: TimelineEntry) -> str:
    """Whether the entry shows the cause, a victim, or something else."""
    cause, line = answer.cause, (entry.file, entry.line)
    ranks = (cause.rank, None) if cause and cause.rank is not None else cause.ranks if cause else ()
    at_cause = not ranks or entry.rank in ranks
    if cause and at_cause and line in {(shown.file, shown.line) for shown in cause.evidence}:
        return "cause"
    is_victim = any(
        (entry.rank == victim.rank if victim.rank is not None else entry.host == victim.host)
        for victim in answer.victims
    )
    return "victim" if is_victim else "event"


def _lanes(answer: Diagnosis, timeline: list[TimelineEntry]) -> Iterator[Part]:
    """A lane for each rank; on a time axis if every line has a time, else in the order of the lines."""
    if answer.cause is None or len(timeline) < 2:
        return
    times = [time_s for time_s in _times_s(timeline) if time_s is not None]
    by_time = len(times) == len(timeline) and max(times) > min(times)
    marks: dict[str, list[Mark]] = {}
    for number, (entry, kind) in enumerate(zip(timeline, _kinds(answer, timeline), strict=True)):
        at = (times[number] - times[0]) / (times[-1] - times[0]) if by_time else (number + 0.5) / len(timeline)
        text = f"{entry.time or 'no time'}: {entry.what}: {entry.text}"
        who = f"rank {entry.rank}" if entry.rank is not None else entry.host or "no rank named"
        marks.setdefault(who, []).append(Mark(min(max(at, 0.0), 1.0), kind, text))
    worst = {"cause": 0, "victim": 1, "event": 2}
    lanes = [Lane(name, tuple(each)) for name, each in marks.items()]
    lanes.sort(key=lambda lane: min(worst[mark.kind] for mark in lane.marks))
    ends = (timeline[0].time or "", timeline[-1].time or "") if by_time else ("first line", "last line")
    label = "Events of each rank, the cause marked"
    yield Lanes(label, tuple(lanes[:_MOST_LANES]), *ends)
    message = "Each host by its own clock." if by_time else "In the order of the lines: not all of them have a time."
    more = f" {len(lanes) - _MOST_LANES} more ranks and hosts are in the timeline." if len(lanes) > _MOST_LANES else ""
    yield Paragraph(f"{message}{more} The same as a table: Timeline, below.", "legend")


def _do(answer: Diagnosis) -> tuple[Section, ...]:
    if answer.cause is None:
        return ()
    known = text_of_cause(answer.cause.what)
    steps: list[Cell] = [*steps_for(answer.cause.what, answer.cause.confidence)]
    steps += [(f"On {step.host or 'the nodes'}:", Command(step.command)) for step in answer.next]
    steps += answer.collect
    steps.append(("What is known of this cause:", Command(f"gpudoctor explain diagnose.{known.page}")))
    return section("What to do", (Items(tuple(steps), "steps"),), "do")


def _shown(answer: Diagnosis, paths: Paths) -> Iterator[Section]:
    if answer.cause is not None:
        yield from section("Lines that show it", (_lines(answer.cause.evidence, paths),), "cause")
        also = [(_path(s.file, s.line, paths), "before it" if s.before else "", Code(s.text)) for s in answer.also]
        yield from section("Also in this text", _table(("line", "when", "text"), also), "also")
        if answer.reason:
            yield from section("What reports of the nodes say", (Paragraph(answer.reason),), "reports")
    if answer.unexplained:
        yield from section("Last words", (_lines(answer.unexplained, paths),), "last-words")
    victims = [(_who(v.rank, v.host), v.text, *_first(v.evidence, paths)) for v in answer.victims]
    yield from section("Only victims", _table(("who", "what", "line", "text"), victims), "victims")
    yield from section("What else remains", (_other(other, paths) for other in answer.others), "others")
    yield from section("Clocks of the hosts", (Paragraph(skew.words) for skew in answer.clocks), "clocks")


def _rest(answer: Diagnosis, timeline: list[TimelineEntry], paths: Paths) -> Iterator[Section]:
    unread = [(_path(each.file, 0, paths), each.reason) for each in answer.unread]
    yield from section("Not read", _table(("file", "why"), unread), "unread", opened=True)
    if timeline:
        chips: dict[str, Cell] = {"cause": Chip("fail", "CAUSE"), "victim": Chip("warn", "VICTIM"), "event": ""}
        rows = [
            (e.time or "-", chips[kind], _who(e.rank, e.host), e.what, _path(e.file, e.line, paths), e.text)
            for e, kind in zip(timeline, _kinds(answer, timeline), strict=True)
        ]
        text = "Each host by its own clock; a line without a time stands between its neighbours in the file."
        head = ("time", "", "who", "what", "line", "text")
        yield from section("Timeline", (Paragraph(text, "legend"), *_table(head, rows)), "timeline")
    files = [(short, full) for full, short in paths.items() if short != full]
    yield from section("Files", _table(("short", "whole path"), files), "files")


def _table(head: tuple[str, ...], rows: Sequence[tuple[Cell, ...]]) -> tuple[Part, ...]:
    return (Rows(head, tuple(rows), wraps=True),) if rows else ()


def _causes(answer: Diagnosis) -> tuple[Cause, ...]:
    return (answer.cause, *answer.others) if answer.cause else answer.others


def _other(cause: Cause, paths: Paths) -> Card:
    title = (Strong(cause.what), f"({cause.confidence}): {text_of_cause(cause.what).title}")
    parts = (pairs(("found", cause.text), ("where", cause.place)), _lines(cause.evidence, paths))
    return Card("unknown", title, parts)


def _lines(lines: Iterable[EvidenceLine], paths: Paths) -> Rows:
    rows = tuple((_path(line.file, line.line, paths), Code(line.text)) for line in lines)
    return Rows(("line", "text"), rows, wraps=True)


def _first(evidence: tuple[EvidenceLine, ...], paths: Paths) -> tuple[Cell, Cell]:
    return (_path(evidence[0].file, evidence[0].line, paths), Code(evidence[0].text)) if evidence else ("", "")


def _path(file: str, line: int, paths: Paths) -> Cell:
    number = f":{line}" if line else ""
    return Short(f"{paths[file]}{number}", f"{file}{number}")


def _who(rank: int | None, host: str | None) -> str:
    return ", ".join(filter(None, (f"rank {rank}" if rank is not None else "", host or ""))) or "not named"


def _read(answer: Diagnosis) -> str:
    if answer.error is not None:
        return ""
    files = f"{answer.files} file{'s' if answer.files != 1 else ''} read"
    silent = f"; nothing is heard of {len(answer.silent_ranks)} of {answer.world_size} ranks"
    return files + (silent if answer.silent_ranks else "")
