"""What is drawn of changed cells alone is what drawing the whole screen would give."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from rich.segment import Segment
from textual.geometry import Region

from gpudoctor.tui.app import Doctor
from tests.tui.doctor_app import doctor, gpu_tick, node_of, put, shown, tick_of

ROUNDS = 60


def cells(segments: list[Segment]) -> Iterator[tuple[str, object]]:
    for segment in segments:
        yield from ((character, segment.style) for character in segment.text)


def some_regions(random: Random, width: int, height: int) -> set[Region]:
    """As Textual has them: a row, a few cells, a whole widget; often at both ends of the screen at once."""
    regions = set()
    for _ in range(random.randint(1, 4)):
        x, y = random.randrange(width), random.randrange(height)
        regions.add(Region(x, y, random.randint(1, width - x), random.randint(1, min(6, height - y))))
    return regions


def wrong_cells(app: Doctor, regions: set[Region]) -> list[tuple[int, int]]:
    """The cells of `regions` that a partial update leaves out or draws differently."""
    compositor = app.screen._compositor
    whole = [list(cells(list(strip))) for strip in compositor.render_strips()]
    compositor._dirty_regions = set(regions)
    update = compositor.render_partial_update()
    assert update is not None
    drawn = {
        (x + column, y): cell
        for y, line in enumerate(update.chops)
        for x, strip in line.items()
        if strip is not None
        for column, cell in enumerate(cells(list(strip)))
    }
    spans = [(x, y) for y, first, end in update.spans for x in range(first, end)]
    assert {(x, y) for region in regions for y in region.line_range for x in region.column_range} == set(spans)
    return [(x, y) for x, y in spans if drawn.get((x, y)) != whole[y][x]]


@pytest.mark.wide(every=5)
@pytest.mark.parametrize("keys", ["1", "2", "3", "5", "question_mark"])
async def test_changed_cells_look_as_on_a_screen_drawn_whole(keys: str) -> None:
    async with shown(doctor()) as (app, pilot):
        node = node_of()
        await pilot.press(keys)
        for second in range(3):
            put(app, tick_of(node, second, changed={2: gpu_tick(2, power_w=500.0 + second)}))
            await pilot.pause()
        random = Random(keys)
        width, height = app.size
        for _ in range(ROUNDS):
            regions = some_regions(random, width, height)
            assert wrong_cells(app, regions) == []
