"""The list of checks by domain, with keys to fold, filter and run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from gpudoctor.checks.core.finding import PROBLEMS
from gpudoctor.checks.core.registry import LEVELS
from gpudoctor.report.model import Report
from gpudoctor.tui.labels import WORDS
from gpudoctor.tui.panes.check_rows import CheckLines, CheckRow, rows_of
from gpudoctor.tui.panes.pane import PageWanted, RunWanted
from gpudoctor.tui.state import State

_PROBLEM_WORDS = tuple(WORDS[status] for status in PROBLEMS)


@dataclass
class CheckChosen(Message):
    """The cursor moved to this check; `gpu` is the first GPU (NVML index) that its worst finding names."""

    check_id: str
    gpu: int | None = None


class CheckList(Vertical):
    """Draws `state.report` as a list; `show` redraws only if something changed.

    Cursor, folds, filter and scroll position stay as the user set them.
    """

    DEFAULT_CSS = """
    CheckList {
        height: 1fr;
        & > Input { display: none; height: 1; }
        & > .filtered { display: none; height: 1; color: $text-warning; text-style: bold; }
        & > .-shown { display: block; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("r", "run_one", "Check"),
        ("e", "page", "Explain"),
        ("slash", "filter", "Filter"),
        ("f", "problems", "Problems"),
        ("escape", "no_filter", "No filter"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines = CheckLines()
        self._input = Input(placeholder="id, title, GPU or status", compact=True)
        self._said = Static(classes="filtered")
        self._state = State()
        self._folded: dict[str, bool] = {}
        self._filter = ""
        self._problems_only = False
        self._touched = False
        self._shown: object = None
        self._report: Report | None = None

    def compose(self) -> ComposeResult:
        yield self._lines
        yield self._said
        yield self._input

    def show(self, state: State) -> None:
        """Draw the state's newest report."""
        self._state = state
        running = state.running
        key = (
            id(state.report),
            None if running is None else (running.only, running.level, running.since_s),
            self._filter,
            self._problems_only,
            tuple(self._folded.items()),
        )
        if key == self._shown:
            return
        # keep a reference to the report, so that no other object can get its id
        self._shown, self._report = key, state.report
        rows = rows_of(state.report, running, self._folded, self._filter, self._problems_only)
        before = self._lines.row
        self._lines.show_rows(rows, empty=self._nothing(state))
        filtered_out = before is not None and all(row.domain != before.domain for row in rows)
        if not self._touched or filtered_out:
            checks = [row for row in rows if row.check_id is not None]
            problems = [row for row in checks if row.word in _PROBLEM_WORDS]
            if problems:
                self._lines.move_to(min(problems, key=lambda row: _PROBLEM_WORDS.index(row.word)))
            elif filtered_out and checks:
                self._lines.move_to(checks[0])
        after = self._lines.row
        if after is not None and after.check_id is not None and after != before:
            self.post_message(CheckChosen(after.check_id, after.gpu))

    def choose(self, check_id: str) -> None:
        """Move the cursor to a check if the list shows it; posts no message."""
        row = next((row for row in self._lines.rows if row.check_id == check_id), None)
        if row is not None:
            self._touched = True
            self._lines.move_to(row)

    @property
    def chosen(self) -> CheckRow | None:
        """The row under the cursor."""
        return self._lines.row

    def _nothing(self, state: State) -> str:
        if state.report is None:
            return "running the first check ..." if state.running is not None else "nothing was checked yet: R runs all"
        if self._problems_only and not self._filter:
            return "no problem among what was checked"
        return "nothing matches"

    @on(CheckLines.Moved)
    def _moved(self, event: CheckLines.Moved) -> None:
        event.stop()
        self._touched = True
        if event.row.check_id is not None:
            self.post_message(CheckChosen(event.row.check_id, event.row.gpu))

    @on(CheckLines.Entered)
    def _entered(self, event: CheckLines.Entered) -> None:
        event.stop()
        if event.row.check_id is not None:
            self.post_message(PageWanted(event.row.check_id))
        else:
            self._fold(event.row, shut=event.row.opened)

    @on(CheckLines.Folded)
    def _fold_asked(self, event: CheckLines.Folded) -> None:
        event.stop()
        self._fold(event.row, event.shut)

    def _fold(self, row: CheckRow, shut: bool) -> None:
        self._touched = True
        self._folded[row.domain] = shut
        self.show(self._state)

    def action_run_one(self) -> None:
        """Run the check, or the domain, under the cursor."""
        if (run := self.one_wanted()) is not None:
            self.post_message(run)

    def one_wanted(self) -> RunWanted | None:
        """The run of the check under the cursor at its level; of its domain if the cursor is on a domain."""
        row = self.chosen
        if row is None or row.check_id is None:
            return self.domain_wanted()
        checks = self._report.checks if self._report is not None else ()
        return next((RunWanted((check.id,), check.level) for check in checks if check.id == row.check_id), None)

    def domain_wanted(self) -> RunWanted | None:
        """The run of the cursor's domain, at the level of the last run of all checks but within the domain's levels."""
        checks = self._report.checks if self._report is not None else ()
        domain = self.chosen.domain if self.chosen is not None else None
        levels = [LEVELS.index(check.level) for check in checks if check.domain == domain]
        if domain is None or not levels:
            return None
        deep_enough = max(min(levels), min(max(levels), LEVELS.index(self._state.level)))
        return RunWanted((domain,), LEVELS[deep_enough])

    def action_page(self) -> None:
        if self.chosen is not None and self.chosen.check_id is not None:
            self.post_message(PageWanted(self.chosen.check_id))

    def action_problems(self) -> None:
        self._problems_only = not self._problems_only
        self._filter_changed()

    def action_filter(self) -> None:
        self._input.add_class("-shown")
        self._input.focus()

    def action_no_filter(self) -> None:
        """Clear the filter and close its input line."""
        self._input.value = ""
        self._filter = ""
        self._problems_only = False
        self._end_typing()
        self._filter_changed()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "no_filter":
            return bool(self._filter or self._problems_only or self._input.has_focus)
        return True

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._filter = event.value.strip()
        self._problems_only = self._problems_only and not self._filter  # a filter looks in all checks
        self._filter_changed()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._end_typing()
        self._filter_changed()

    def _end_typing(self) -> None:
        had_focus = self._input.has_focus
        self._input.remove_class("-shown")
        if had_focus:
            self._lines.focus()

    def _filter_changed(self) -> None:
        parts = [f"filter: {self._filter}"] if self._filter and not self._input.has_class("-shown") else []
        parts += ["only problems"] if self._problems_only else []
        self._said.update(Content(f"{', '.join(parts)} (escape: all)" if parts else ""))
        self._said.set_class(bool(parts), "-shown")
        self.refresh_bindings()
        self.show(self._state)

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        # a click elsewhere closes the input line too
        if event.widget is self._input:
            self._input.remove_class("-shown")
            self._filter_changed()
