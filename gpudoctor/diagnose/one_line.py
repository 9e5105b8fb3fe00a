"""What one line of a job's output stands for, pasted without the rest of its log."""

from __future__ import annotations

from gpudoctor.diagnose.build import diagnose
from gpudoctor.diagnose.causes import CAUSES, page_of
from gpudoctor.diagnose.gather import GatheredLogs
from gpudoctor.diagnose.places import LogFile
from gpudoctor.diagnose.reader import LogReader
from gpudoctor.statements.prefixes import labels_of


def cause_of_line(text: str) -> str | None:
    """The cause by a diagnosis of this line alone, else what the line is read as; None if no page explains it."""
    reader = LogReader(0, labels_of([text]))
    events = [*reader.read(1, text), *reader.end()]
    gathered = GatheredLogs(files=[LogFile("the line")])
    gathered.log.extend(events)
    answer = diagnose(gathered)
    if answer.verdict == "cause" and answer.cause is not None and answer.cause.what in CAUSES:
        return answer.cause.what
    # a rank that only waits is no cause, but what it says has a page
    return next((event.what for event in events if page_of(event.what) is not None), None)
