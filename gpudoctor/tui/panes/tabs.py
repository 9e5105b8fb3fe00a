"""The tabs in their order, and the pane of each."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from gpudoctor.tui.panes.pane import Pane

TABS = (
    ("overview", "Overview"),
    ("checks", "Checks"),
    ("links", "Links"),
    ("ranks", "Ranks"),
    ("processes", "Processes"),
    ("log", "Log"),
)


def pane_class(tab: str) -> type[Pane]:
    """The class of a tab's pane, by the tab's id."""
    # imported when first turned to: the screen stands sooner
    module = import_module(f"gpudoctor.tui.panes.{tab}")
    return cast(type[Pane], getattr(module, f"{tab.capitalize()}Pane"))
