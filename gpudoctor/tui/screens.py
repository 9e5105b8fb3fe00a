"""The modal screens: confirm, enter a path, save the report, choose a level, read a check's page or the keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Markdown, OptionList, RadioButton, RadioSet, Static
from textual.widgets.option_list import Option

from gpudoctor.checks.core.registry import LEVELS, Level, all_checks
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports
from gpudoctor.report.check_docs import page_text
from gpudoctor.report.model import Report, render_json
from gpudoctor.report.output_files import write_file
from gpudoctor.text.output import printable
from gpudoctor.tui.bindings import Group

with lazy_imports():
    from gpudoctor.report import html

# wording and times as in the README; no time where it gives none
LEVEL_COSTS: dict[Level, str] = {
    "quick": "facts only, a second or two, safe beside running jobs",
    "standard": "loads the GPUs: all_reduce and a short DDP train, about half a minute",
    "full": "loads the GPUs: all collectives, every pair, copies, compute and memory",
    "burn": "loads the GPUs: repeats full for 10 minutes, for drift and errors under load",
}
_LEGEND: Group = (
    "Words",
    [
        ("FAIL", "not fit"),
        ("warn", "costs speed or will cause trouble"),
        ("unknown", "tried, and got no answer"),
        ("ok", "looked, judged, fine"),
        ("-", "not judged or not read"),
        ("LOST", "the driver no longer lists it"),
    ],
)
_Answer = TypeVar("_Answer")


class BoxScreen(ModalScreen[_Answer]):
    """A frame over the middle of the screen."""

    DEFAULT_CSS = """
    BoxScreen {
        align: center middle;
        & > .box {
            width: 90%; max-width: 100; height: auto; max-height: 90%;
            border: round $primary; background: $surface; padding: 0 1;
            border-title-color: $text-primary; border-title-style: bold;
        }
        .message { color: $text-warning; height: auto; text-style: bold; }
        .buttons { height: 1; margin-top: 1; }
        Button { margin-right: 2; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "back", "Back")]

    def action_back(self) -> None:
        """Go back without an answer."""
        self.dismiss(None)


