"""The Ranks tab: bars of each rank, the straggler with its cause, busbw by message size."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.containers import VerticalScroll

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.measurements import (
    Collective,
    Launch,
    Measurements,
    ProbeProblem,
    RankInfo,
    Training,
    TrainRank,
)
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread, Telemetry
from gpudoctor.run.live import LiveRank, LiveRun
from gpudoctor.run.step_series import TimedStep
from gpudoctor.tui.panes.ranks import RanksPane
from gpudoctor.tui.state import Running
from tests.checks.measured import measured
from tests.checks.train.test_training import rank, slow, trained
from tests.tui.pane_app import shown, state_of, text_of
from tests.tui.screen import press

MIB = 2**20
HGX = load_source("hgx-h100-8").node
SLOW_5 = tuple(slow(5, 1.5, wait_ms=0.3) if number == 5 else rank(number, wait_ms=10.0) for number in range(8))


def training(ranks: tuple[TrainRank, ...], **facts: Any) -> Training:
    made = trained(*ranks, **{"samples_per_s": 2064.0, "steady_step_ms": 31.0, **facts}).training
    assert made is not None
    return made


def collective(op: str, size_bytes: int, busbw: float, **facts: Any) -> Collective:
    return Collective(op, size_bytes, "float32", 20, 100.0, 2.0, busbw, busbw, **facts)


COLLECTIVES = (
    *(collective("all_reduce", size, rate) for size, rate in ((4096, 0.01), (MIB, 30.0), (1024 * MIB, 481.0))),
    *(collective("all_gather", size, rate) for size, rate in ((MIB, 25.0), (1024 * MIB, 390.0))),
)


def test_while_ranks_run_the_tab_says_what_they_do_above_what_was_measured_before() -> None:
    state = state_of(HGX)
    state.running = Running(("collective", "train"), "standard", 0.0, "step 2 of 3: all_reduce of 1 MiB (2 ranks)")
    text = text_of(RanksPane(), state, (120, 30))
    assert text.startswith("RUN collective, train, level standard: ")
    assert "step 2 of 3: all_reduce of 1 MiB (2 ranks)" in text
    assert "No ranks have run" not in text
    before = state_of(HGX, measured(HGX, training=training(SLOW_5)))
    before.running = state.running
    text = text_of(RanksPane(), before, (120, 50))
    assert text.index("step 2 of 3") < text.index("DDP train")


def bar_of(text: str, number: int) -> str:
    line = next(line for line in text.splitlines() if f"rank {number} " in line and line.count("|") == 2)
    return line.split("|")[1]


def test_bars_of_all_ranks_are_on_one_scale_that_is_said() -> None:
    text = text_of(RanksPane(), state_of(HGX, measured(HGX, training=training(SLOW_5))), (120, 50))
    assert "0 to 50 ms" in text
    assert "█ compute  ░ wait  ▒ data" in text
    width = len(bar_of(text, 0))
    assert bar_of(text, 0).count("█") == pytest.approx(20 / 50 * width, abs=1)
    assert bar_of(text, 0).count("░") == pytest.approx(10 / 50 * width, abs=1)
    assert bar_of(text, 5).count("█") == pytest.approx(30 / 50 * width, abs=1)


def test_the_straggler_is_marked_and_its_cause_is_told() -> None:
    load = Telemetry(
        "train",
        5.0,
        tuple(
            GpuUnderLoad(
                gpu.index,
                gpu.uuid if isinstance(gpu.uuid, str) else None,
                20,
                {"utilization_pct": Spread(90.0, 97.0, 99.0)},
                event_share={"sw-thermal": 0.4} if gpu.index == 5 else {},
            )
            for gpu in HGX.gpus
        ),
    )
    figures = measured(HGX, training=training(SLOW_5), telemetry=(load,))
    text = text_of(RanksPane(), state_of(HGX, figures), (120, 60))
    marked = [line for line in text.splitlines() if line.startswith(">")]
    assert [line.split("|")[0].split() for line in marked] == [[">rank", "5", "(GPU", "5)", "FAIL"]]
    assert "FAIL train.balance  rank 5 (GPU 5): computes 1.50 x as long" in text
    assert "likely        SW thermal slowdown active 40 % of the time" in text
    assert "90 / 97 / 99" in text
    assert "sw-thermal 40%" in text


def test_even_ranks_are_marked_by_nothing() -> None:
    even = training(tuple(rank(number) for number in range(8)))
    text = text_of(RanksPane(), state_of(HGX, measured(HGX, training=even)))
    assert not any(line.startswith(">") for line in text.splitlines())
    assert "FAIL" not in text


def test_speed_and_scaling_stand_above_the_bars() -> None:
    text = text_of(RanksPane(), state_of(HGX, measured(HGX, training=training(SLOW_5))))
    assert "2064 samples/s, 31.00 ms a plain step, 24.00 ms with one rank alone" in text
    assert "efficiency 77%" in text


def test_figures_that_were_not_read_are_dashes_and_a_loss_that_is_none_is_nan() -> None:
    ranks = (rank(0), rank(1, loss_last=None, memory_peak_mib=Missing("not on this build")))
    text = text_of(RanksPane(), state_of(HGX, measured(HGX, ranks=2, training=training(ranks))))
    line = next(line for line in text.splitlines() if "rank 1 (GPU 1)" in line and line.count("|") == 2)
    assert line.split("|")[2].split()[-2:] == ["5.000->NaN", "-"]


def test_cpu_ranks_are_called_so() -> None:
    launch = Launch("gloo", 2, (RankInfo(0, "cpu"), RankInfo(1, "cpu")))
    figures = Measurements(
        launch=launch,
        training=training((rank(0), rank(1)), device="cpu"),
        collectives=COLLECTIVES,
        injected=("slow-rank=1:2",),
    )
    text = text_of(RanksPane(), state_of(HGX, figures))
    assert text.splitlines()[0] == "Measured on 2 CPU ranks (gloo), no GPU is judged by them"
    assert "INJECTED on purpose: slow-rank=1:2" in text
    assert "CPU ranks: not judged" in text
    assert "GPU 0" not in text


async def test_m_turns_to_the_next_operation_and_back() -> None:
    state = state_of(HGX, measured(HGX, collectives=COLLECTIVES))
    async with shown(RanksPane(), state, focus=VerticalScroll) as (app, pilot):
        assert "busbw of all_reduce" in app.text
        assert app.line_with("500 ┤").count("o") == 1
        await press(pilot, "m")
        assert "busbw of all_gather" in app.text
        assert "500 ┤" in app.text, "both operations are on one axis"
        await press(pilot, "m")
        assert "busbw of all_reduce" in app.text


def test_all_operations_stand_in_the_table_and_wrong_results_are_named() -> None:
    wrong = (*COLLECTIVES, collective("broadcast", 64 * MIB, 200.0, wrong_ranks=(3,), missing_ranks=(1, 2)))
    text = text_of(RanksPane(), state_of(HGX, measured(HGX, collectives=wrong)))
    assert "WRONG on rank 3  without rank 1, 2" in next(
        line for line in text.splitlines() if line.startswith("broadcast")
    )
    rows = [line.split() for line in text.splitlines() if line.startswith("all_gather")]
    assert rows == [
        ["all_gather", "1", "MiB", "25.0", "100", "us", "2", "us"],
        ["all_gather", "1", "GiB", "390", "100", "us", "2", "us"],
    ]


def test_a_rank_that_hangs_is_named_with_where_and_who_waits() -> None:
    problem = ProbeProblem(
        "train", "timeout", "rank 3 did not come back", rank=3, phase="train step 12", waiting=(0, 1), output=("[b]x",)
    )
    figures = measured(HGX, problems=(problem,), not_run={"train": Missing("rank 3 hung", "failed")})
    text = text_of(RanksPane(), state_of(HGX, figures))
    line = next(line for line in text.splitlines() if line.startswith("TIMEOUT rank 3"))
    assert "in train step 12" in line
    assert "rank 0, 1 waiting for it" in line
    assert "[b]x" in text
    assert "not measured  train: rank 3 hung" in text


def test_before_any_run_it_says_what_to_press() -> None:
    text = text_of(RanksPane(), state_of(HGX))
    assert "Nothing measured yet." in text
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["r", "R", "l"]
    not_run = dict.fromkeys(("link", "train"), Missing("not asked for"))
    quick = text_of(RanksPane(), state_of(HGX, Measurements(not_run=not_run)))
    assert "No ranks have run" in quick
    assert "not measured  link, train: not asked for" in quick


async def test_r_asks_for_collectives_and_the_train() -> None:
    async with shown(RanksPane(), state_of(HGX), focus=VerticalScroll) as (app, pilot):
        await press(pilot, "r")
        assert app.asked == [(("collective", "train"), "standard")]


async def test_no_line_of_figures_is_broken_at_any_width() -> None:
    figures = measured(HGX, training=training(SLOW_5), collectives=COLLECTIVES)
    async with shown(RanksPane(), state_of(HGX, figures), size=(80, 80)) as (app, pilot):
        for width in (80, 120, 200):
            await pilot.resize_terminal(width, 80)
            await pilot.pause()
            lines = app.text.splitlines()
            bars = [line for line in lines if line.count("|") == 2]
            assert len(bars) == 9, "a scale and eight ranks"
            assert len({line.index("|") for line in bars}) == 1
            assert all(len(line) <= width - 2 for line in lines)


def test_without_colours_the_words_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(HGX, measured(HGX, training=training(SLOW_5)))
    coloured = text_of(RanksPane(), state)
    monkeypatch.setenv("NO_COLOR", "1")
    assert text_of(RanksPane(), state) == coloured


async def test_the_same_report_is_not_drawn_twice() -> None:
    async with shown(RanksPane(), state_of(HGX, measured(HGX, training=training(SLOW_5)))) as (app, _):
        from textual.widgets import Static

        place = app.query_one("#ranks-figures", Static)
        before = place.content
        app.pane.show(app.state)
        assert place.content is before
        app.state.report = msgspec.structs.replace(app.state.report, measurements=Measurements())  # type: ignore[type-var]
        app.pane.show(app.state)
        assert place.content is not before


def test_a_training_that_goes_on_is_shown_with_each_rank_now_and_over_time() -> None:
    step = TimedStep(9, (2.0, 3.0, 4.0, 1.0, 30.0, 0.0, 10.0), (0.0,) * 7, (0.0,) * 7)
    ranks = (LiveRank(0, 10, step, (10.0, 20.0, 50.0)), LiveRank(1, 4, None, stands="starts"))
    state = state_of(HGX)
    state.live_runs = (LiveRun("train.py --lr 1", ranks),)
    for width in (80, 120):
        text = text_of(RanksPane(), state, (width, 50))
        assert "Live run  train.py --lr 1: 2 ranks, step 10" in text
        bar, tail = next(line for line in text.splitlines() if line.startswith("rank 0")).split("|")[1:]
        assert bar.count("░") == pytest.approx(30 / 50 * len(bar), abs=1)
        assert tail.split()[0] == "50.0"
        assert tail.split()[-1] == "▂▄█"
        assert "starts" in text
    state.live_runs = ()
    assert "Live run" not in text_of(RanksPane(), state)


def test_a_step_that_goes_on_has_the_parts_of_the_report_without_the_time_that_lacked_a_cpu() -> None:
    step = TimedStep(9, (2.0, 3.0, 4.0, 1.0, 30.0, 0.0, 10.0), (0.0,) * 7, (0.0, 1.0, 0.0, 0.0, 20.0, 0.0, 2.0))
    state = state_of(HGX)
    state.live_runs = (LiveRun("train.py", (LiveRank(0, 10, step, (50.0,)),)),)
    text = text_of(RanksPane(), state, (120, 50))
    row = next(line for line in text.splitlines() if line.startswith("rank 0")).rpartition("|")[2].split()
    assert row[:6] == ["50.0", "7.0", "10.0", "2.0", "8.0", "23.0"]
    assert "× no CPU" in text
    for width in (40, 80):
        assert "× no CPU" in text_of(RanksPane(), state, (width, 50))
