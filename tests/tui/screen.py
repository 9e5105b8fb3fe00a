"""What a person would see: the screen of a running app as lines of text, once it shows what is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from gpudoctor.tui.widgets.lines import Run


def screen_text(app: App[Any]) -> str:
    """The screen on top, one line a row, without what only fills up the right side."""
    # a private name of Textual, kept in this one place
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def words_of(runs: Iterable[Run]) -> str:
    return "".join(text for text, _ in runs)


async def press(pilot: Pilot[Any], *keys: str, then: Callable[[], bool] = lambda: True) -> None:
    """Press keys and let the app draw what comes of them, until something holds."""
    await pilot.press(*keys)
    await until(pilot, then)


async def until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    """Let the app go on until something holds; fail where it never does."""
    for _ in range(2000):
        await pilot.pause()
        if holds():
            await pilot.pause()
            return
        await pilot.pause(0.01)
    raise AssertionError("what was waited for did not come")
