"""The modal screens, key by key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gpudoctor.errors import UserError
from gpudoctor.report.model import Report
from gpudoctor.report.saved_report import load_report
from gpudoctor.tui.screens import ConfirmScreen, LevelScreen, PageScreen, PathScreen, SaveScreen
from tests.tui.checks_app import report_of
from tests.tui.screen import press, screen_text

REPORT = report_of("hgx-h100-8", "pcie-width-x8@5")
Body = Callable[[App[None], Pilot[None]], Awaitable[None]]
NOTHING = object()


def answer_of(screen: ModalScreen[Any], body: Body, size: tuple[int, int] = (80, 24)) -> Any:
    """What the screen gives back; NOTHING while it stands."""
    answers: list[Any] = [NOTHING]

    async def go() -> None:
        app: App[None] = App()
        async with app.run_test(size=size) as pilot:
            app.push_screen(screen, answers.append)
            await pilot.pause()
            await body(app, pilot)
            await pilot.pause()

    asyncio.run(go())
    return answers[-1]


def pressing(*keys: str, sees: str = "") -> Body:
    async def body(app: App[None], pilot: Pilot[None]) -> None:
        assert sees in screen_text(app)
        await pilot.press(*keys)

    return body


@pytest.mark.wide(every=3)
@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (("y",), True),
        (("n",), False),
        (("escape",), False),
        (("enter",), False),  # the careful answer has the focus
        (("right", "enter"), True),
        (("tab", "enter"), True),
        ((), NOTHING),
    ],
)
def test_a_question_is_answered_by_keys(keys: tuple[str, ...], answer: object) -> None:
    assert answer_of(ConfirmScreen("Sure?", ["because"], "Do it"), pressing(*keys)) is answer


def test_a_question_shows_hostile_names_as_they_are() -> None:
    async def body(app: App[None], pilot: Pilot[None]) -> None:
        assert "GPU 0: [b]x\\x1b[2J" in screen_text(app)
        await pilot.click("#yes")

    assert answer_of(ConfirmScreen("Sure?", ["GPU 0: [b]x\x1b[2J"], "Do it"), body) is True


@pytest.mark.parametrize(
    ("screen", "sees"),
    [
        (ConfirmScreen("Sure?", [f"line {n}" for n in range(60)], "Do it"), "Do it (y)"),
        (PathScreen(f"{'word ' * 20} the very last words"), "the very last words"),
        (PageScreen("plugin.theirs"), "not part of this installation"),
    ],
    ids=["a question fits the smallest screen", "one for a path is wrapped", "no page of another installation"],
)
def test_all_that_matters_is_on_the_screen(screen: ModalScreen[Any], sees: str) -> None:
    answer_of(screen, pressing(sees=sees))


def test_a_path_is_given_or_not() -> None:
    assert answer_of(PathScreen("Which?"), pressing(*"a.json", "enter")) == "a.json"
    assert answer_of(PathScreen("Which?"), pressing("escape")) is None


def test_the_level_screen_begins_at_the_level_that_is_set() -> None:
    assert answer_of(LevelScreen("standard"), pressing("enter")) == "standard"
    assert answer_of(LevelScreen("standard"), pressing("down", "enter")) == "full"
    assert answer_of(LevelScreen("standard"), pressing("escape")) is None


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("key", ["escape", "q", "e"])
def test_a_page_is_left_by(key: str) -> None:
    assert answer_of(PageScreen("pcie.link-width"), pressing(key, sees="Compares the lanes")) is None


def saving(*keys: str, path: Path | str | None = None, says: str | None = None) -> Body:
    """Type a path, press keys, and see what the screen says."""

    async def body(app: App[None], pilot: Pilot[None]) -> None:
        if path is not None:
            app.screen.query_one(Input).value = str(path)
        await press(pilot, *keys)
        if says is not None:
            said = app.screen.query_one("#said", Static)
            assert says in str(said.content)
            assert "\n" not in str(said.content)

    return body


def test_the_whole_report_is_saved_and_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert answer_of(SaveScreen(REPORT), saving("enter", path=path)) == str(path)
    assert load_report(str(path), Report) == REPORT
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_a_file_that_is_there_is_overwritten_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("mine")
    assert answer_of(SaveScreen(REPORT), saving("enter", "n", path=path)) is NOTHING
    assert path.read_text() == "mine"
    assert answer_of(SaveScreen(REPORT), saving("enter", "y", path=path)) == str(path)
    assert load_report(str(path), Report) == REPORT


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no-such-folder/r.json", "cannot write"),
        ("", "no regular file"),
        ("x" * 300, "too long"),
        ("a\0b", "not the name"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_can_be_mended(tmp_path: Path, name: str, says: str) -> None:
    assert answer_of(SaveScreen(REPORT), saving("enter", path=f"{tmp_path}/{name}", says=says)) is NOTHING
    assert list(tmp_path.iterdir()) == []


def test_no_path_is_asked_for_again() -> None:
    assert answer_of(SaveScreen(REPORT), saving("enter", path=" ", says="a path is wanted")) is NOTHING


def test_escape_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer_of(SaveScreen(REPORT), saving("escape")) is None
    assert list(tmp_path.iterdir()) == []


def test_html_is_chosen_with_the_keys_and_changes_the_name(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    keys = ("shift+tab", "right", "enter", "tab", "enter")
    assert answer_of(SaveScreen(REPORT), saving(*keys, path=path)) == str(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().lstrip().lower().startswith("<!doctype html")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"hello", "not a report"),
        (b'{"schema": "gpudoctor.report/1"}', "not a report"),
        (b"\xff\xfe", "not a report"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=says) as refused:
        load_report(str(path), Report)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_report_in_which_nothing_was_judged_is_nothing_to_compare_with(tmp_path: Path) -> None:
    failed: Report = msgspec.structs.replace(REPORT, error="no such node")
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(failed))
    with pytest.raises(UserError, match="nothing was judged"):
        load_report(str(tmp_path / "r.json"), Report)
    with pytest.raises(UserError, match="No such file"):
        load_report(str(tmp_path / "none.json"), Report)
