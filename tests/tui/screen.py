"""What a person would see: the screen of a running app as lines of text."""

from __future__ import annotations

from typing import Any

from textual.app import App


def screen_text(app: App[Any]) -> str:
    """The screen on top, one line a row, without what only fills up the right side."""
    # a private name of Textual, kept in this one place
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())
