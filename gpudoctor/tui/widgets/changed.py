"""Drawing only what has changed: an update of a Static costs its layout, even with the same text."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


def put(place: Static, content: Content) -> None:
    """Show `content` in `place`, unless it stands there already with the same styles."""
    shown = place.content
    if not (isinstance(shown, Content) and shown.is_same(content)):
        place.update(content)
