"""The finding pane: each finding of a check, those of the selected GPU first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Finding, Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import grouped_label
from gpudoctor.report.model import Report
from gpudoctor.report.wording import CommandText, Explained, block_rows, verdict_word, verdict_words
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable
from gpudoctor.tui.labels import WORDS, clock
from gpudoctor.tui.panes.pane import PageWanted, put
from gpudoctor.tui.state import FinishedRun, State

_LABEL_WIDTH = 10
_NARROWEST = 24
_SMALL = (60, 8)  # columns and lines: with less, only the first words of a finding are seen


def finding_content(state: State, check_id: str, gpu: int | None, width: int, *, small: bool = False) -> Content:
    """All findings of the check in `state.report`, wrapped to `width` cells; `small`: little of it is seen at once.

    Findings of `gpu` (NVML index) come first, then the worst. Problems are shown in full; passes and
    skips with the same text share a line.
    """
    result = check_of(state.report, check_id)
    if state.report is None or result is None:
        return Content(f"{printable(check_id)}: not judged yet")
    width = max(width, _NARROWEST)
    lines: list[Content] = []
    findings = sorted(result.findings, key=lambda f: (gpu not in f.subject.all_gpus, WORST_FIRST.index(f.status)))
    for finding in findings:
        if finding.status in PROBLEMS:
            lines += [Content("")] if lines else []
            lines += _problem(state, state.report, result, finding, width, small)
    quiet = [finding for finding in findings if finding.status not in PROBLEMS]
    if quiet:
        lines += [Content("")] if lines else [Content.styled(_cut(f"{result.id}: {result.title}", width), "head")]
        lines += _quiet(quiet, width)
    return Content("\n").join(lines)


def check_of(report: Report | None, check_id: str) -> CheckResult | None:
    """The report's result of this check."""
    return next((check for check in report.checks if check.id == check_id), None) if report is not None else None


def seen(runs: Sequence[FinishedRun], check_id: str, finding: Finding) -> tuple[float, int] | None:
    """(Unix time of the first, number) of the latest runs in a row in which this subject had this status.

    Runs that did not judge the check do not break the row. None if no run has it.
    """
    first_s, count = 0.0, 0
    for run in reversed(runs):
        result = check_of(run.report, check_id)
        if result is None or (result.status is Status.SKIP and finding.status is not Status.SKIP):
            continue
        if not any(f.status is finding.status and f.subject == finding.subject for f in result.findings):
            break
        first_s, count = run.at_s, count + 1
    return (first_s, count) if count else None


def _problem(
    state: State, report: Report, result: CheckResult, finding: Finding, width: int, small: bool
) -> Iterator[Content]:
    label = "" if finding.subject.label == "node" else f" on {printable(finding.subject.label)}"
    word = WORDS[finding.status]
    head = Content.assemble((word, finding.status), (f" {result.id}{label}", "head"))
    since = _since(state.runs, result.id, finding)
    if since and head.cell_length + len(since) + 2 <= width:
        head = Content.assemble(head, " " * (width - head.cell_length - len(since)), since)
        since = ""
    yield from head.wrap(width)
    for name, text in _urgent_first(_short(block_rows(finding, Explained(report).by(result.id, [finding]))), small):
        yield from _labelled(name, text, width)
    if finding.explained_by is not None:
        yield from _labelled("cause", f"explained by {finding.explained_by}", width)
    if since:
        yield from _labelled("seen", since, width)


