"""The overview: what stands in it, what gives way, and that nothing is invented."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.registry import all_checks, select
from gpudoctor.facts.stream.messages import GpuTick
from gpudoctor.report.judge import Question, judge
from gpudoctor.tui.panes.gpu_rows import columns_for, gpu_row, heading
from gpudoctor.tui.panes.history import history_rows, step_for
from gpudoctor.tui.panes.host_text import host_rows
from gpudoctor.tui.panes.overview import arrange
from gpudoctor.tui.widgets.lines import Row, length
from tests.tui.doctor_app import (
    AT_S,
    doctor,
    gpu_tick,
    node_of,
    opening_of,
    sixteen,
    state_of,
    tick_of,
    torchrun,
)
from tests.tui.screen import press, screen_text, until, words_of


def text_of(row: Row) -> str:
    return words_of(row.runs)


def on_job(width: int = 200, **facts: Any) -> tuple[str, str]:
    """The rows on the host and its job, after eight ticks of a job on all GPUs."""
    node = node_of()
    facts.setdefault("processes", torchrun(node))
    host, job = host_rows(state_of(node, *(tick_of(node, second, **facts) for second in range(1, 9))), width)
    return text_of(host), text_of(job)


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("width", range(40, 200))
def test_a_row_of_the_table_is_as_wide_as_its_heading_and_fits(width: int) -> None:
    columns = columns_for(width)
    row = gpu_row(columns, node_of().gpus[5], gpu_tick(5), "FAIL", True)
    assert length(row.runs) == length(heading(columns).runs) <= width


def test_columns_give_way_in_the_order_that_is_documented() -> None:
    gone: list[str] = []
    everything = columns_for(200).widths
    for width in range(120, 20, -1):
        here = columns_for(width).widths
        gone += [name for name in everything if name not in here and name not in gone]
    assert gone == ["held", "nvlink", "pcie", "clock", "memory_bar", "util_bar", "power"]


def test_what_was_not_read_is_a_dash_and_never_a_nought() -> None:
    text = text_of(gpu_row(columns_for(100), node_of().gpus[0], GpuTick(0), "-", False))
    assert "0" not in text.replace("  0", "", 1)
    assert text.count("-") == 9


def test_a_lost_gpu_shows_no_old_reading() -> None:
    text = text_of(gpu_row(columns_for(100), node_of().gpus[3], gpu_tick(3), "LOST", False))
    assert "LOST" in text
    assert "511" not in text


@pytest.mark.wide(every=6)
@pytest.mark.parametrize("problem", [False, True])
@pytest.mark.parametrize("gpus", range(17))
@pytest.mark.parametrize(
    "size", [(40, 12), (40, 21), (60, 45), (80, 20), (80, 21), (100, 30), (120, 33), (160, 45), (200, 57)]
)
def test_parts_fill_the_pane_without_overlap(size: tuple[int, int], gpus: int, problem: bool) -> None:
    width, height = size
    arranged = arrange(width, height, gpus, problem=problem)
    covered: set[tuple[int, int]] = set()
    places = (arranged.gpus, arranged.checks, arranged.history, arranged.finding, arranged.host)
    for place in places:
        cells = {(x, y) for x in range(place.x, place.x + place.width) for y in range(place.y, place.y + place.height)}
        assert not cells & covered
        covered |= cells
    assert covered == {(x, y) for x in range(width) for y in range(height)}


def test_sixteen_gpus_fit_the_smallest_screen() -> None:
    arranged = arrange(80, 21, 16)
    assert arranged.gpus.height >= 16 + 1 + 1
    assert arranged.history.height == arranged.finding.height == 0


def test_a_problem_has_room_on_every_screen() -> None:
    for width, height, gpus in ((80, 21, 16), (120, 21, 16), (40, 17, 8), (40, 17, 16)):
        arranged = arrange(width, height, gpus, problem=True)
        assert arranged.finding.height >= 8
        assert arranged.finding.width == width
        assert arranged.gpus.height >= 5


def test_the_history_grows_where_there_is_room() -> None:
    assert arrange(120, 33, 8).history.height == 6 + 2
    assert arrange(120, 31, 8).history.height == 6 + 2  # with an alert and a time slider
    assert arrange(200, 57, 8).history.height >= 4 * 6


def test_the_history_keeps_its_scale_and_its_gaps() -> None:
    node = node_of()
    ticks = [tick_of(node, second, changed={0: gpu_tick(0, power_w=350.0)}) for second in range(1, 5)]
    state = state_of(node, *ticks, tick_of(node, 30, changed={0: gpu_tick(0, power_w=350.0)}))
    rows = [text_of(row) for row in history_rows(state, node.gpus[0], 40, 6, 1.0)]
    power = rows[1]
    assert power.startswith(" power 0-700 W")
    drawn = power[16:56]
    # held for five ticks, then unknown, then one reading again
    assert drawn == " " * 10 + "▅" * 9 + " " * 20 + "▅"
    assert power.rstrip().endswith("350")


def test_readings_of_pcie_which_come_every_4_s_leave_no_gap_at_a_short_interval() -> None:
    node = node_of()
    seen = {"pcie_rx_gb_s": 30.0, "pcie_tx_gb_s": 30.0}
    without = GpuTick(0, {"power_w": 350.0})
    ticks = [
        msgspec.structs.replace(tick_of(node, changed={0: without if n % 20 else GpuTick(0, seen)}), at_s=AT_S + n / 5)
        for n in range(41)
    ]
    state = state_of(node, *ticks)
    state.opening = msgspec.structs.replace(opening_of(node), interval_s=0.2)
    pcie = text_of(history_rows(state, node.gpus[0], 9, 6, 1.0)[4])
    assert pcie[16:25] == "▄" * 9


def test_the_history_of_a_gpu_without_known_limit_draws_no_graph_of_it() -> None:
    node = node_of("cpu-only")
    assert node.gpus == ()
    node = node_of("t4-cloud-4")
    state = state_of(node)
    labels = [text_of(row)[:16].strip() for row in history_rows(state, node.gpus[0], 40, 6, 1.0)]
    assert not any(label.startswith("NVL") and "0-" in label and "?" not in label for label in labels)


def test_the_graph_begins_fine_and_gets_coarser_as_time_goes_by() -> None:
    assert step_for(50, 1.0, 10.0) == 1
    assert step_for(50, 1.0, 90.0) == 2
    assert step_for(50, 1.0, 5000.0) == 10
    assert step_for(50, 5.0, 0.0) == 5


def test_the_job_is_told_with_the_balance_of_its_gpus() -> None:
    host, job = on_job()
    assert host == " CPU 38 % of 224   RAM 412/2015 GiB   load 31.2   watch 3.2 ms a tick"
    assert job == (
        " torchrun by alice, 8 ranks on GPU 0-7: utilisation alike (98 %), memory balanced (71.6 GiB), steady over 7 s"
    )


def test_an_idle_gpu_of_a_job_is_named() -> None:
    _, job = on_job(changed={5: gpu_tick(5, utilization_pct=31.0)})
    assert "utilisation uneven (GPU 5 31 %, others to 98 %)" in job


def test_nothing_is_added_up_where_a_reading_is_missing() -> None:
    _, job = on_job(without=[3])
    assert "GPU 3 lost" in job
    assert "alike" not in job
    assert "balanced" not in job


def test_beside_a_lost_gpu_nothing_is_balanced() -> None:
    held = tuple(process for process in torchrun(node_of()) if process.gpu != 2)
    _, job = on_job(processes=held, without=[2])
    assert job.endswith(": GPU 2 lost, they may only wait for it")


def test_no_processes_and_processes_not_read_are_told_apart() -> None:
    assert "processes not read" in on_job(80, processes=None)[1]
    assert "no job on the GPUs" in on_job(80, processes=())[1]


def test_the_words_of_the_job_fit_a_narrow_screen() -> None:
    assert len(on_job(80)[1]) <= 80
    host, job = on_job(40)
    assert (len(host), len(job)) == (40, 40)
    assert job == " torchrun by alice, 8 ranks on GPU 0-7:…"


@pytest.mark.wide
async def test_the_faulty_gpu_is_marked_and_its_finding_explained_at_every_size() -> None:
    app = doctor(node_of("hgx-h100-8", "pcie-width-x8@5"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.report is not None)
        for width, height in ((80, 24), (40, 24), (120, 36), (200, 60)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            text = screen_text(app)
            row = next(line for line in text.splitlines() if line.strip("│ >").startswith("5 "))
            assert "FAIL" in row
            assert ">  5" in row
            assert "1 FAULT" in text.splitlines()[0]
            assert "SIMULATED" in text.splitlines()[0]
            assert "PCIe Gen5 x8" in text
            assert "do        1. Drain" in text
            assert max(len(line) for line in text.splitlines()) <= width


async def test_the_finding_is_that_of_the_selected_gpu_e_explains_and_ctrl_c_leaves() -> None:
    app = doctor(node_of("hgx-h100-8", "pcie-width-x8@5"))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "found     PCIe Gen5 x8" in screen_text(app))
        app.query_one("#gpus").focus()
        await press(pilot, "down", then=lambda: "GPU 6: no problem found." in screen_text(app))
        assert "found     PCIe Gen5 x8" not in screen_text(app)
        await press(pilot, "up", then=lambda: "found     PCIe Gen5 x8" in screen_text(app))
        await press(pilot, "e", then=lambda: len(app.screen_stack) == 2)
        await press(pilot, "q", then=lambda: len(app.screen_stack) == 1)
        await press(pilot, "ctrl+c", then=lambda: app._exit)
    assert app.return_value == 0


async def test_what_is_wrong_with_one_of_sixteen_gpus_and_what_to_do_are_to_be_seen_at_80x24() -> None:
    broken = node_of("hgx-h100-8", "pcie-width-x8@5")
    node = sixteen(broken)
    app = doctor(node, opening_of(node), tick_of(node))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.report is not None and "found" in screen_text(app))
        text = screen_text(app)
        assert "FAIL pcie.link-width on GPU 5" in text
        assert "found     PCIe Gen5 x8" in text
        assert "do        1. Drain the node" in text
        assert ">  5" in text


def test_a_gpu_that_no_check_has_looked_at_is_not_called_ok() -> None:
    node = node_of()
    state = state_of(node)
    assert state.health_of(3) == "-", "nothing was judged"
    state.report = judge(node, question=Question(checks=select(all_checks(), ["env"]), level="quick"))
    assert state.health_of(3) == "-", "only the environment was"
    state.report = judge(node, question=Question(checks=select(all_checks(), ["gpu.lost"]), level="quick"))
    assert state.health_of(3) == "ok"


def test_while_the_driver_is_silent_nothing_is_called_ok_and_a_fault_stays_one() -> None:
    node = node_of("hgx-h100-8", "pcie-width-x8@5")
    state = state_of(node)
    state.report = judge(node, question=Question(level="quick"))
    assert (state.health_of(3), state.health_of(5)) == ("ok", "FAIL")
    state.silent("driver not answering: nvmlDeviceGetName has not returned for 4 s", 0.0)
    assert (state.health_of(3), state.health_of(5)) == ("unknown", "FAIL")
    state.answered(1.0)
    assert state.health_of(3) == "ok"
