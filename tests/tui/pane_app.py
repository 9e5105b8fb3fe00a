"""One pane alone in an App, and states to draw: facts of a simulated node, figures made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.stream.messages import Opening
from gpudoctor.report.judge import Question, judge
from gpudoctor.tui.panes.pane import GpuChosen, Pane, RunWanted
from gpudoctor.tui.state import State
from tests.tui.screen import screen_text


class PaneApp(App[None]):
    """Mounts one pane, as a tab of the real App would, and keeps what it asked for."""

    def __init__(self, pane: Pane, state: State) -> None:
        super().__init__()
        self.pane = pane
        self.state = state
        self.asked: list[tuple[Any, ...]] = []

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_mount(self) -> None:
        self.pane.show(self.state)

    def on_run_wanted(self, message: RunWanted) -> None:
        self.asked.append((message.only, message.level))

    def on_gpu_chosen(self, message: GpuChosen) -> None:
        self.asked.append(("gpu", message.index))
        self.state.selected_gpu = message.index
        self.pane.show(self.state)

    @property
    def text(self) -> str:
        return screen_text(self)

    def line_with(self, words: str) -> str:
        """The first line on the screen that holds these words."""
        return next(line for line in self.text.splitlines() if words in line)


@asynccontextmanager
async def shown(
    pane: Pane, state: State, *, size: tuple[int, int] = (120, 36), focus: type[Widget] | None = None
) -> AsyncIterator[tuple[PaneApp, Pilot[None]]]:
    """The pane on a screen."""
    app = PaneApp(pane, state)
    async with app.run_test(size=size) as pilot:
        if focus is not None:
            app.query_one(focus).focus()
        await pilot.pause()
        yield app, pilot


def text_of(pane: Pane, state: State, size: tuple[int, int] = (120, 36)) -> str:
    """The screen as text, with nothing pressed."""

    async def look() -> str:
        async with shown(pane, state, size=size) as (app, _):
            return app.text

    return asyncio.run(look())


def state_of(node: Node | str, measurements: Measurements | None = None) -> State:
    """A state that has met this node, and a report of its figures where there are any."""
    if isinstance(node, str):
        node = load_source(node).node
    state = State()
    state.open(Opening("gpudoctor.watch/1", 0.0, 1.0, node))
    if measurements is not None:
        state.report = judge(node, measurements, Question(level="full"))
    return state