class ConfirmScreen(BoxScreen[bool]):
    """A yes/no question with its reasons; True only for an explicit yes. "No" has the focus."""

    DEFAULT_CSS = "ConfirmScreen VerticalScroll { height: auto; max-height: 14; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,n", "answer(False)", "No"),
        ("y", "answer(True)", "Yes"),
        ("left,right", "other", "Other button"),
    ]

    def __init__(self, title: str, lines: Sequence[str], yes: str) -> None:
        super().__init__()
        self._title = title
        self._lines = tuple(lines)
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content(printable(self._title))
            with VerticalScroll(can_focus=False):
                yield Static(Content("\n".join(printable(line) for line in self._lines)))
            with Horizontal(classes="buttons"):
                yield Button(Content("No (n)"), id="no", compact=True)
                yield Button(Content(f"{self._yes} (y)"), id="yes", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

    def action_other(self) -> None:
        self.focus_next()


class PathScreen(BoxScreen[str]):
    """Prompts for a path; None if the user cancels."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content("Path of a file")
            yield Static(Content(self._title))
            yield Input(placeholder="report.json", compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class SaveScreen(BoxScreen[str]):
    """Saves a report as JSON (complete, with facts) or as an HTML page; returns the path, None if cancelled.

    An error (no permission, full disk) is shown in one line and the user can try again.
    """

    DEFAULT_CSS = "SaveScreen RadioSet { height: auto; layout: horizontal; }"

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content("Save the report")
            with RadioSet(compact=True):
                yield RadioButton(Content("JSON, with all facts"), value=True, id="json")
                yield RadioButton(Content("HTML page"), id="html")
            yield Input(value="gpudoctor-report.json", compact=True)
            yield Static(Content("enter saves, tab changes the format, escape goes back"), id="said")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @property
    def _kind(self) -> str:
        return "html" if self.query_one("#html", RadioButton).value else "json"

    def on_radio_set_changed(self, event: RadioSet.Changed) -> None:
        box = self.query_one(Input)
        path = Path(box.value)
        if path.suffix in (".json", ".html"):
            box.value = str(path.with_suffix(f".{self._kind}"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not event.value.strip():
            self._say("a path is wanted")
            return
        try:
            path = Path(event.value.strip()).expanduser()
            present = path.exists()
        except (OSError, RuntimeError, ValueError) as error:
            self._say(f"{event.value}: {getattr(error, 'strerror', None) or error}")
            return
        if not present:
            self._save(path)
        elif not path.is_file():
            self._say(f"{path}: there is something that is no regular file; it is not written to")
        else:

            def answered(yes: bool | None) -> None:
                if yes:
                    self._save(path)

            self.app.push_screen(ConfirmScreen("Overwrite?", [f"{path} exists already."], "Overwrite"), answered)

    def _save(self, path: Path) -> None:
        try:
            text = render_json(self._report) if self._kind == "json" else html.render_html(self._report)
            write_file(path, text)
        except UserError as error:
            self._say(str(error))
            return
        self.dismiss(str(path))

    def _say(self, text: str) -> None:
        reported = self.query_one("#said", Static)
        reported.add_class("message")
        reported.update(Content(printable(text)))


class LevelScreen(BoxScreen[Level]):
    """Chooses a level; each is shown with its cost."""

    DEFAULT_CSS = "LevelScreen OptionList, LevelScreen OptionList:focus { height: auto; border: none; }"

    def __init__(self, level: Level, *, loads_gpus: bool = True) -> None:
        super().__init__()
        self._level = level
        self._loads_gpus = loads_gpus

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content("How deep to check")
            options = []
            for level in LEVELS:
                cost = LEVEL_COSTS[level]
                if not self._loads_gpus:
                    cost = cost.replace("loads the GPUs", "on CPU ranks of this machine").replace(
                        ", about half a minute", ""
                    )
                options.append(Option(Content(f"{level:<9} {cost}"), id=level))
            yield OptionList(*options)

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = LEVELS.index(self._level)
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(LEVELS[event.option_index])


class PageScreen(BoxScreen[None]):
    """The documentation page of a check: what, why, thresholds, false alarms, fix."""

    DEFAULT_CSS = "PageScreen > .box { height: 90%; }"
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,e,enter", "back", "Back")]

    def __init__(self, check_id: str) -> None:
        super().__init__()
        self._check_id = check_id

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content(printable(self._check_id))
            box.border_subtitle = Content("escape: back")
            with VerticalScroll():
                yield Markdown(page_of(self._check_id), open_links=False)


def page_of(check_id: str) -> str:
    """The page as Markdown; a note if only the remote machine has the check."""
    check = next((check for check in all_checks() if check.id == check_id), None)
    return page_text(check) if check is not None else f"# {check_id}\n\nThis check is not part of this installation.\n"


class HelpScreen(BoxScreen[None]):
    """The keys, grouped by the widget they work in; escape, q or ? closes it."""

    DEFAULT_CSS = "HelpScreen { & > .box { max-width: 92; } Static { height: auto; } }"
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark", "back", "Back")]

    def __init__(self, groups: list[Group]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box") as box:
            box.border_title = "Keys"
            box.border_subtitle = "escape goes back"
            yield Static(help_content(self._groups))


def help_content(groups: list[Group]) -> Content:
    """The groups as text, with a legend of the health words."""
    groups = [*groups, _LEGEND]
    width = max((len(keys) for _, rows in groups for keys, _ in rows), default=0)
    parts: list[tuple[str, str] | str] = []
    for heading, rows in groups:
        parts.append((f"{heading}\n", "bold $text-primary"))
        parts += [part for keys, text in rows for part in ((f"  {keys:<{width}}  ", "bold"), f"{text}\n")]
        parts.append("\n")
    return Content.assemble(*parts).rstrip()
