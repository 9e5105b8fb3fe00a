"""What another machine may put into the state is bounded, whatever it says."""

from __future__ import annotations

from gpudoctor.facts.model.node import KernelEvent
from gpudoctor.facts.stream.messages import GpuTick, Silence, Tick
from gpudoctor.tui.state import LONGEST_LINE, MOST_GPUS, MOST_NAMES
from tests.tui.doctor_app import node_of, state_of


def test_gpus_and_readings_without_end_are_not_kept() -> None:
    state = state_of(node_of("t4-cloud-4"))
    for number in range(3):
        made_up = tuple(
            GpuTick(index, {f"x{number}-{index}-{n}": 1.0 for n in range(40)} | {"power_w": 1.0})
            for index in range(number * 800, number * 800 + 800)
        )
        state.take(Tick(float(number), gpus=made_up))
    assert len(state.latest) == MOST_GPUS
    assert {
        name for _, name in state.history if not name.endswith(("_gb_s", "_pct", "_mib", "_c", "_w", "_mhz"))
    } == set()
    names = [len(tick.readings) + len(tick.unread) + len(tick.counters) for tick in state.latest.values()]
    assert max(names) <= MOST_NAMES


def test_a_gpu_that_tells_other_names_each_time_keeps_only_the_last() -> None:
    state = state_of(node_of("t4-cloud-4"))
    for second in range(50):
        state.take(Tick(float(second), gpus=(GpuTick(0, {f"x{second}-{n}": 1.0 for n in range(10)}),)))
    assert len(state.latest[0].readings) <= MOST_NAMES


def test_long_lines_are_cut() -> None:
    state = state_of(node_of("t4-cloud-4"))
    state.take(Tick(1.0, kernel=(KernelEvent(kind="xid", text="x" * 10_000_000),)))
    assert len(state.log[-1].text) == LONGEST_LINE
    state.take(Tick(2.0, silence=Silence(1.0, "y" * 10_000_000)))
    assert state.trouble is not None
    assert len(state.trouble) == len(state.log[-1].text) == LONGEST_LINE
