"""Every key of the whole screen, wherever the focus is."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from textual.widgets._footer import FooterKey

from gpudoctor.tui.app import Doctor
from gpudoctor.tui.labels import THEMES
from gpudoctor.tui.panes.check_list import CheckList
from gpudoctor.tui.panes.pane import TABS
from tests.tui.doctor_app import HandChecker, doctor, node_of, shown
from tests.tui.screen import press, screen_text, until


def keys_of(app: Doctor) -> dict[FooterKey, str]:
    """The keys in the last line, and what they do."""
    return {key: key.description for key in app.query(FooterKey)}


def turned_to(app: Doctor, name: str) -> bool:
    return app._tab == name and name in app._panes


@pytest.mark.wide
async def test_keys_of_a_healthy_node() -> None:
    """One start for the first check, tabs, palette, GPUs, filter, themes and a run at another level."""
    checker = HandChecker(node_of())

    async with shown(doctor(checker=checker)) as (app, pilot):
        # the first check is a quick one
        await until(pilot, lambda: app.state.report is not None)
        assert checker.asked == [((), "quick")]
        assert screen_text(app).count(" ok ") >= 8
        # the palette offers what has a key
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert {"Show Links", "Theme: colour-blind", "Save the report"} <= set(titles)
        assert not any("ansi" in title for title in titles)
        # each number turns to its tab
        for number, (name, _) in enumerate(TABS, 1):
            await press(pilot, str(number), then=partial(turned_to, app, name))
            assert app._panes[name].is_on_screen
        await press(pilot, "1", then=lambda: app._panes["overview"].is_on_screen)
        # up and down choose a GPU, and a click too
        await press(pilot, "down", "j", "up", "k", "k", "down", then=lambda: app.state.selected_gpu == 1)
        await until(pilot, lambda: "─ GPU 1: " in screen_text(app))
        await pilot.click("#gpus", offset=(10, 2 + 6))
        await until(pilot, lambda: app.state.selected_gpu == 6)
        # on a tab without a check list, the filter opens on the overview and gets the keys that follow
        await press(pilot, "4", then=partial(turned_to, app, "ranks"))
        await press(pilot, "slash", then=lambda: app._tab == "overview")
        await until(pilot, lambda: app._panes["overview"].is_on_screen)
        await press(pilot, *"nvlink", "enter", then=lambda: "filter: nvlink" in screen_text(app))
        await pilot.press("escape")
        # t goes through the themes
        seen = [app.theme]
        for _ in THEMES:
            await press(pilot, "t")
            seen.append(app.theme)
        assert seen == ["dark", "light", "colour-blind", "dark"]
        # s asks for a path
        await press(pilot, "s", then=lambda: type(app.screen).__name__ == "SaveScreen")
        await press(pilot, "escape", then=lambda: len(app.screen_stack) == 1)
        # l chooses a level and runs at it
        await press(pilot, "l", then=lambda: len(app.screen_stack) == 2)
        await press(pilot, "down", "enter", then=lambda: len(app.state.runs) == 2)
        assert checker.asked[-1] == ((), "standard")
        # R runs at the level chosen last, also if it was chosen by the button
        await press(pilot, "2", then=partial(turned_to, app, "checks"))
        await pilot.click("#level")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await press(pilot, "down", "enter", then=lambda: len(app.state.runs) == 3)
        await press(pilot, "R", then=lambda: len(app.state.runs) == 4)
        assert checker.asked[-2:] == [((), "full")] * 2


async def test_keys_of_a_node_with_two_faults() -> None:
    """Of two bad GPUs the first is chosen; the other is explained when it is turned to; keys reach the check list."""
    checker = HandChecker(node_of("hgx-h100-8", "pcie-width-x8@5", "thermal@2"))

    async with shown(doctor(checker.judged, checker=checker)) as (app, pilot):
        await until(pilot, lambda: app.state.report is not None)
        assert app.state.selected_gpu == 2
        for _ in range(3):
            await pilot.press("down")
        await until(pilot, lambda: app.state.selected_gpu == 5)
        await until(pilot, lambda: "pcie.link-width on GPU 5" in screen_text(app))
        # r runs the chosen check and R all
        chosen = app.query_one("#check-list", CheckList).chosen
        assert chosen is not None
        assert chosen.check_id == "pcie.link-width"
        await press(pilot, "r", then=lambda: len(app.state.runs) == 2)
        assert checker.asked[1] == (("pcie.link-width",), "quick")
        await press(pilot, "R", then=lambda: len(app.state.runs) == 3)
        assert checker.asked[2] == ((), "quick")
        # f and / reach the check list, wherever the focus is
        await press(pilot, "f", then=lambda: "only problems" in screen_text(app))
        await press(pilot, "f", then=lambda: "only problems" not in screen_text(app))
        await press(pilot, "slash", then=lambda: type(app.focused).__name__ == "Input")
        await press(pilot, *"nvlink", "enter", then=lambda: "filter: nvlink" in screen_text(app))


@pytest.mark.wide
async def test_before_any_judgement_no_gpu_is_called_ok_and_the_help_is_made_of_the_bindings() -> None:
    async with shown(doctor(first_level=None), size=(120, 70)) as (app, pilot):
        text = screen_text(app)
        assert "not checked yet" in text
        assert not re.search(r"\bok\b", text)
        await press(pilot, "question_mark", then=lambda: len(app.screen_stack) == 2)
        text = screen_text(app)
        for words in ("Quit", "Export", "Overview", "Next GPU", "Filter"):
            assert words in text
        assert "10 s back" not in text  # nothing plays
        await press(pilot, "escape", then=lambda: len(app.screen_stack) == 1)
        # each key stands under words that the screen shows, not under the name of a class
        await press(pilot, "2", then=partial(turned_to, app, "checks"))
        await press(pilot, "question_mark", then=lambda: len(app.screen_stack) == 2)
        text = screen_text(app)
        assert re.findall(r"│ ([A-Z][\w ]+\w)  ", text) == [
            "Everywhere",
            "In Checks",
            "On this tab",
            "In Findings",
            "Words",
        ]
        assert text.count("^q ^c q ") == 1
        assert "croll" not in text


@pytest.mark.parametrize("columns", [40, 80])
async def test_the_last_line_holds_whole_keys_and_always_the_way_to_all_of_them(columns: int) -> None:
    async with shown(doctor(first_level=None), size=(columns, 24)) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: turned_to(app, "checks") and any(key.description == "Check" for key in keys_of(app)))
        assert sum(key.region.width for key in app.query(FooterKey)) <= columns + 1
        assert "? Help" in screen_text(app).rstrip("\n").splitlines()[-1]
        # more room, more keys
        before = len(keys_of(app))
        await pilot.resize_terminal(160, 40)
        await until(pilot, lambda: len(keys_of(app)) > before)


async def test_c_cancels_what_runs_and_is_offered_only_then() -> None:
    async with shown(doctor(checker=HandChecker(node_of(), hold=True))) as (app, pilot):
        await until(pilot, lambda: app.state.running is not None)
        assert "running" in screen_text(app).splitlines()[0]
        await until(pilot, lambda: "Cancel" in keys_of(app).values())
        # textual says so at each move of the focus: the line of keys is built again only if a key changed
        before = keys_of(app)
        app.screen.refresh_bindings()
        for _ in range(3):
            await pilot.pause()
        assert keys_of(app) == before
        await press(pilot, "c", then=lambda: app.state.running is None)
        assert app.check_action("cancel", ()) is False
        await until(pilot, lambda: "Cancel" not in keys_of(app).values())


async def test_x_writes_the_screen_and_reports_the_path_or_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "gpudoctor-20260101-000000")

    async with shown(doctor(first_level=None)) as (app, pilot):
        await press(pilot, "x", then=lambda: bool(list(tmp_path.glob("*.svg"))))
        [path] = tmp_path.glob("gpudoctor-*.svg")
        assert "H100" in path.read_text()
        assert str(path) in app.state.log[-1].text
        await pilot.press("x")  # within the same second
        await until(pilot, lambda: len(list(tmp_path.glob("*.svg"))) == 2)
        monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "nowhere")
        app.clear_notifications()
        await press(pilot, "x", then=lambda: any("nowhere" in note.message for note in app._notifications))


async def test_a_read_only_view_starts_and_writes_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checker = HandChecker(node_of())

    async with shown(doctor(checker=checker, read_only=True)) as (app, pilot):
        app.state.report = (await HandChecker(node_of("hgx-h100-8", "thermal@2")).run((), "quick")).report
        app.changed()
        await pilot.pause()
        lines = screen_text(app).splitlines()
        assert "READ-ONLY" in lines[0]
        assert not any(offered in lines[-1] for offered in ("Check", "All", "Level", "Save", "Export")), lines[-1]
        app.checks_control.want((), "standard", quiet=True)  # the view itself starts nothing that puts load on GPUs
        for key in ("r", "R", "l", "s", "x", "d", "b"):
            if key == "d":
                await press(pilot, "2", then=partial(turned_to, app, "checks"))
            app.clear_notifications()
            await press(pilot, key, then=lambda: any("read-only" in note.message for note in app._notifications))
            assert checker.asked == [((), "quick")], "the facts, which the view itself has judged"
            assert list(tmp_path.iterdir()) == []
            assert len(app.screen_stack) == 1
