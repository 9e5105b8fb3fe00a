"""A line to a statement: form, class, what it is about, and the label if the text is known."""

from __future__ import annotations

from gpudoctor.statements.about import about
from gpudoctor.statements.catalogue import find_label
from gpudoctor.statements.classes import kind_of
from gpudoctor.statements.forms import Reading, form_of, is_no_news
from gpudoctor.statements.model import Statement
from gpudoctor.statements.prefixes import Origin
from gpudoctor.statements.told import told

MOST_TEXT = 4096


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
    reading, known = form_of(text, level), find_label(text)
    if (reading.form == "sentence" if reading else known is not None) and (rest := told(text)) != text:
        text = rest
        reading, known = form_of(text, level), find_label(text)
    if reading is None and known is not None and not is_no_news(text[: known[1]], level):
        reading = Reading("sentence", "error", text.strip()[:MOST_TEXT])
    if reading is None:
        return None
    return Statement(
        line=number,
        message=reading.message,
        form=reading.form,
        severity=reading.severity,
        kind=kind_of(reading.message.rpartition("stderr: ")[2]),  # of a program's own words, where another quotes them
        program=reading.program or program,
        about=about(reading.message),
        label=known[0] if known else None,
    )
