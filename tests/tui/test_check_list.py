"""The list of checks: what it shows, and each key and click in it."""

from __future__ import annotations

import msgspec
import pytest
from textual.widgets import Input

from gpudoctor.tui.panes.check_list import CheckList
from gpudoctor.tui.panes.check_rows import CheckLines, rows_of
from gpudoctor.tui.state import FinishedRun, Running, State
from tests.tui.checks_app import NARROW, ChecksApp, in_app, report_of
from tests.tui.screen import screen_text


def names(app: ChecksApp) -> list[str]:
    return [row.check_id or row.domain for row in app.query_one(CheckLines).rows]


def chosen(app: ChecksApp) -> str:
    row = app.query_one(CheckList).chosen
    assert row is not None
    return row.check_id or row.domain


def line_of(app: ChecksApp, name: str) -> str:
    return next(line for line in screen_text(app).splitlines() if f" {name} " in line.split("││")[0])


async def test_domains_with_problems_are_open_and_the_cursor_begins_on_the_first_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with in_app() as (app, _):
        assert chosen(app) == "pcie.link-width"
        assert line_of(app, "pcie").startswith("│v FAIL    pcie")
        assert "1 fail  4 ok" in line_of(app, "pcie")
        assert "> FAIL    link-width    GPU 5" in line_of(app, "link-width").replace("  GPU", "    GPU")
        assert line_of(app, "nvlink").startswith("│> PASS    nvlink")
        assert "nvlink.links" not in names(app)
        assert "level full" in line_of(app, "compute")
        drawn: list[int] = []
        monkeypatch.setattr(app.query_one(CheckLines), "show_rows", lambda *_, **__: drawn.append(1))
        app.changed()
        assert drawn == [], "the same report is not drawn again"


@pytest.mark.wide
async def test_keys_move_fold_and_unfold() -> None:
    async with in_app() as (app, pilot):
        await pilot.press("up")
        assert chosen(app) == "pcie"
        await pilot.press("left")
        assert "pcie.link-width" not in names(app)
        await pilot.press("right", "down")
        assert chosen(app) == "pcie.link-width"
        await pilot.press("end")
        assert chosen(app) == "burn"
        await pilot.press("enter", "j")
        assert chosen(app) == "burn.drift"
        await pilot.press("home")
        assert chosen(app) == "driver"
        await pilot.press("space", "j", "j", "k")
        assert chosen(app) == "driver.responsive"
        await pilot.press("pagedown")
        assert chosen(app) not in ("driver", "driver.responsive")
        await pilot.press("pageup")
        assert chosen(app) in ("driver", "driver.responsive")


@pytest.mark.wide
async def test_e_and_enter_ask_for_the_page_and_a_click_chooses_and_folds() -> None:
    async with in_app() as (app, pilot):
        await pilot.press("e")
        assert app.pages == ["pcie.link-width"]
        await pilot.press("escape", "enter")
        assert app.pages == ["pcie.link-width"] * 2
        await pilot.press("escape")
        await pilot.click(CheckLines, offset=(10, names(app).index("pcie.link-speed")))
        assert chosen(app) == "pcie.link-speed"
        await pilot.click(CheckLines, offset=(10, names(app).index("pcie")))
        await pilot.pause()
        assert "pcie.link-width" not in names(app)


@pytest.mark.wide
async def test_a_filter_that_hides_the_chosen_check_turns_to_the_worst_that_it_shows() -> None:
    async with in_app(State(report=report_of("hgx-h100-8", "gpu-lost@2", "pcie-width-x8@5"))) as (app, pilot):
        assert chosen(app) == "gpu.lost"
        await pilot.press("slash", *"pcie")
        assert chosen(app) == "pcie.link-width"
        await pilot.press("escape", "end")
        assert chosen(app) == "burn"
        await pilot.press("slash", *"nvlink")
        assert chosen(app) == "nvlink.links"


async def test_a_detail_that_is_cut_says_so_beside_the_scrollbar_too() -> None:
    async with in_app(size=(80, 18)) as (app, _):
        assert app.query_one(CheckLines).show_vertical_scrollbar
        assert "x16 / x1~" in line_of(app, "balance")


