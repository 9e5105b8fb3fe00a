"""The rows of the check list: checks under their domains, filtered and folded; and the widget that draws them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Status
from gpudoctor.checks.core.registry import DOMAINS, LEVELS, Level
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import grouped_label
from gpudoctor.report.model import Report
from gpudoctor.text.output import printable
from gpudoctor.tui.labels import WORDS, drawn_style
from gpudoctor.tui.state import Running

RUN = "RUN"
_COUNTED = {"PASS": "ok", "FAIL": "fail"}
_STATUS_WIDTH = 7
_TONES = {"FAIL": "fail", "unknown": "unknown", "warn": "warn", "PASS": "pass", "skip": "skip", RUN: "title"}
_DETAIL_MIN = 6


@dataclass(frozen=True)
class CheckRow:
    """One row. `check_id` is None for the row of a domain. `opened`: whether the domain shows its checks.

    `word` is the status or RUN, `detail` the text at the right, `gpu` the first GPU concerned.
    """

    domain: str
    check_id: str | None
    word: str
    detail: str
    gpu: int | None = None
    opened: bool = False

    @property
    def name(self) -> str:
        return self.domain if self.check_id is None else self.check_id.partition(".")[2]


def rows_of(
    report: Report | None,
    running: Running | None,
    folded: Mapping[str, bool],
    filter_text: str = "",
    problems_only: bool = False,
) -> list[CheckRow]:
    """All visible rows. `folded`: the domains that the user has folded (True) or unfolded (False).

    Any other domain is unfolded if it has a problem or a filter is set.
    """
    rows: list[CheckRow] = []
    level = report.run.level if report is not None else "quick"
    for domain, group in groupby(_in_order(report.checks if report else ()), key=lambda check: check.domain):
        checks = list(group)
        labels = {check.id: RUN if is_running(check, running) else WORDS[check.status] for check in checks}
        shown = [
            check
            for check in checks
            if (not problems_only or check.status in PROBLEMS or labels[check.id] == RUN)
            and (not filter_text or _matches(check, labels[check.id], filter_text))
        ]
        if not shown:
            continue
        has_problem = any(check.status in PROBLEMS or labels[check.id] == RUN for check in checks)
        opened = not folded.get(domain, not (has_problem or bool(filter_text) or problems_only))
        rows.append(
            CheckRow(domain, None, _worst_word(labels.values()), _summary(checks, labels, level), opened=opened)
        )
        if opened:
            rows += [_check_row(check, labels[check.id], level) for check in shown]
    return rows


def is_running(check: CheckResult, running: Running | None) -> bool:
    """Whether the current run will judge this check.

    In a run of all checks above quick only those that wait for the probes count: the quick
    checks keep their status.
    """
    if running is None or LEVELS.index(check.level) > LEVELS.index(running.level):
        return False
    if running.only:
        return any(word in (check.id, check.domain) or fnmatchcase(check.id, word) for word in running.only)
    return running.level == "quick" or check.level != "quick"


def _in_order(checks: Iterable[CheckResult]) -> list[CheckResult]:
    positions = {domain: position for position, domain in enumerate(DOMAINS)}
    return sorted(checks, key=lambda check: (positions.get(check.domain, len(positions)), check.domain))


def _check_row(check: CheckResult, word: str, level: Level) -> CheckRow:
    worst = [finding for finding in check.findings if finding.status is check.status]
    gpu = next((gpu for finding in worst for gpu in finding.subject.all_gpus), None)
    if word == RUN:
        return CheckRow(check.domain, check.id, word, f"was {WORDS[check.status]}", gpu)
    label = grouped_label(finding.subject for finding in worst)
    if check.status is Status.SKIP:
        label = _why_not(check, level)
    return CheckRow(check.domain, check.id, word, "" if label == "node" else label, gpu)


def _why_not(check: CheckResult, level: Level) -> str:
    if LEVELS.index(check.level) > LEVELS.index(level):
        return f"level {check.level}"
    return next((finding.reason for finding in check.findings if finding.reason), "")


def _worst_word(labels: Iterable[str]) -> str:
    order = [WORDS[status] for status in WORST_FIRST]
    return min(labels, key=lambda word: -1 if word == RUN else order.index(word))


def _summary(checks: list[CheckResult], labels: Mapping[str, str], level: Level) -> str:
    """ "1 fail  3 ok"; the reason if the whole domain was skipped."""
    counts = Counter(labels.values())
    if set(counts) == {WORDS[Status.SKIP]}:
        return _why_not(checks[0], level)
    order = ("FAIL", "unknown", "warn", RUN, "PASS", "skip")
    return "  ".join(f"{counts[word]} {_COUNTED.get(word, word)}" for word in order if counts[word])


def _matches(check: CheckResult, word: str, filter_text: str) -> bool:
    """Whether the text is part of the id, the title, a subject or the status, in any case."""
    sought = filter_text.casefold()
    texts = [check.id, check.title, word, *(finding.subject.label for finding in check.findings)]
    return any(sought in text.casefold() for text in texts)


class CheckLines(ScrollView, can_focus=True):
    """One line for each row. The detail at the right is dropped first if there is no room."""

    ALLOW_SELECT = False
    DEFAULT_CSS = "CheckLines { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "move(-100000)", "First", show=False),
        Binding("end", "move(100000)", "Last", show=False),
        Binding("left", "fold(True)", "Fold", show=False),
        Binding("right", "fold(False)", "Unfold", show=False),
        Binding("enter,space", "enter", "Page / fold", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The user moved the cursor to this row."""

        row: CheckRow

    @dataclass
    class Entered(Message):
        """The user pressed enter on this row, or clicked it twice."""

        row: CheckRow

    @dataclass
    class Folded(Message):
        """The user folded (`shut`) or unfolded the domain of this row."""

        row: CheckRow
        shut: bool

    rows: tuple[CheckRow, ...] = ()
    _at = 0
    _empty = ""
    _name_width = 0

    @property
    def row(self) -> CheckRow | None:
        """The row under the cursor."""
        return self.rows[self._at] if self._at < len(self.rows) else None

    def show_rows(self, rows: Sequence[CheckRow], empty: str) -> None:
        """Replace the rows; the cursor stays on its check, or moves to its domain if that was folded."""
        before = self.row
        self.rows, self._empty = tuple(rows), empty
        self._name_width = max((len(row.name) for row in self.rows), default=0)
        was_at = self._at
        if before is not None:
            positions = {(row.domain, row.check_id): position for position, row in enumerate(self.rows)}
            position = positions.get((before.domain, before.check_id), positions.get((before.domain, None)))
            self._at = min(self._at, max(0, len(self.rows) - 1)) if position is None else position
        self.virtual_size = Size(0, len(self.rows))
        if self._at != was_at:
            # keep the cursor's line at its place on the screen
            self.scroll_to(y=self.scroll_offset.y + self._at - was_at, animate=False, force=True)
        self.refresh()

    def move_to(self, row: CheckRow) -> None:
        """Move the cursor to one of the rows."""
        self._put(self.rows.index(row))

    def _put(self, position: int) -> bool:
        """Move the cursor; whether it moved."""
        position = max(0, min(position, len(self.rows) - 1))
        moved, self._at = position != self._at, position
        if self.rows:
            self.scroll_to_region(Region(0, position, 1, 1), animate=False, force=True, x_axis=False)
        self.refresh()
        return moved

    def _user_put(self, position: int) -> None:
        if self._put(position) and self.row is not None:
            self.post_message(self.Moved(self.row))

    def action_move(self, by: int) -> None:
        self._user_put(self._at + by)

    def action_page(self, direction: int) -> None:
        self._user_put(self._at + direction * max(1, self.size.height - 1))

    def action_enter(self) -> None:
        if self.row is not None:
            self.post_message(self.Entered(self.row))

    def action_fold(self, shut: bool) -> None:
        if self.row is not None:
            self.post_message(self.Folded(self.row, shut))

    def on_click(self, event: events.Click) -> None:
        position = event.y + self.scroll_offset.y
        if not 0 <= position < len(self.rows):
            return
        row = self.rows[position]
        self._user_put(position)
        if row.check_id is None or event.chain == 2:
            self.post_message(self.Entered(row))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        # the scrollbar is drawn over the last column of `size`
        width, position = self.scrollable_content_region.width, y + self.scroll_offset.y
        if position >= len(self.rows):
            text = self._empty if position == 0 else ""
            return Strip([Segment(text, self.rich_style)]).adjust_cell_length(width, self.rich_style)
        row = self.rows[position]
        under: tuple[str, ...] = ()
        if position == self._at:
            under = ("cursor-focused" if self.has_focus else "cursor",)
        segments = [
            Segment(text, drawn_style(self, tone, *under))
            for text, tone in _pieces(row, width, self._name_width, cursor=position == self._at)
        ]
        return Strip(segments).adjust_cell_length(width, drawn_style(self, *under))


def _pieces(row: CheckRow, width: int, name_width: int, *, cursor: bool) -> list[tuple[str, str]]:
    """(text, tone) from the left; a domain starts at the left edge, a check is indented.

    `name_width`: that of the longest name, so that the details line up.
    """
    tone = _TONES.get(row.word, "")
    name = printable(row.name)
    mark = ("v " if row.opened else "> ") if row.check_id is None else ("  > " if cursor else "    ")
    # both kinds of row have their details in the same column
    room = width - 4 - _STATUS_WIDTH - 1
    detail = printable(row.detail)
    detail_room = room - name_width - 2
    if detail_room < _DETAIL_MIN:
        detail_room = 0
    shown = detail if len(detail) <= detail_room else detail[: max(0, detail_room - 1)] + "~" if detail_room else ""
    name_room = room - (detail_room + 2 if detail_room else 0) + (4 - len(mark))
    return [
        (mark, ""),
        (f"{row.word:<{_STATUS_WIDTH}} ", tone),
        (f"{name[:name_room]:<{name_room}}  ", "head" if row.check_id is None else ""),
        (shown, "detail"),
    ]
