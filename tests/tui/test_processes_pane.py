"""The Processes tab: order, filter, the cursor that stays, and what an empty table means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.widgets import DataTable

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.stream.messages import GpuTick, ProcessTick
from gpudoctor.tui.panes.processes import ProcessesPane
from gpudoctor.tui.state import State
from tests.tui.pane_app import shown, state_of, text_of
from tests.tui.screen import press

HGX = load_source("hgx-h100-8").node
ALICE = ProcessTick(0, 101, "python", "C", "alice", 71000.0, 98.0, "python train.py", "torchrun", 0)
BOB = ProcessTick(1, 202, "python", "C", "bob", 500.0, 350.0, "python serve.py")
XORG = ProcessTick(2, 50, "Xorg", "G")
CAROL = ProcessTick(3, 303, "python", "C", "carol", 20000.0, 1.0, "jupyter [bold]x[/]", "Slurm 4711", 3)


def state_with(*processes: ProcessTick) -> State:
    state = state_of(HGX)
    state.processes = processes
    return state


def pids(text: str) -> list[int]:
    """The PIDs from top to bottom."""
    words = [line.split() for line in text.splitlines()]
    return [int(row[1]) for row in words if len(row) > 6 and row[0].isdecimal() and row[1].isdecimal()]


def test_every_process_stands_there_with_its_gpu_user_job_memory_cpu_and_command() -> None:
    text = text_of(ProcessesPane(), state_with(ALICE, BOB, XORG))
    assert "3 processes on GPUs, by GPU" in text
    row = next(line for line in text.splitlines() if "alice" in line)
    assert row.split() == ["0", "101", "alice", "torchrun", "rank", "0", "71000", "98", "python", "train.py"]
    unread = next(line for line in text.splitlines() if " 50 " in line)
    assert unread.split() == ["2", "50", "-", "-", "-", "-", "[G]", "Xorg"], "what was not read is a dash, never 0"


async def test_o_goes_through_the_orders_and_puts_what_is_not_known_last() -> None:
    async with shown(ProcessesPane(), state_with(CAROL, XORG, BOB, ALICE), focus=DataTable) as (app, pilot):
        orders = [pids(app.text)]
        for _ in range(4):
            await press(pilot, "o")
            orders.append(pids(app.text))
        assert orders == [
            [101, 202, 50, 303],  # GPU
            [101, 303, 202, 50],  # memory
            [202, 101, 303, 50],  # CPU
            [101, 202, 303, 50],  # user
            [101, 202, 50, 303],
        ]


async def test_an_idle_process_is_not_taken_for_one_that_could_not_be_read() -> None:
    idle = ProcessTick(7, 404, "python", cpu_pct=0.0)
    async with shown(ProcessesPane(), state_with(XORG, idle), focus=DataTable) as (app, pilot):
        await press(pilot, "o", "o")
        assert "by CPU" in app.text
        assert pids(app.text) == [404, 50]


async def test_a_click_on_a_heading_sorts_by_it() -> None:
    async with shown(ProcessesPane(), state_with(ALICE, BOB, XORG, CAROL), focus=DataTable) as (app, pilot):
        y, heading = next((n, line) for n, line in enumerate(app.text.splitlines()) if "MiB" in line)
        await pilot.click(offset=(heading.index("MiB"), y))
        await pilot.pause()
        assert "by GPU memory" in app.text
        assert pids(app.text) == [101, 303, 202, 50]
        await pilot.click(offset=(heading.index("PID"), y))
        await pilot.pause()
        assert pids(app.text) == [50, 101, 202, 303]


async def test_a_filter_leaves_what_has_its_words_in_any_column_and_esc_clears_it() -> None:
    async with shown(ProcessesPane(), state_with(ALICE, CAROL), focus=DataTable) as (app, pilot):
        await press(pilot, "slash", *"SLURM")
        assert pids(app.text) == [303]
        assert "filter 'slurm' leaves 1" in app.text
        await press(pilot, "enter")
        assert isinstance(app.focused, DataTable)
        assert pids(app.text) == [303], "Enter keeps it"
        await press(pilot, "escape")
        assert pids(app.text) == [101, 303]
        assert "filter" not in app.text


async def test_esc_while_typing_gives_the_table_its_keys_back() -> None:
    async with shown(ProcessesPane(), state_with(ALICE, CAROL), focus=DataTable) as (app, pilot):
        await press(pilot, "slash", "x", "escape", "o")
        assert "by GPU memory" in app.text
        assert pids(app.text) == [101, 303]


async def test_the_cursor_stays_on_its_process_when_others_come_and_go() -> None:
    async with shown(ProcessesPane(), state_with(ALICE, CAROL), focus=DataTable) as (app, pilot):
        await press(pilot, "down")
        assert "PID 303: jupyter [bold]x[/]" in app.text, "a command is never markup"
        new = msgspec.structs.replace(CAROL, memory_mib=21000.0, cpu_pct=2.0)
        app.state.processes = (BOB, XORG, new)
        app.pane.show(app.state)
        await pilot.pause()
        assert "PID 303" in app.text
        assert app.query_one(DataTable).cursor_row == 2
        assert "21000" in app.text
        app.state.processes = (BOB,)
        app.pane.show(app.state)
        await pilot.pause()
        assert "PID 202: python serve.py" in app.text


async def test_what_did_not_change_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(ProcessesPane(), state_with(ALICE, BOB)) as (app, _):
        written: list[str] = []
        table = app.query_one(DataTable)
        monkeypatch.setattr(table, "update_cell", lambda row, column, value: written.append(str(value)))
        app.pane.show(app.state)
        assert written == []
        app.state.processes = (msgspec.structs.replace(ALICE, cpu_pct=42.0), BOB)
        app.pane.show(app.state)
        assert written == ["42"]


def test_nothing_runs_and_nothing_could_be_read_are_told_apart() -> None:
    assert "No process runs on any GPU." in text_of(ProcessesPane(), state_with())

    denied = Missing("the driver refuses", "denied")
    gpus = tuple(msgspec.structs.replace(gpu, processes=denied) for gpu in HGX.gpus)
    unread = text_of(ProcessesPane(), state_of(msgspec.structs.replace(HGX, gpus=gpus)))
    assert "GPU 0, 1, 2, 3, 4, 5, 6, 7: processes could not be read: the driver refuses" in unread
    assert "No process" not in unread

    partly = state_with()
    partly.latest[3] = GpuTick(3, unread={"processes": Missing("GPU is lost", "failed")})
    text = text_of(ProcessesPane(), partly)
    assert "No process is seen on the other GPUs." in text
    assert "GPU 3: processes could not be read: GPU is lost" in text

    assert "No facts yet." in text_of(ProcessesPane(), State())
    assert "No GPU is known here" in text_of(ProcessesPane(), state_of("cpu-only"))


def test_before_the_first_reading_the_processes_of_the_facts_are_shown() -> None:
    facts: dict[str, Any] = {"processes": (GpuProcess(77, "python", memory_mib=1234, user="dave"),)}
    node = msgspec.structs.replace(HGX, gpus=(msgspec.structs.replace(HGX.gpus[0], **facts), *HGX.gpus[1:]))
    text = text_of(ProcessesPane(), state_of(node))
    row = next(line for line in text.splitlines() if "dave" in line)
    assert row.split() == ["0", "77", "dave", "-", "1234", "-", "python"]


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)])
def test_all_columns_fit_and_the_command_takes_the_rest(size: tuple[int, int]) -> None:
    long = msgspec.structs.replace(ALICE, command="python " + "very-long-" * 30 + "\x1b]0;evil\x07")
    text = text_of(ProcessesPane(), state_with(long, BOB), size)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= size[0]
    heading = next(line for line in lines if "PID" in line)
    assert heading.split() == ["GPU", "PID", "user", "job", "MiB", "CPU", "%", "command"]
    assert "\x1b" not in text
    row = next(line for line in lines if "alice" in line)
    assert len(row) >= size[0] - 4


def test_it_offers_no_way_to_end_a_process() -> None:
    assert {binding.key for binding in ProcessesPane.BINDINGS if not isinstance(binding, tuple)} == {
        "o",
        "slash",
        "escape",
    }
