"""`nvidia-bug-report.log`: one large text of many commands' output, taken apart by its rulers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.join import Dumps
from gpudoctor.facts.captures.lines import lines_of
from gpudoctor.facts.captures.opened import head_text
from gpudoctor.facts.captures.recognise import recognise

# a line of underscores before each command's output
_RULER = b"\n" + b"_" * 20
# the journal of an earlier boot says nothing of this one
_EARLIER_BOOT = re.compile(r"journalctl\b.{0,80}(?:-b|--boot)[ =]?-[1-9]")
_SMI_KINDS = ("smi-xml", "smi-text")


def add_bug_report(dumps: Dumps, data: bytes, file: str) -> None:
    """Add every section that gpudoctor can read to `dumps`.

    Raise SourceError where there is none, or where the nvidia-smi section is broken; any other
    broken section is named in the notes.
    """
    found = 0
    for section in _sections(data):
        head = head_text(section)
        if _EARLIER_BOOT.search(head[:500]):
            continue
        kind = recognise(head)
        if kind is None or kind == "bug-report":
            continue
        try:
            read = dumps.add(lines_of([section]), file, quiet=True)
        except SourceError as error:
            if kind in _SMI_KINDS:
                raise SourceError(f"nvidia-smi section: {error}") from None
            dumps.notes.append(f"{file}: the {kind} section was not read: {error}")
            continue
        found += read
    if not found:
        raise SourceError("a bug report without any section that gpudoctor reads (cut off, or the driver not loaded)")


def _sections(data: bytes) -> Iterator[bytes]:
    """The text between two rulers; the head of the report first."""
    start = 0
    while start < len(data):
        ruler = data.find(_RULER, start)
        if ruler < 0:
            ruler = len(data)
        if ruler > start:
            yield data[start : ruler + 1]  # with the line end that the ruler's own match starts at
        line_end = data.find(b"\n", ruler + 1)
        start = len(data) if line_end < 0 else line_end
