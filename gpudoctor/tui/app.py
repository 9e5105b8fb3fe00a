"""The Textual App: receives stream lines and messages, updates the state, redraws the panes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input, TabbedContent, TabPane

from gpudoctor.checks.core.registry import Level
from gpudoctor.lazy import lazy_imports
from gpudoctor.run.live import LiveRun
from gpudoctor.tui.bindings import KEYS, MAIN_ACTIONS, PLAYBACK_ACTIONS, KeyLine, groups_of, palette_commands
from gpudoctor.tui.check_runner import Checker
from gpudoctor.tui.feeds import STEP_S, Feed, PlaybackFeed
from gpudoctor.tui.labels import THEMES, following
from gpudoctor.tui.panes.check_list import CheckList
from gpudoctor.tui.panes.header import AlertLine, HeaderLine, Sought, TimeSlider
from gpudoctor.tui.panes.overview import OverviewPane
from gpudoctor.tui.panes.pane import TABS, GpuChosen, PageWanted, Pane, RunWanted, pane_class
from gpudoctor.tui.run_control import RunControl
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.changed_cells import MainScreen
from gpudoctor.tui.widgets.lines import PrintableText

with lazy_imports():
    from gpudoctor.tui import screens


class EmptyTab(TabPane):
    """A tab that is blank until its pane is mounted; textual would show its id."""

    def render(self) -> str:
        return ""


class Doctor(App[int]):
    """The live view. `feed` yields stream lines, `checker` runs checks, `clock` returns Unix time.
    `live_runs` reads the trainings that go on under `gpudoctor run`.

    Checks of `first_level` start with the app; a read-only view runs nothing above quick. The exit value is 0.
    """

    CSS_PATH = "app.tcss"
    TITLE = "gpudoctor"
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    def __init__(
        self,
        feed: Feed,
        checker: Checker,
        *,
        read_only: bool = False,
        theme: str = "dark",
        first_level: Level | None = "quick",
        clock: Callable[[], float] = time.time,
        live_runs: Callable[[], tuple[LiveRun, ...]] | None = None,
    ) -> None:
        if os.environ.get("NO_COLOR") == "":
            del os.environ["NO_COLOR"]  # empty means unset (no-color.org), but Textual treats it as set
        self._printable_text = PrintableText()
        super().__init__()
        for each in THEMES.values():
            self.register_theme(each)
        self.theme = theme
        self._feed = feed
        self._recording = feed if isinstance(feed, PlaybackFeed) else None
        playback = self._recording.playback if self._recording is not None else None
        self.state = State(label=feed.label, read_only=read_only, playback=playback)
        self.checks_control = RunControl(self, self.state, checker, self.changed)
        self._clock = clock
        self._live_runs = live_runs
        self._first_level = first_level
        self._panes: dict[str, Pane] = {}
        self._overview = OverviewPane()
        self._draw_scheduled = False
        self._drawn_s = 0.0
        self._offers_cancel = False
        self._selection_made = False

    # ---- layout

    def get_default_screen(self) -> Screen[None]:
        return MainScreen()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), self._printable_text]

    def compose(self) -> ComposeResult:
        yield HeaderLine()
        yield AlertLine()
        with TabbedContent(id="tabs"):
            for number, (name, title) in enumerate(TABS, 1):
                yield EmptyTab(f"{number} {title}", id=name)
        yield TimeSlider()
        yield KeyLine(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        self.query_one("#tabs ContentTabs").can_focus = False
        await self._mount_pane("overview")
        self.query_one("#gpus").focus()
        # after ctrl-z and fg the terminal is empty
        self.app_resume_signal.subscribe(self, lambda _: self._draw_all())
        self.set_interval(1.0, self._second)
        self.changed()
        self.call_after_refresh(self._begin)  # child processes started earlier would delay the first paint

    def _begin(self) -> None:
        self.run_worker(self._listen(), group="feed", exit_on_error=True)
        if self._first_level is not None:
            self.checks_control.want((), self._first_level, quiet=True)

    def on_unmount(self) -> None:
        self.checks_control.close()
        self._feed.close()

    async def _mount_pane(self, tab: str) -> Pane:
        """Create the pane of a tab when the tab is first shown."""
        if tab not in self._panes:
            self._panes[tab] = pane = self._overview if tab == "overview" else pane_class(tab)()
            await self.query_one(f"#{tab}", TabPane).mount(pane)
        return self._panes[tab]

    @property
    def _tab(self) -> str:
        # queries of the App are about its main screen, also while another one is on top
        return self.query_one("#tabs", TabbedContent).active or "overview"

    @on(TabbedContent.TabActivated)
    async def _tab_turned(self, event: TabbedContent.TabActivated) -> None:
        pane = await self._mount_pane(event.pane.id or "overview")
        self.changed()
        if self.focused is None or pane not in self.focused.ancestors:  # the filter opened from another tab has it
            self._focus_in(pane)

    def _focus_in(self, pane: Pane) -> None:
        """Focus a widget of the pane so that the tab's keys work at once; never an Input, which would swallow keys."""
        if self._modal:
            return
        chain = (widget for widget in self.screen.focus_chain if pane in widget.ancestors)
        self.set_focus(next((widget for widget in chain if not isinstance(widget, Input)), None))

    async def _listen(self) -> None:
        async for line in self._feed.lines():
            self.state.receive(line)
            self.changed()

    # ---- drawing

    def changed(self) -> None:
        """Schedule one redraw; further calls before it runs change nothing."""
        if not self._draw_scheduled:
            self._draw_scheduled = True
            self.call_later(self._draw)

    def _draw(self) -> None:
        self._draw_scheduled = False
        if not self.is_running or not self.screen_stack:
            return
        self._drawn_s = self._clock()
        if self._offers_cancel != (self.state.running is not None):
            self._offers_cancel = not self._offers_cancel
            self.refresh_bindings()
        with self.batch_update():
            self._follow_report()
            self.query_one(HeaderLine).show(self.state, self._drawn_s)
            self.query_one(AlertLine).show(self.state)
            self.query_one(TimeSlider).show(self.state)
            pane = self._panes.get(self._tab)
            if pane is not None and pane.is_mounted:
                pane.show(self.state)
                if self.focused is None:
                    self._focus_in(pane)

    def _draw_all(self) -> None:
        self.screen.refresh(layout=True)
        for widget in self.screen.query("*"):
            widget.refresh()

    def _follow_report(self) -> None:
        """Select the first fault, unless the user has selected something."""
        report = self.state.report
        if self._selection_made or report is None or not report.faults:
            return
        fault, overview = report.faults[0], self._overview
        if fault.subject.gpu is not None:
            self.state.selected_gpu = fault.subject.gpu
        self._selection_made = True
        overview.show(self.state)  # the list must contain the check before it can be selected
        overview.turn_to(fault.check, fault.subject.gpu)

    def _second(self) -> None:
        if self._live_runs is not None and self._tab == "ranks":
            runs = self._live_runs()
            if runs != self.state.live_runs:
                self.state.live_runs = runs
                self.changed()
        # keep the clock running while no data arrives
        if self._clock() - self._drawn_s > 0.9:
            self.query_one(HeaderLine).show(self.state, self._clock())

    # ---- requests of the panes

    def on_gpu_chosen(self, message: GpuChosen) -> None:
        self._selection_made = True
        self.state.selected_gpu = message.index
        self._overview.choose_gpu(self.state)
        self.changed()

    def on_run_wanted(self, message: RunWanted) -> None:
        self.checks_control.want(message.only, message.level)

    def on_page_wanted(self, message: PageWanted) -> None:
        self.checks_control.page(message.check_id)

    # ---- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in PLAYBACK_ACTIONS:
            return self._recording is not None and not self._modal
        if action == "cancel":
            return self.state.running is not None
        # a modal screen binds its own keys
        return not (self._modal and action in MAIN_ACTIONS)

    @property
    def _modal(self) -> bool:
        return len(self.screen_stack) > 1

    async def action_quit(self) -> None:
        # first: the children can end while the screen is torn down
        self._feed.close()
        self.checks_control.close()
        self.exit(0)

    def action_tab(self, name: str) -> None:
        # a focused widget would switch back to its own tab
        self.set_focus(None)
        self.query_one("#tabs", TabbedContent).active = name

    def action_help(self) -> None:
        self.push_screen(screens.HelpScreen(groups_of(self)))

    def action_run_one(self) -> None:
        self._in_checks(CheckList.action_run_one)

    def action_run_all(self) -> None:
        self.checks_control.want((), self.state.level)

    def action_page(self) -> None:
        self._in_checks(CheckList.action_page)

    def action_level(self) -> None:
        self.checks_control.choose_level()

    def action_cancel(self) -> None:
        self.checks_control.cancel()

    def action_compare(self) -> None:
        self.checks_control.compare()

    def action_problems(self) -> None:
        self._in_checks(CheckList.action_problems)

    def action_filter(self) -> None:
        self._in_checks(CheckList.action_filter)

    def action_save(self) -> None:
        self.checks_control.save()

    def action_theme(self) -> None:
        self.theme = following(tuple(THEMES), self.theme)
        self.notify(f"theme: {self.theme}", markup=False)

    def action_export(self) -> None:
        self.checks_control.export(self.export_screenshot(title="gpudoctor"))

    def action_pause(self) -> None:
        if self._recording is not None:
            self._recording.pause()
            self.changed()

    def action_faster(self, steps: int) -> None:
        if self._recording is not None:
            self._recording.faster(steps)
            self.changed()

    def action_seek(self, steps: int) -> None:
        if self._recording is not None:
            self.on_sought(Sought(self._recording.playback.at_s + steps * STEP_S))

    def on_sought(self, message: Sought) -> None:
        """Move a recording to this time and rebuild the state from the ticks before it."""
        if self._recording is not None:
            self._recording.seek(message.at_s)
            self.state.rebuild(*self._recording.before())
            self.changed()

    def _in_checks(self, action: Callable[[CheckList], None]) -> None:
        """Run `action` on this tab's check list; a tab without one switches to the overview's list."""
        pane = self._panes.get(self._tab, self._overview)
        if not pane.query(CheckList):
            self.action_tab("overview")
            pane = self._overview
        action(pane.query(CheckList).first())

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        return palette_commands(self)