@pytest.mark.wide
async def test_the_filter_looks_at_id_title_subject_and_status_and_f_leaves_problems_only() -> None:
    async with in_app() as (app, pilot):
        for typed, kept in (
            ("link-w", "pcie.link-width"),
            ("UNCORRECTED MEMORY", "gpu.ecc"),
            ("fail", "pcie.link-width"),
            ("GPU 5 (0000:ab", "pcie.link-width"),
        ):
            await pilot.press("slash")
            app.query_one(CheckList).query_one(Input).value = typed
            await pilot.pause()
            await pilot.press("enter")
            assert kept in names(app)
            assert "host.limits" not in names(app)
            assert f"filter: {typed}" in screen_text(app)
            assert isinstance(app.focused, CheckLines)
            await pilot.press("escape")
            assert "host" in names(app)
            assert "filter:" not in screen_text(app)
        await pilot.press("slash", *"[bold]zz")
        assert names(app) == []
        assert "nothing matches" in screen_text(app)
        await pilot.press("escape")
        assert "pcie.link-width" in names(app)
        await pilot.press("f")
        assert names(app) == ["pcie", "pcie.link-width"]
        assert "only problems" in screen_text(app)
        await pilot.press("f")
        assert "host" in names(app)


async def test_a_filter_looks_in_all_checks_also_if_only_problems_were_shown() -> None:
    async with in_app() as (app, pilot):
        await pilot.press("f", "slash", *"nvlink.links", "enter")
        assert names(app) == ["nvlink", "nvlink.links"]
        assert "filter: nvlink.links (escape: all)" in screen_text(app)


async def test_before_the_first_report_nothing_is_called_ok() -> None:
    async with in_app(State()) as (app, pilot):
        assert "nothing was checked yet" in screen_text(app)
        assert "PASS" not in screen_text(app)
        await pilot.press("r", "d", "e", "down", "enter")
        assert app.asked == []


@pytest.mark.wide
async def test_r_runs_the_check_at_its_own_level_or_the_domain_as_deep_as_everything_was_run() -> None:
    async with in_app() as (app, pilot):
        app.state.runs.append(FinishedRun(0.0, (), "standard", NARROW))
        await pilot.press("r", "up", "r", "end", "r", "right", "down", "r")
        assert app.asked == [
            (("pcie.link-width",), "quick"),
            (("pcie",), "quick"),
            (("burn",), "burn"),
            (("burn.drift",), "burn"),
        ]
        app.asked.clear()
        await pilot.press("home", *["down"] * names(app).index("train"), "r")
        assert app.asked == [(("train",), "standard")]


@pytest.mark.wide
async def test_cursor_and_scroll_stay_when_a_report_comes() -> None:
    async with in_app(size=(80, 16)) as (app, pilot):
        lines = app.query_one(CheckLines)
        await pilot.press("end", "right", "end")
        assert chosen(app) == "burn.counters"
        before, rows = lines.scroll_offset.y, len(lines.rows)
        assert before > 0
        app.state.report = report_of("hgx-h100-8", "gpu-lost@2")
        app.changed()
        await pilot.pause()
        assert len(lines.rows) > rows
        assert chosen(app) == "burn.counters"
        assert "  > skip    counters" in screen_text(app)


async def test_f_on_a_healthy_node_finds_no_problem_and_the_untouched_cursor_goes_to_the_first_that_comes_up() -> None:
    async with in_app(State(report=report_of())) as (app, pilot):
        await pilot.press("f")
        assert "no problem among what was checked" in screen_text(app)
        await pilot.press("f")
        app.state.report = NARROW
        app.changed()
        assert chosen(app) == "pcie.link-width"


def test_what_a_run_will_judge_is_marked_and_other_faults_stay_to_be_seen() -> None:
    running = Running((), "standard", 0.0)
    words = {row.check_id: row.word for row in rows_of(NARROW, running, {}) if row.check_id}
    assert words["collective.correct"] == "RUN"
    assert words["pcie.link-width"] == "FAIL"
    assert "link.host" not in {check for check, word in words.items() if word == "RUN"}
    one = {row.check_id: row.word for row in rows_of(NARROW, Running(("pcie.link-*",), "quick", 0.0), {})}
    assert (one["pcie.link-width"], one["pcie.balance"]) == ("RUN", "skip")


@pytest.mark.wide
async def test_a_hostile_name_is_drawn_as_it_is() -> None:
    [check] = [check for check in NARROW.checks if check.id == "pcie.link-width"]
    findings = tuple(
        msgspec.structs.replace(f, subject=msgspec.structs.replace(f.subject, kind="nic", name="[red]x\x1b[2J"))
        for f in check.findings
        if f.status.value == "fail"
    )
    hostile = msgspec.structs.replace(NARROW, checks=(msgspec.structs.replace(check, findings=findings),))

    async with in_app(State(report=hostile)) as (app, _):
        assert "[red]x\\x1b[2J" in line_of(app, "link-width")
