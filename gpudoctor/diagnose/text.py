"""The answer as text: what, where, the lines that show it, why other ranks are only victims, what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby

from gpudoctor.diagnose.causes import steps_for, text_of_cause
from gpudoctor.diagnose.diagnosis import AlsoSaid, Cause, Diagnosis, EvidenceLine, Victim, counted_out
from gpudoctor.diagnose.events import clipped
from gpudoctor.statements.catalogue import ONE_DIGIT
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable

_LABEL = 11
_NARROWEST = 40
_UNBROKEN = 10_000  # columns: a command is there to be copied
_EVIDENCE_WIDTH, _LEAST_QUOTED = 300, 60
_MOST_CLOCKS = 6
_TIMELINE_INDENT = 16  # that of the second column
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_STYLES = {"cause": "\x1b[1;31m", "unknown": "\x1b[1;33m", "nothing": "\x1b[1;32m"}


def render_text(answer: Diagnosis, *, width: int = 100, color: bool = False, verbose: bool = False) -> str:
    """The whole answer; `verbose` adds the timeline."""
    lines = list(_lines(answer, max(width, _NARROWEST), color, verbose))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _lines(answer: Diagnosis, width: int, color: bool, verbose: bool) -> Iterator[str]:
    cause, word = answer.cause, (answer.word, _STYLES[answer.verdict])
    if cause is None:
        yield _painted(*word, color)
        yield from _row("read", f"{answer.files} file{'s' if answer.files != 1 else ''}: {answer.reason}", width)
        yield from _rows("it says", [_line_of(line) for line in answer.unexplained], width)
    elif answer.verdict == "nothing":
        yield from _of_cause([word], cause, width, color)
    else:
        yield from _of_cause([word, (cause.what, _BOLD)], cause, width, color)
        yield from _rows("also", (_also(other, width) for other in answer.also), width)
        yield from _rows("reports", filter(None, [answer.reason]), width)
        yield from _victims(answer.victims, width)
        if answer.silent_ranks:
            silent = f"nothing is heard of {counted_out(answer.silent_ranks, 'rank')} of {answer.world_size}"
            yield from _row("silent", silent, width)
        yield from _rows("clocks", [printable(skew.words) for skew in answer.clocks[:_MOST_CLOCKS]], width)
        yield from _rows("do", steps_for(cause.what, cause.confidence), width)
        steps = [f"on {printable(step.host)}: {step.command}" if step.host else step.command for step in answer.next]
        yield from _rows("next", steps, _UNBROKEN)
        yield from _rows("collect", answer.collect, width)
        yield from _rows("explain", [f"gpudoctor explain diagnose.{text_of_cause(cause.what).page}"], _UNBROKEN)
        for other in answer.others:
            yield ""
            yield from _of_cause([("OR", _DIM), (other.what, "")], other, width, color)
    for unread in answer.unread:
        yield from _row("not read", f"{printable(unread.file)}: {printable(unread.reason)}", width)
    if verbose and answer.timeline:
        yield ""
        yield _painted("Timeline", _BOLD, color) + "  (each host by its own clock)"
        for entry in answer.timeline:
            who = f"rank {entry.rank}" if entry.rank is not None else "-"
            place = f"{printable(entry.file)}:{entry.line}"
            line = f"  {entry.time or '-':>12}  {who:<9} {printable(entry.host or '-'):<16} {entry.what:<22} {place}"
            yield from _wrapped(line, width, subsequent_indent=" " * _TIMELINE_INDENT)


def _of_cause(styled: list[tuple[str, str]], cause: Cause, width: int, color: bool) -> Iterator[str]:
    """The (word, style) pairs and the title, which goes on where the values begin; and the rows of one cause."""
    plain, title = "".join(f"{word}  " for word, _ in styled), text_of_cause(cause.what).title
    first, *more = textwrap.wrap(plain + title, width, subsequent_indent=" " * (_LABEL + 4), break_on_hyphens=False)
    painted = "".join(f"{_painted(word, style, color and bool(style))}  " for word, style in styled)
    yield painted + first[len(plain) :]
    yield from more
    yield from _row("where", printable(cause.place), width)
    if cause.text != title:
        yield from _row("found", printable(cause.text), width)
    yield from _row("confidence", cause.confidence, width)
    yield from _rows("evidence", _evidence(cause, width), width)


def _evidence(cause: Cause, width: int) -> Iterator[str]:
    """The lines, each once: one row of what `found` quotes, and the places alone of lines that differ in numbers."""
    quoted = cause.text.partition(" (raised from ")[0].strip().removesuffix(" ...")
    for _, alike in groupby(cause.evidence, key=lambda e: (e.file, e.line > 0, e.text.translate(ONE_DIGIT))):
        first, *others = alike
        room = width - _LABEL - 4 - len(_place(first)) - 2
        yield _line_of(first, max(room, _LEAST_QUOTED)) if quoted and quoted in first.text else _line_of(first)
        if others:
            lines = ", ".join([_place(others[0]), *(str(each.line) for each in others[1:])])
            yield f"{lines}  the same, with other numbers"


def _place(evidence: EvidenceLine) -> str:
    return f"{printable(evidence.file)}:{evidence.line}" if evidence.line else printable(evidence.file)


def _line_of(evidence: EvidenceLine, most: int = _EVIDENCE_WIDTH) -> str:
    return f"{_place(evidence)}  {_cut(printable(evidence.text), most)}"


def _also(other: AlsoSaid, width: int) -> str:
    head = f"{printable(other.file)}:{other.line}{', before it' * other.before}  "
    return head + _cut(printable(other.text), max(width - _LABEL - 4 - len(head), _LEAST_QUOTED))


def _cut(text: str, most: int) -> str:
    """The text, or its beginning up to a blank, if one is near."""
    short = clipped(text, most)
    whole = short.removesuffix(" ...").rpartition(" ")[0]
    return short if short == text or len(whole) < most // 2 or text[len(short) - 4] == " " else f"{whole} ..."


def _victims(victims: tuple[Victim, ...], width: int) -> Iterator[str]:
    rows = []
    for reason, same in grouped((victim.text, victim) for victim in victims).items():
        ranks = [v.rank for v in same if v.rank is not None]
        hosts = sorted({v.host for v in same if v.host and v.rank is None})
        who = ", ".join(filter(None, [counted_out(ranks, "rank"), *hosts])) or "others"
        rows.append(f"{who}: {reason} ({_line_of(same[0].evidence[0]).partition('  ')[0]})")
    yield from _rows("victims", rows, width)


def _rows(label: str, texts: Iterable[str], width: int) -> Iterator[str]:
    for text in texts:
        yield from _row(label, text, width)
        label = ""


def _row(label: str, text: str, width: int) -> Iterator[str]:
    indents = {"initial_indent": f"  {label:<{_LABEL}}  ", "subsequent_indent": " " * (_LABEL + 4)}
    yield from _wrapped(text, width, **indents) or [f"  {label}"]


def _wrapped(text: str, width: int, **indents: str) -> list[str]:
    """The text in lines; a path, which is there to be copied, is wider than they are rather than broken."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, **indents)  # type: ignore[arg-type]


def _painted(text: str, style: str, color: bool) -> str:
    return f"{style}{text}{_RESET}" if color else text
