"""The Log tab: lines as they come, whose they are, filters, and the end that is followed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, KernelLog, Node
from gpudoctor.tui.panes.log import LogPane, LogView
from gpudoctor.tui.state import LOG_LINES, LogKind, LogLine, State
from tests.tui.pane_app import PaneApp, shown, state_of, text_of
from tests.tui.screen import press

HGX = load_source("hgx-h100-8").node
XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def line(text: str, kind: LogKind = "note", at_s: float = 1000.0) -> LogLine:
    return LogLine(at_s, kind, text)


def node_with(*events: str) -> Node:
    log = KernelLog(events=tuple(KernelEvent("xid", text) for text in events))
    return msgspec.structs.replace(HGX, kernel_log=log)


def state_with(*lines: LogLine, before: tuple[str, ...] = ()) -> State:
    state = state_of(node_with(*before))
    state.log.extend(lines)
    return state


def rows(app: PaneApp) -> tuple[str, ...]:
    return app.query_one(LogView).rows


def test_each_line_says_when_and_whose_it_is() -> None:
    text = text_of(LogPane(), state_with(line(XID, "kernel"), line("answers again", "driver"), line("full", "run")))
    [kernel] = [row for row in text.splitlines() if XID in row]
    assert kernel.split()[1] == "kernel"
    assert len(kernel.split()[0].split(":")) == 3
    assert next(row for row in text.splitlines() if "answers again" in row).split()[1] == "driver"
    assert next(row for row in text.splitlines() if row.endswith(" full")).split()[1] == "run"


def test_kernel_lines_that_the_facts_held_stand_first_and_are_marked() -> None:
    text = text_of(LogPane(), state_with(line("now"), before=(XID,)))
    shown_rows = text.splitlines()[1:3]
    assert shown_rows[0] == f"before   kernel  {XID}"
    assert shown_rows[1].endswith("note    now")
    assert "Log: 2 lines" in text


def test_an_unreadable_kernel_log_is_said_and_is_not_an_empty_one() -> None:
    log = KernelLog(events=Missing("dmesg is restricted", "denied"))
    text = text_of(LogPane(), state_of(msgspec.structs.replace(HGX, kernel_log=log)))
    assert "kernel log before: dmesg is restricted" in text


def test_a_kernel_log_whose_begin_was_overwritten_is_said_to_be_short() -> None:
    log = KernelLog(events=(), truncated=True, gap="500 s of log missing, and there is no journal")
    text = text_of(LogPane(), state_of(msgspec.structs.replace(HGX, kernel_log=log)))
    assert "500 s of log missing" in text


async def test_only_what_came_since_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(LogPane(), state_with(line("first"), line("second"))) as (app, _):
        view = app.query_one(LogView)
        added: list[int] = []
        append = view.append

        def counted(new: Any, dropped: int = 0) -> None:
            added.append(len(new))
            append(new, dropped)

        monkeypatch.setattr(view, "append", counted)
        monkeypatch.setattr(view, "replace", lambda new: pytest.fail("all was drawn anew"))
        app.pane.show(app.state)
        app.state.log.extend((line("third"), line("fourth")))
        app.pane.show(app.state)
        assert added == [2]
        assert [row.split()[-1] for row in rows(app)] == ["first", "second", "third", "fourth"]


async def test_what_the_log_has_forgotten_goes() -> None:
    async with shown(LogPane(), state_with(line("old")), size=(80, 24)) as (app, pilot):
        app.state.log.extend(line(f"line-{number}") for number in range(LOG_LINES + 5))
        app.pane.show(app.state)
        app.state.log.extend((line("last"), line("very-last")))
        app.pane.show(app.state)
        assert len(rows(app)) == LOG_LINES
        assert rows(app)[0].endswith("line-7")
        assert rows(app)[-1].endswith("very-last")
        await pilot.pause()
        assert "very-last" in app.text


async def test_the_end_is_followed_unless_one_has_scrolled_up() -> None:
    long = state_with(*(line(f"line-{n}") for n in range(60)))
    async with shown(LogPane(), long, size=(80, 24), focus=LogView) as (app, pilot):
        app.state.log.append(line("newest-a"))
        app.pane.show(app.state)
        await pilot.pause()
        assert "newest-a" in app.text
        await press(pilot, "home")
        assert "line-0" in app.text
        app.state.log.append(line("newest-b"))
        app.pane.show(app.state)
        await pilot.pause()
        assert "newest-b" not in app.text
        assert "line-0" in app.text
        await press(pilot, "end")
        assert "newest-b" in app.text


async def test_f_leaves_only_the_kernels_lines_and_gives_all_again() -> None:
    state = state_with(line("a note"), line(XID, "kernel"), before=("early",))
    async with shown(LogPane(), state, focus=LogView) as (app, pilot):
        await press(pilot, "f")
        assert [row.split()[1] for row in rows(app)] == ["kernel", "kernel"]
        assert "only the kernel's" in app.text
        app.state.log.extend((line("another note"), line("another Xid", "kernel")))
        app.pane.show(app.state)
        assert [row.split()[-1] for row in rows(app)] == ["early", "bus.", "Xid"]
        await press(pilot, "f")
        assert len(rows(app)) == 5


async def test_a_filter_holds_for_lines_to_come_and_esc_clears_it() -> None:
    async with shown(LogPane(), state_with(line("a note"), line(XID, "kernel")), focus=LogView) as (app, pilot):
        await press(pilot, "slash", *"XID", "enter")
        app.state.log.extend((line("a note"), line("another xid", "kernel")))
        app.pane.show(app.state)
        await pilot.pause()
        assert [row.split()[-1] for row in rows(app)] == ["bus.", "xid"]
        assert "filter 'xid'" in app.text
        assert "2 shown" in app.text
        await press(pilot, "escape")
        assert len(rows(app)) == 4
        assert "filter" not in app.text


async def test_another_node_begins_anew() -> None:
    async with shown(LogPane(), state_with(line("old"), before=("older",))) as (app, _):
        app.state = state_with(line("other"))
        app.pane.show(app.state)
        assert [row.split()[-1] for row in rows(app)] == ["other"]


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_a_long_line_is_reached_with_the_arrow_keys(size: tuple[int, int]) -> None:
    async with shown(LogPane(), state_with(line("x" * 290 + "tail")), size=size, focus=LogView) as (app, pilot):
        assert "tail" not in app.text
        assert "xxx…" in app.text
        app.query_one(LogView).scroll_to(x=300, animate=False)
        await pilot.pause()
        assert "tail" in app.text
        assert "…" not in app.text
