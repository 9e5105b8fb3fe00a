"""The command palette: everything that has a key, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from gpudoctor.tui.tabs import TABS
from gpudoctor.tui.themes import THEMES

if TYPE_CHECKING:
    from gpudoctor.tui.app import Doctor


def commands(app: Doctor) -> Iterable[SystemCommand]:
    """What the palette offers now."""
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
