"""The whole screen: troubles, tags, playback, and an end that waits for nobody."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.facts.model.node import KernelEvent
from gpudoctor.facts.stream.messages import Silence
from gpudoctor.facts.stream.recording import read_stream
from gpudoctor.tui.app import Doctor
from gpudoctor.tui.feeds import ChildFeed, PlaybackFeed
from gpudoctor.tui.panes.header import TimeSlider, header_runs, report_runs
from gpudoctor.tui.state import FeedFailure, Running
from gpudoctor.tui.widgets.lines import length
from tests.tui.checks_app import NARROW, report_of
from tests.tui.doctor_app import (
    AT_S,
    HandChecker,
    HandFeed,
    doctor,
    gpu_tick,
    node_of,
    put,
    recorded,
    shown,
    state_of,
    tick_of,
)
from tests.tui.screen import press, screen_text, until, words_of


async def test_a_silent_driver_and_a_lost_connection_are_shown_with_their_time_and_the_screen_stays_alive() -> None:
    async with shown(doctor()) as (app, pilot):
        node = node_of()
        put(app, tick_of(node, 5, silence=Silence(AT_S, "nvmlDeviceGetPowerUsage on GPU 3 does not return")))
        await until(pilot, lambda: app.state.trouble is not None)
        line = screen_text(app).splitlines()[1]
        assert re.match(
            r" driver not answering since \d\d:\d\d:\d\d: nvmlDeviceGetPowerUsage on GPU 3 does not return", line
        )
        await press(pilot, "down", then=lambda: app.state.selected_gpu == 1)
        put(app, tick_of(node, 9))
        await until(pilot, lambda: app.state.trouble is None)
        assert "not answering" not in screen_text(app)
        put(app, FeedFailure("n7: ended (exit code 255): ssh: connect to host n7: Connection refused", AT_S))
        await until(pilot, lambda: app.state.trouble is not None)
        assert "no data since" in screen_text(app).splitlines()[1]
        assert "Connection refused" in screen_text(app).splitlines()[1]
        assert "GPUs, as last known" in screen_text(app)
        assert "511" in screen_text(app)


@pytest.mark.wide
async def test_a_kernel_line_and_a_lost_gpu_make_the_verdicts_old_until_checks_ran_again() -> None:
    async with shown(doctor()) as (app, pilot):
        await until(pilot, lambda: app.state.report is not None)
        node = node_of()
        put(app, tick_of(node, 5, kernel=["NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."]))
        await until(pilot, lambda: app.state.hint is not None)
        assert "the checks are older than that" in screen_text(app).splitlines()[1]
        await press(pilot, "r", then=lambda: len(app.state.runs) == 2)
        assert "the checks are older than that" in screen_text(app).splitlines()[1], "only one check ran again"
        await press(pilot, "R", then=lambda: len(app.state.runs) == 3)
        assert app.state.hint is None
        put(app, tick_of(node, 6, without=[3]))
        await until(pilot, lambda: app.state.hint is not None)
        assert "GPU 3 was lost" in screen_text(app).splitlines()[1]
        assert "LOST" in screen_text(app)
        # kernel lines that were overwritten before they were read: any of them may have named a GPU
        await press(pilot, "R", then=lambda: len(app.state.runs) == 4)
        assert app.state.hint is None
        put(app, tick_of(node, 7, kernel=[KernelEvent("gap", "kernel lines were overwritten")]))
        await until(pilot, lambda: app.state.hint is not None)
        assert "kernel lines were lost at" in screen_text(app).splitlines()[1]


def test_a_run_that_began_before_an_event_or_has_no_whole_report_leaves_the_verdicts_old() -> None:
    node = node_of()
    state = state_of(node)
    whole = asyncio.run(HandChecker(node).run((), "quick"))
    assert whole.report is not None
    partial = msgspec.structs.replace(whole.report, run=msgspec.structs.replace(whole.report.run, interrupted="SIGINT"))
    state.report = whole.report
    state.running = Running((), "quick", AT_S)
    state.take(tick_of(node, 5, kernel=["NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."]))
    for run in (whole, replace(whole, report=None), replace(whole, report=partial)):
        state.finish(run)
        assert state.hint is not None
    state.finish(whole)
    assert state.hint is None


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_tags_and_verdict_stand_in_every_header(width: int) -> None:
    node = node_of("hgx-h100-8", "pcie-width-x8@5")
    state = state_of(node)
    state.label = "dgx-h100-17"
    state.report = NARROW
    runs = header_runs(state, AT_S, width)
    assert "SIMULATED" in words_of(runs)
    assert "1 FAULT" in words_of(runs)
    assert length(runs) <= width


def test_a_report_without_a_single_pass_is_not_called_ok() -> None:
    report = report_of()
    nothing = msgspec.structs.replace(report, counts=msgspec.structs.replace(report.counts, passed=0, unknown=4))
    assert words_of(report_runs(nothing, with_skip=False)) == "4 unknown 0 ok"


def playing(tmp_path: Path) -> Doctor:
    feed = PlaybackFeed(read_stream(str(recorded(tmp_path))), "day.jsonl")
    return Doctor(feed, HandChecker(node_of()), first_level=None, clock=lambda: AT_S)


@pytest.mark.wide
async def test_a_recording_is_moved_about_in_by_keys_and_mouse(tmp_path: Path) -> None:
    async with shown(playing(tmp_path)) as (app, pilot):
        playback = app.state.playback
        assert playback is not None
        await pilot.press("space")
        assert playback.paused
        await pilot.press("end")
        assert playback.at_s == AT_S + 59
        await pilot.press("left")
        assert playback.at_s == AT_S + 49
        assert app.state.latest[0].readings["power_w"] == 49
        assert len(app.state.history[0, "power_w"]) == 50
        await pilot.press("home", "right")
        assert playback.at_s == AT_S + 10
        assert len(app.state.history[0, "power_w"]) == 11
        await pilot.press("plus", "plus", "minus")
        assert playback.speed == 2
        await pilot.pause()
        lines = screen_text(app).splitlines()
        assert "PLAYBACK" in lines[0]
        assert "paused" in lines[-2]
        slider = app.query_one(TimeSlider)
        start, width = slider._line
        await pilot.click(TimeSlider, offset=(start + width - 1, 0))
        await until(pilot, lambda: playback.at_s == AT_S + 59)
        # a narrower terminal: while it is paused, nothing else draws the slider again
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: screen_text(app).splitlines()[-2].endswith("space -/+ left/right"))
        start, width = slider._line
        await pilot.click(TimeSlider, offset=(start, 0))
        await until(pilot, lambda: playback.at_s == AT_S)
        await pilot.press("end", "space", "space")  # from the end it begins again
        await until(pilot, lambda: playback.at_s < AT_S + 59)


async def test_without_colour_the_bad_word_is_reversed_and_every_word_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async with shown(doctor(node_of("hgx-h100-8", "pcie-width-x8@5"))) as (app, pilot):
        await until(pilot, lambda: app.state.report is not None)
        assert app.no_color
        assert app.theme == "dark"
        rows = app.query_one("#gpus")
        fail = next(
            segment
            for y in range(rows.size.height)
            for segment in rows.render_line(y)
            if segment.text.startswith("FAIL")
        )
        assert fail.style is not None
        assert fail.style.reverse
        assert "FAIL" in screen_text(app)


async def test_rows_that_did_not_change_are_not_drawn_again() -> None:
    async with shown(doctor(first_level=None)) as (app, pilot):
        rows = app.query_one("#gpus")
        refreshed: list[int] = []
        before = rows.refresh

        def refresh(*regions: Any, **more: Any) -> Any:
            refreshed.extend(region.y for region in regions)
            return before(*regions, **more)

        rows.refresh = refresh  # type: ignore[method-assign]
        put(app, tick_of(node_of(), 2, changed={4: gpu_tick(4, power_w=700.0)}))
        await until(pilot, lambda: app.state.tick is not None and app.state.tick.at_s == AT_S + 2)
        assert refreshed == [5]


@pytest.mark.wide
async def test_a_resize_to_any_size_is_survived() -> None:
    async with shown(doctor()) as (app, pilot):
        for width, height in ((80, 24), (200, 60), (20, 5), (1, 1), (109, 30), (120, 36)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
        assert "─ GPU 0: " in screen_text(app)


async def test_quitting_closes_feed_and_checks_and_gives_0() -> None:
    checker = HandChecker(node_of(), hold=True)
    app = doctor(checker=checker)

    async with shown(app) as (_, pilot):
        await pilot.press("q")
    assert app.return_value == 0
    assert checker.closed
    assert isinstance(app._feed, HandFeed)
    assert app._feed.closed


async def test_quitting_does_not_wait_for_a_child_that_ignores_sigterm(tmp_path: Path) -> None:
    path = recorded(tmp_path, 2)
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"os.write(1, open({str(path)!r}, 'rb').read()); time.sleep(600)"
    )
    feed = ChildFeed([sys.executable, "-c", code], "stuck")
    app = Doctor(feed, HandChecker(node_of()), first_level=None)
    waited: list[object] = []

    async with shown(app) as (_, pilot):
        child = feed._child
        assert child is not None
        wait = child._process.wait

        def bounded(timeout: float | None = None) -> int:
            waited.append(timeout)
            return wait(timeout)

        child._process.wait = bounded  # type: ignore[method-assign]
        await pilot.press("q")
    assert feed._child is not None
    assert feed._child._process.wait() == -signal.SIGKILL
    assert all(isinstance(timeout, float) and timeout <= 0.1 for timeout in waited[:-1])
