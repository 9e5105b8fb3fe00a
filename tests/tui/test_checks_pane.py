"""The Checks tab and what it does about runs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from textual.widgets import Input, Markdown

from gpudoctor.checks.core.registry import Level
from gpudoctor.facts.stream.messages import GpuTick, Opening, ProcessTick, Tick
from gpudoctor.report.model import Report, render_json
from gpudoctor.report.progress import ProgressLine
from gpudoctor.tui.check_runner import Checker, OnProgress, puts_load, users_of_gpus
from gpudoctor.tui.panes.checks import running_words
from gpudoctor.tui.screens import ConfirmScreen, LevelScreen
from gpudoctor.tui.state import FinishedRun, Running, State
from tests.tui.checks_app import NARROW, in_app, report_of
from tests.tui.screen import press, screen_text, until

HEALTHY = report_of()


class FakeChecker(Checker):
    """Stands for the child: a run ends with the report that the test gives, when the test says so."""

    def __init__(self, report: Report | None = NARROW, *, loads_gpus: bool = False) -> None:
        super().__init__([], [] if loads_gpus else ["--node", "hgx-h100-8"])
        self.report = report
        self.begun: list[tuple[tuple[str, ...], Level, bool]] = []
        self.on_progress: OnProgress | None = None
        self.may_end = asyncio.Event()

    async def run(
        self, words: Sequence[str], level: Level, *, force: bool = False, on_progress: OnProgress | None = None
    ) -> FinishedRun:
        self.begun.append((tuple(words), level, force))
        self.on_progress = on_progress
        await self.may_end.wait()
        self.may_end.clear()
        error = None if self.report else "the node is not there"
        return FinishedRun(1000.0, tuple(words), level, self.report, error)

    def cancel(self) -> None:
        self.may_end.set()


@pytest.mark.wide
async def test_the_chosen_check_shows_its_findings_and_its_page() -> None:
    async with in_app() as (app, pilot):
        assert "FAIL pcie.link-width on GPU 5" in screen_text(app)
        await until(pilot, lambda: "False alarms" in app.query_one(Markdown).source)
        assert "Every GPU uses all of its PCIe lanes" in app.query_one(Markdown).source
        await pilot.press("down")
        assert "PASS" in screen_text(app).split("pcie.link-speed", 1)[1]


@pytest.mark.wide
async def test_nothing_is_wider_than_the_screen_and_on_a_low_one_the_page_makes_room() -> None:
    async with in_app(size=(80, 24)) as (app, pilot):
        text = screen_text(app)
        assert "Page" not in text
        assert "Runs since the start" in text
        assert "FAIL pcie.link-width on GPU 5" in text
        for width, height in ((80, 24), (120, 36), (200, 60)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            lines = screen_text(app).splitlines()
            assert len(lines) == height
            assert max(map(len, lines)) <= width
            assert "All R" in lines[0]
        # on half of a screen the list stands above the findings
        await pilot.resize_terminal(40, 24)
        await until(pilot, lambda: "FAIL pcie.link-width on GPU 5" in screen_text(app))
        assert "link-width  GPU 5" in screen_text(app)
        assert "expected  PCIe Gen5 x16" in screen_text(app)


@pytest.mark.parametrize(
    ("columns", "left_out"), [(40, ("Domain d", "Compare b")), (50, ("Compare b",)), (80, ("Compare b",)), (120, ())]
)
async def test_only_whole_buttons_are_shown(columns: int, left_out: tuple[str, ...]) -> None:
    shown = "   ".join(
        label for label in ("All R", "Check r", "Domain d", "Level quick l", "Compare b") if label not in left_out
    )

    async with in_app(size=(100, 24)) as (app, pilot):
        await pilot.resize_terminal(columns, 24)
        await until(pilot, lambda: any(line.endswith(f" {shown}") for line in screen_text(app).splitlines()))


@pytest.mark.wide
async def test_d_and_the_buttons_ask_for_runs() -> None:
    async with in_app() as (app, pilot):
        await pilot.press("d")
        await pilot.click("#all")
        await pilot.click("#one")
        await pilot.click("#domain")
        await until(pilot, lambda: len(app.asked) == 4)
        assert app.asked == [(("pcie",), "quick"), ((), "quick"), (("pcie.link-width",), "quick"), (("pcie",), "quick")]


@pytest.mark.wide
async def test_the_level_is_chosen_with_what_it_costs() -> None:
    checker = FakeChecker(loads_gpus=True)
    async with in_app(checker=checker) as (app, pilot):
        await pilot.click("#level")
        await until(pilot, lambda: "quick " in screen_text(app))
        assert isinstance(app.screen, LevelScreen)
        text = screen_text(app)
        assert "a second or two, safe beside running jobs" in text
        assert "about half a minute" in text
        await press(pilot, "down", "down", "enter", then=lambda: checker.begun == [((), "full", False)])
        checker.may_end.set()
        await until(pilot, lambda: bool(app.state.runs))
        await pilot.click("#level")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("escape")
        assert len(checker.begun) == 1


async def test_a_simulated_node_is_never_said_to_be_loaded() -> None:
    async with in_app(checker=FakeChecker()) as (app, pilot):
        await pilot.click("#level")
        await until(pilot, lambda: "quick " in screen_text(app))
        text = screen_text(app)
        assert "CPU ranks of this machine" in text
        assert "loads the GPUs" not in text
        assert "half a minute" not in text


async def test_a_run_shows_its_progress_and_then_its_report() -> None:
    checker = FakeChecker()
    async with in_app(State(), size=(200, 60), checker=checker) as (app, pilot):
        await pilot.click("#all")
        await until(pilot, lambda: checker.on_progress is not None)
        assert checker.on_progress is not None
        checker.on_progress(ProgressLine("all_reduce of 4 MiB", 0, "collective", 20.0))
        checker.on_progress(ProgressLine("all_reduce of 1 MiB", 1, "collective", 20.0))
        await pilot.pause()
        text = screen_text(app)
        assert re.search(r"RUN all checks, level quick: \d+ s, about \d+ s left", text)
        assert "rank 0: all_reduce of 4 MiB; rank 1: all_reduce of 1 MiB" in text
        assert "All R" not in text
        await pilot.click("#cancel")
        await until(pilot, lambda: bool(app.state.runs))
        await pilot.pause()
        text = screen_text(app)
        assert "FAIL pcie.link-width on GPU 5" in text
        assert "1 fault" in text
        assert "All R" in text
        assert app.state.running is None
        assert [line.kind for line in app.state.log] == ["run"]
        assert app.state.log[0].text == (
            "all checks, level quick: FAIL pcie.link-width GPU 5 (0000:ab:00.0): PCIe Gen5 x8"
        )


async def test_a_second_run_waits_for_nobody_and_is_refused() -> None:
    checker = FakeChecker()
    async with in_app(State(), checker=checker) as (app, pilot):
        app.checks_control.want((), "quick")
        app.checks_control.want(("pcie",), "quick")
        await pilot.pause()
        assert checker.begun == [((), "quick", False)]
        checker.may_end.set()
        await until(pilot, lambda: bool(app.state.runs))


async def test_a_failed_run_keeps_the_report_and_says_why() -> None:
    checker = FakeChecker(None)
    async with in_app(size=(200, 60), checker=checker) as (app, pilot):
        checker.may_end.set()
        app.checks_control.want((), "standard")
        await until(pilot, lambda: bool(app.state.runs))
        await pilot.pause()
        assert app.state.report is NARROW
        assert "no verdict the node is not there" in screen_text(app)


@pytest.mark.wide
async def test_a_run_of_some_checks_leaves_the_faults_of_the_others() -> None:
    checker = FakeChecker(report_of(words=("host",)))
    async with in_app(checker=checker) as (app, pilot):
        checker.may_end.set()
        app.checks_control.want(("host",), "quick")
        await until(pilot, lambda: bool(app.state.runs))
        assert app.state.report is not None
        assert app.state.report.verdict == "fail"
        assert len(app.state.report.checks) == len(NARROW.checks)


def busy_state() -> State:
    state = State(report=NARROW, opening=Opening("gpudoctor.watch/1", 0.0, 1.0, HEALTHY.facts))  # type: ignore[arg-type]
    state.take(Tick(1.0, processes=(ProcessTick(3, 4711, "python\x1b[2J train.py", user="alice"),)))
    return state


async def test_load_beside_a_job_is_asked_for_first() -> None:
    checker = FakeChecker(loads_gpus=True)
    async with in_app(busy_state(), checker=checker) as (app, pilot):
        app.checks_control.want((), "standard")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)
        assert "GPU 3: python\\x1b[2J train.py of alice (pid 4711)" in screen_text(app)
        await pilot.press("enter")  # No has the focus
        assert checker.begun == []
        app.checks_control.want((), "standard")
        await pilot.pause()
        await press(pilot, "y", then=lambda: bool(checker.begun))
        assert checker.begun == [((), "standard", True)]
        checker.may_end.set()
        await until(pilot, lambda: bool(app.state.runs))
        # what only reads is not asked about
        app.checks_control.want((), "quick")
        await until(pilot, lambda: len(checker.begun) == 2)
        assert checker.begun[1] == ((), "quick", False)
        checker.may_end.set()


async def test_cpu_ranks_disturb_no_gpu_and_need_no_question() -> None:
    checker = FakeChecker()
    async with in_app(busy_state(), checker=checker) as (app, pilot):
        app.checks_control.want((), "standard")
        await until(pilot, lambda: bool(checker.begun))
        assert checker.begun == [((), "standard", False)]
        checker.may_end.set()


def test_who_uses_a_gpu_is_seen_in_its_memory_where_no_process_shows() -> None:
    state = State()
    state.take(Tick(1.0, gpus=(GpuTick(0, {"memory_used_mib": 40000.0, "utilization_pct": 97.0}), GpuTick(1, {}))))
    assert users_of_gpus(state) == ("GPU 0: 97 % busy, 40000 MiB in use by a process that is not seen here",)
    graphics = State()
    graphics.take(Tick(1.0, processes=(ProcessTick(0, 1, "Xorg", kind="G"),)))
    assert users_of_gpus(graphics) == ()


def test_which_checks_put_load_on_the_node() -> None:
    assert not puts_load((), "quick")
    assert puts_load((), "standard")
    assert not puts_load(("pcie",), "full")
    assert puts_load(("train.sync",), "standard")
    assert puts_load(("plugin.of-the-other-machine",), "standard")


@pytest.mark.wide
async def test_b_compares_with_a_saved_report(tmp_path: Path) -> None:
    saved, bad = tmp_path / "saved.json", tmp_path / "bad.json"
    saved.write_text(render_json(HEALTHY))
    bad.write_text('{"schema": "gpudoctor.facts/1"}')

    async with in_app(size=(200, 60)) as (app, pilot):
        await pilot.press("b")
        app.screen.query_one(Input).value = str(bad)
        await press(pilot, "enter")
        assert app.state.base is None
        [said] = [each.message for each in app._notifications]
        assert said.startswith(f"{bad}: not a report")
        await pilot.press("b")
        app.screen.query_one(Input).value = str(saved)
        await press(pilot, "enter")
        text = screen_text(app)
        assert "Against the saved report of" in text
        assert "changed: pcie.link-width GPU 5 pass -> FAIL" in text
        await pilot.press("b", "escape")
        assert app.state.base is not None
        await pilot.press("b", "enter")  # nothing typed: no longer
        await pilot.pause()
        assert app.state.base is None


@pytest.mark.wide
async def test_the_run_before_is_what_a_run_is_compared_with() -> None:
    state = State(report=NARROW)
    state.runs = [
        FinishedRun(1.0, (), "quick", HEALTHY),
        FinishedRun(2.0, ("host",), "quick", report_of(words=("host",))),
        FinishedRun(3.0, (), "quick", None, "ssh: refused"),
        FinishedRun(4.0, ("pcie",), "quick", report_of("hgx-h100-8", "pcie-width-x8@5", words=("pcie",))),
    ]

    async with in_app(state, size=(200, 60)) as (app, _):
        text = screen_text(app)
        assert "Against the run of " + time.strftime("%H:%M:%S", time.localtime(1.0)) in text
        assert "changed: pcie.link-width GPU 5 pass -> FAIL" in text
        assert "no verdict ssh: refused" in text


def test_the_line_of_a_run_invents_no_time() -> None:
    running = Running(("pcie",), "quick", 100.0)
    assert running_words(running, 109.0) == "RUN pcie, level quick: 9 s"
    running.ends_s = 190.0
    assert running_words(running, 109.0) == "RUN pcie, level quick: 9 s, about 1 min 21 s left"
    assert "left" not in running_words(running, 200.0)
    assert running_words(None, 0.0) == ""


@pytest.mark.wide
async def test_a_partial_run_is_called_so() -> None:
    partial = msgspec.structs.replace(NARROW, run=msgspec.structs.replace(NARROW.run, interrupted="SIGINT"))
    state = State(report=partial, runs=[FinishedRun(1.0, (), "full", partial)])

    async with in_app(state) as (app, _):
        assert "interrupted: partial" in screen_text(app)
        assert not app.query_one("#cancel").display