def _short(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows with each command behind its step: on the screen, lines are scarcer than room for copying."""
    joined: list[tuple[str, str]] = []
    for name, text in rows:
        if isinstance(text, CommandText) and joined:
            before, step = joined.pop()
            joined.append((before, f"{step}  {text.strip()}"))
        else:
            joined.append((name, text))
    return joined


def _urgent_first(rows: list[tuple[str, str]], small: bool) -> list[tuple[str, str]]:
    """The rows of a block, evidence last: what to do must be seen without scrolling; in a small pane it is second."""
    order = {"evidence": 3, **({"found": 0, "reason": 0, "do": 1} if small else {})}
    placed: list[tuple[int, tuple[str, str]]] = []
    label = ""
    for row in rows:
        label = row[0] or label
        placed.append((order.get(label, 2), row))
    return [row for _, row in sorted(placed, key=lambda each: each[0])]


def _since(runs: Sequence[FinishedRun], check_id: str, finding: Finding) -> str:
    """ "first seen 20:31:05, 4 runs in a row"; empty before a second run."""
    found = seen(runs, check_id, finding)
    if found is None or len(runs) < 2:
        return ""
    in_a_row = f"{found[1]} runs in a row" if found[1] > 1 else "new in the last run"
    return f"first seen {clock(found[0])}, {in_a_row}"


def _quiet(findings: list[Finding], width: int) -> Iterator[Content]:
    """Passes and skips: the subjects, and what was found or why it was skipped."""
    groups = grouped(((finding.status, _quiet_text(finding)), finding.subject) for finding in findings)
    for (status, text), subjects in groups.items():
        label = grouped_label(subjects)
        who = "" if label == "node" else f"{label}: "
        word = f"{WORDS[status]:<{_LABEL_WIDTH - 2}}"
        for n, line in enumerate(_wrapped(f"{who}{text}", width)):
            yield Content.assemble((word if n == 0 else " " * len(word), status), "  ", line)


def _quiet_text(finding: Finding) -> str:
    if finding.found is None:
        return finding.reason or ""
    return finding.found.text + (f"; expected {finding.expected.text}" if finding.expected is not None else "")


def _labelled(name: str, text: str, width: int) -> Iterator[Content]:
    for n, line in enumerate(_wrapped(text, width)):
        label = f"{name if n == 0 else '':<{_LABEL_WIDTH}}"
        yield Content.assemble((label, "quiet"), line)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width - _LABEL_WIDTH, break_on_hyphens=False) or [""]


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "~"


def _verdict(report: Report | None, gpu: int | None) -> Content:
    """Without a check, which the first problem chooses by itself: the verdict; of a GPU, that it has none."""
    hint = "Choose a check to see its findings."
    if report is None:
        return Content(hint)
    if gpu is not None:
        return Content(f"GPU {gpu}: no problem found. {hint}")
    word = (verdict_word(report), Status(report.verdict))
    return Content.assemble(word, f"  {verdict_words(report)}\n\n{hint}")


class FindingPane(VerticalScroll, can_focus=True):
    """Draws the findings of one check; scrolls back to the top for another check."""

    DEFAULT_CSS = """
    FindingPane {
        height: 1fr;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        & > Static { height: auto; width: 100%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("enter,e", "page", "Explain")]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._text = Static(id="finding-text")
        self._state: State | None = None
        self._check_id: str | None = None
        self._gpu: int | None = None
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield self._text

    def show_finding(self, state: State, check_id: str | None, gpu: int | None = None) -> None:
        """Draw all findings of the check, those of `gpu` (NVML index) first; a check of None clears the pane."""
        if (check_id, gpu) != (self._check_id, self._gpu):
            self.scroll_home(animate=False)
        self._state, self._check_id, self._gpu = state, check_id, gpu
        self._draw()

    def _draw(self) -> None:
        if self._state is None:
            return
        # always leave the column of the scrollbar free, or lines would wrap differently when it appears
        width = self.scrollable_content_region.width
        small = width < _SMALL[0] and self.size.height < _SMALL[1]
        key = (id(self._state.report), len(self._state.runs), self._check_id, self._gpu, width, small)
        if key == self._drawn or width < 1:
            return
        self._drawn = key
        if self._check_id is None:
            put(self._text, _verdict(self._state.report, self._gpu))
        else:
            put(self._text, finding_content(self._state, self._check_id, self._gpu, width, small=small))

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def action_page(self) -> None:
        if self._check_id is not None:
            self.post_message(PageWanted(self._check_id))
