"""The main screen, which renders only the widgets and lines under the cells that change."""

from __future__ import annotations

from collections.abc import Iterable

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip


class MainScreen(Screen[None]):
    """A screen whose updates cost what changes on it.

    Textual renders every widget inside the rectangle around all changes. Here the clock at the top and the host's
    line at the bottom change each second, and that rectangle is the whole screen.
    """

    def __init__(self) -> None:
        super().__init__(id="_default")  # Textual's own name for the first screen
        self._compositor = _ChangedCells()


class _ChangedCells(Compositor):
    """Asks only the front widgets of changed regions for their lines."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: set[Region] | None = None

    def render_partial_update(self) -> ChopsUpdate | None:
        self._changed = set(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._changed = None

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if self._changed is None:
            yield from super()._get_renders(crop)
            return
        uncovered = self._changed
        for widget, (region, clip) in self.visible_widgets.items():  # from front to back; every widget is opaque
            if not uncovered:
                return
            seen = region.intersection(clip)
            touched = [changed for changed in uncovered if seen.overlaps(changed)]
            if not touched:
                continue
            uncovered -= {changed for changed in touched if seen.contains_region(changed)}
            rows = Region.from_union(touched)
            part = seen.intersection(Region(seen.x, rows.y, seen.width, rows.height))
            yield region, part, widget.render_lines(part.translate(-region.offset))
