"""A line to a statement: form, class, what it is about, and the label if the text is known."""

from __future__ import annotations

from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.about import about
from gpudoctor.statements.catalogue import find_label
from gpudoctor.statements.classes import kind_of
from gpudoctor.statements.forms import Reading, form_of, is_no_news
from gpudoctor.statements.model import Statement
from gpudoctor.statements.prefixes import Origin
from gpudoctor.statements.records import Record, read_record, record_in
from gpudoctor.statements.told import told

MOST_TEXT = 4096
# "it does not happen on GPU 1", "GPU 1 is fine", "all except GPU 2": named, and not what the message is about
_INNOCENT = lazy_pattern(
    r"(?i)\b(?:(?:not|n['’]t|never) (?:happen|occur|appear)\w* (?:on|with|at|for)|except(?: for| on)?|other than|unlike) (?:the |my )?GPU ?#?\d{1,3}\b"
    r"|\bGPU ?#?\d{1,3} (?:is|works|runs|looks) (?:still |all |perfectly )?(?:fine|ok|okay|good|healthy|well)(?=\W*$|[.;])"
)


def statement_of(number: int, origin: Origin, text: str) -> Statement | None:
    """The statement of a line whose prefixes were stripped.

    >>> found = statement_of(1, Origin(), "GPU 3 has fallen off the bus")
    >>> found.kind, found.about.gpu_index, found.label
    ('cause', 3, 'gpu_lost')
    """
    program = origin.program
    if text.startswith("kernel: "):
        program, text = "kernel", text[8:]
    level = origin.level or origin.level_word
    if text[:1] in ("{", "[") and (record := record_in(text)) is not None:
        if (statement := statement_of_record(number, record)) is not None:
            return statement
        _, sentences, own_level = read_record(record)
        text, level = sentences or text, level or own_level
    reading, known = form_of(text, level), find_label(text)
    if (reading.form == "sentence" if reading else known is not None) and (rest := told(text)) != text:
        text = rest
        reading, known = form_of(text, level), find_label(text)
    if reading is None and known is not None and not is_no_news(text[: known[1]], level):
        reading = Reading("sentence", "error", text.strip()[:MOST_TEXT])
    if reading is None:
        return None
    return _made(number, reading, program, known[0] if known else None)


def statement_of_record(number: int, record: Record) -> Statement | None:
    """What a record says by its own verdict, if it is a bad one."""
    reading = read_record(record)[0]
    if reading is None:
        return None
    known = find_label(reading.message)
    return _made(number, reading, None, known[0] if known else None)


def _made(number: int, reading: Reading, program: str | None, label: str | None) -> Statement:
    return Statement(
        line=number,
        message=reading.message,
        form=reading.form,
        severity=reading.severity,
        kind=kind_of(reading.message.rpartition("stderr: ")[2]),  # of a program's own words, where another quotes them
        program=reading.program or program,
        about=about(_INNOCENT.sub("", reading.message)),
        label=label,
    )
