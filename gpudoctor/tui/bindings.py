"""Every key of the screen, of which the footer and the help screen are made, and the same in words: the palette."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.binding import Binding, BindingType

from gpudoctor.tui.panes.pane import TABS
from gpudoctor.tui.themes import THEMES

if TYPE_CHECKING:
    from gpudoctor.tui.app import Doctor

# only a recording has a time to turn to
PLAYBACK_ACTIONS = ("pause", "faster", "seek", "seek_end")
# not to be done while a modal screen is open
MAIN_ACTIONS = ("help", "run_one", "run_all", "level", "problems", "filter", "save", "tab", *PLAYBACK_ACTIONS)

KEYS: tuple[BindingType, ...] = (
    Binding("q", "quit", "Quit"),
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding("c", "cancel", "Cancel", tooltip="End the check that runs, with what it has learnt"),
    Binding("space", "pause", "Pause", tooltip="Pause the recording, or go on"),
    Binding("r", "run_one", "Check", tooltip="Run the chosen check again"),
    Binding("R", "run_all", "All", tooltip="Run all checks, as deep as last chosen (quick at first)"),
    Binding("l", "level", "Level", tooltip="Choose a level and run all checks at it"),
    Binding("f", "problems", "Problems", tooltip="Only problems in the check list, or all again"),
    Binding("slash", "filter", "Filter", key_display="/", tooltip="Filter the check list"),
    Binding("s", "save", "Save", tooltip="Save the report as JSON or HTML"),
    Binding("t", "theme", "Theme", tooltip="Next theme: dark, light, colour-blind"),
    Binding("x", "export", "Export", tooltip="Export the screen as SVG into the working directory"),
    *(
        Binding(str(n), f"tab('{name}')", title, show=False, tooltip=f"Turn to {title}")
        for n, (name, title) in enumerate(TABS, 1)
    ),
    Binding("plus,equals_sign", "faster(1)", "Faster", key_display="+", show=False),
    Binding("minus", "faster(-1)", "Slower", key_display="-", show=False),
    Binding("left", "seek(-1)", "10 s back", show=False),
    Binding("right", "seek(1)", "10 s on", show=False),
    Binding("home", "seek_end(-1)", "To the beginning", show=False),
    Binding("end", "seek_end(1)", "To the end", show=False),
    Binding("ctrl+z", "suspend_process", "Suspend", show=False, tooltip="Back to the shell; fg returns"),
)


def palette_commands(app: Doctor) -> Iterable[SystemCommand]:
    """What the command palette offers now: everything that has a key."""
    for name, title in TABS:
        yield SystemCommand(f"Show {title}", f"Turn to the tab {title}", lambda name=name: app.action_tab(name))
    for theme in THEMES:
        yield SystemCommand(f"Theme: {theme}", "Change the colours", lambda theme=theme: setattr(app, "theme", theme))
    yield SystemCommand("Run all checks", f"At level {app.level}", app.action_run_all)
    yield SystemCommand("Run all checks at a level", "Quick, standard, full or burn", app.action_level)
    if app.state.running is not None:
        yield SystemCommand("Cancel the check", "End it with what it has learnt", app.action_cancel)
    yield SystemCommand("Only problems", "In the check list", app.action_problems)
    yield SystemCommand("Filter checks", "In the check list", app.action_filter)
    yield SystemCommand("Save the report", "As JSON or HTML", app.action_save)
    yield SystemCommand("Export the screen", "As SVG into the working directory", app.action_export)
    yield SystemCommand("Keys", "All keys, and what the words mean", app.action_help)
    yield SystemCommand("Quit", "End gpudoctor", app.action_quit)
