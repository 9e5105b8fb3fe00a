"""Lines to statements: prefix, form, class, what it is about, and the label if the text is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.statements.about import about
from gpudoctor.statements.catalogue import find_label
from gpudoctor.statements.classes import kind_of
from gpudoctor.statements.forms import Reading, form_of, is_no_news
from gpudoctor.statements.model import Speaker, Statement
from gpudoctor.statements.prefixes import (
    LABEL_LINES,
    NO_LABELS,
    Origin,
    labels_of,
    stripped,
    unmarked,
    with_short_numbers,
)

_MOST_TEXT = 4096


def read_statements(lines: Iterable[str]) -> Iterator[Statement]:
    """The statements of a text, in order; a line of any length and form is safe.

    Labels that only many lines show (`3: ` of srun, hosts of pdsh, a margin) are taken from the first 200.

    >>> [(s.kind, s.about.gpu_index, s.label) for s in read_statements(["## GPU 3 has fallen off the bus"])]
    [('cause', 3, 'gpu_lost')]
    """
    first: list[str] = []
    rest = iter(lines)
    for line in rest:
        first.append(line[:_MOST_TEXT])
        if len(first) >= LABEL_LINES:
            break
    labels = labels_of(first) if first else NO_LABELS
    number = 0
    for some in (first, rest):
        for line in some:
            number += 1
            whole = line[:_MOST_TEXT].rstrip("\r\n")
            origin, text = stripped(unmarked(with_short_numbers(whole.removeprefix(labels.margin))), labels)
            if statement := statement_of(number, origin, text, whole.strip()):
                yield statement


def statement_of(number: int, origin: Origin, text: str, whole: str) -> Statement | None:
    """The statement of one line whose prefixes were stripped; `whole` is the line as it was."""
    program = origin.program
    if text.startswith("kernel: "):
        program, text = "kernel", text[8:]
    level = origin.level or origin.level_word
    reading = form_of(text, level)
    known = find_label(text)
    if reading is None and known is not None and not is_no_news(text[: known[1]], level):
        reading = Reading("sentence", "error", text.strip()[:_MOST_TEXT])
    if reading is None:
        return None
    named = about(reading.message)
    if reading.form == "sentence" and known is None and text.rstrip().endswith(":") and not named.names_a_device:
        return None  # it only introduces what follows
    return Statement(
        line=number,
        text=whole,
        message=reading.message,
        form=reading.form,
        severity=reading.severity,
        kind=kind_of(reading.message),
        speaker=Speaker(reading.program or program, origin.rank, origin.pid or origin.program_pid, origin.host),
        about=named,
        when=origin.time_s,
        label=known[0] if known else None,
    )
