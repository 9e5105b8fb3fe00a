"""Whole screens as a user sees them: a change here is a change for every user."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.live import ticks_of
from gpudoctor.facts.stream.messages import WatchLine
from tests.golden_files import assert_golden
from tests.tui.doctor_app import AT_S, doctor, node_of, opening_of, sixteen
from tests.tui.screen import screen_text, until

GOLDEN = Path(__file__).parent.parent / "golden" / "tui"
SIZES = ((80, 24), (120, 36), (200, 60))
TICKS = 40
NODES = {
    "healthy": ("hgx-h100-8",),
    "one-fault": ("hgx-h100-8", "pcie-width-x8@5"),
    "lost-gpu": ("hgx-h100-8", "gpu-lost@2"),
    "hung-driver": ("hgx-h100-8", "driver-hang@3"),
    "no-gpu": ("cpu-only",),
}
CASES = (*NODES, "16-gpus")
pytestmark = pytest.mark.usefixtures("pinned_checks")


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def screen_of(node: Node, *sizes: tuple[int, int], **options: Any) -> str:
    """The screen after 40 seconds of a job and one quick check, resized to the last of the sizes."""
    lines: list[WatchLine] = [opening_of(node), *(ticks_of(node, number, AT_S + number) for number in range(TICKS))]
    app = doctor(node, *lines, clock=lambda: AT_S + TICKS, **options)

    async def body() -> str:
        async with app.run_test(size=sizes[0]) as pilot:
            await until(pilot, lambda: app.state.report is not None and app.state.running is None)
            await until(pilot, lambda: app.state.tick is not None and app.state.tick.at_s == AT_S + TICKS - 1)
            for size in sizes[1:]:
                await pilot.resize_terminal(*size)
                await pilot.pause()
            return screen_text(app)

    return asyncio.run(body())


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", CASES)
def test_the_screen_is_the_golden_one(name: str, size: tuple[int, int]) -> None:
    shown = screen_of(sixteen(node_of("hgx-h100-8")) if name == "16-gpus" else node_of(*NODES[name]), size)
    path = GOLDEN / f"{name}-{size[0]}x{size[1]}.txt"
    assert_golden(shown + "\n", path)
    assert max(len(line) for line in shown.splitlines()) <= size[0]
    assert "SIMULATED" in shown


@pytest.mark.wide
def test_a_resized_screen_is_that_of_a_start_at_this_size() -> None:
    # nothing else redraws it: no line comes, and the clock stands still
    shown = screen_of(node_of(*NODES["one-fault"]), (120, 36), (200, 60), (80, 24))
    assert shown + "\n" == (GOLDEN / "one-fault-80x24.txt").read_text()


@pytest.mark.wide
def test_themes_and_the_lack_of_colour_change_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    # one narrow and one wide layout: they differ in borders and parts, not in how colours are applied
    narrow, wide = (80, 24), (120, 36)
    one_fault = node_of(*NODES["one-fault"])
    assert screen_of(one_fault, narrow, theme="light") + "\n" == (GOLDEN / "one-fault-80x24.txt").read_text()
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen_of(one_fault, wide) + "\n" == (GOLDEN / "one-fault-120x36.txt").read_text()
