"""A machine without a moment to spare is no driver that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.nvml.spawn import STALL_S, CpuStarvation
from gpudoctor.report.judge import judge
from gpudoctor.testing.fake_nvml import ScriptedFault
from tests.facts.live_nodes import collect
from tests.facts.nvml_nodes import make_node
from tests.narrowed import missing

pytestmark = pytest.mark.usefixtures("no_process_stays")


class Machine:
    """A /proc with one process, and a clock."""

    def __init__(self, root: Path) -> None:
        self.now_s = 100.0
        self._tasks = root / "proc" / "7" / "task"
        self._tasks.mkdir(parents=True)
        self.starvation = CpuStarvation(7, root, lambda: self.now_s)

    def passes(self, seconds: float, meant_s: float | None = None, **waited_ns: int) -> float:
        """After so long, with these totals of time on the run queue, what is the total?"""
        self.now_s += seconds
        for thread, waited in waited_ns.items():
            (self._tasks / thread).mkdir(exist_ok=True)
            (self._tasks / thread / "schedstat").write_text(f"123456 {waited} 9\n")
        return self.starvation.look(meant_s)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_threads_wait_for_a_cpu_adds_up_to_no_more_than_the_time_that_passed(machine: Machine) -> None:
    assert machine.passes(1.0, t7=300_000_000) == pytest.approx(0.3)
    assert machine.passes(1.0, t7=500_000_000, t8=100_000_000) == pytest.approx(0.6)
    assert machine.passes(1.0, t7=4_500_000_000, t8=4_100_000_000) == pytest.approx(1.6)
    assert machine.passes(1.0) == pytest.approx(1.6), "the counters of a thread that sleeps in a call stand still"


def test_a_watcher_that_was_held_up_itself_counts_that_time_as_lost(machine: Machine) -> None:
    assert machine.passes(STALL_S, meant_s=0.05) == 0.0, "now and then everybody is a little late"
    assert machine.passes(5.0, meant_s=0.05) == pytest.approx(4.95)
    assert machine.passes(60.0) == pytest.approx(4.95), "nobody meant to look sooner"


def test_of_a_call_only_the_time_since_its_start_counts(machine: Machine) -> None:
    machine.passes(10.0, t7=4_000_000_000)
    start_s = machine.now_s
    assert machine.starvation.since(start_s) == 0.0
    machine.passes(2.0, t7=4_500_000_000)
    assert machine.starvation.since(start_s) == pytest.approx(0.5)
    machine.passes(2.0, t7=4_600_000_000)
    assert machine.starvation.since(start_s) == pytest.approx(0.6)
    # it started between two looks: all of the time lost there counts, but no more than the rest of that interval
    assert machine.starvation.since(start_s - 1.0) == pytest.approx(1.6)
    assert machine.starvation.since(0.0) == pytest.approx(4.6)


@pytest.mark.parametrize("text", ["", "x y z", "1"])
def test_a_kernel_that_does_not_count_costs_nothing(machine: Machine, tmp_path: Path, text: str) -> None:
    (tmp_path / "proc/7/task/7").mkdir()
    (tmp_path / "proc/7/task/7/schedstat").write_text(text)
    assert machine.passes(5.0) == 0.0
    assert CpuStarvation(99, tmp_path).look() == 0.0


def test_a_call_that_waits_for_a_cpu_does_not_convict_the_driver(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # all of the time is lost: what cannot be distinguished from a hang is not reported as a hang
    monkeypatch.setattr(CpuStarvation, "_waited_s", lambda self: 1e9)
    hang = ScriptedFault("nvmlDeviceGetTemperature", gpu=1, hang=True)
    node = collect(root, make_node(2), hang, deadline_s=0.6, call_deadline_s=0.2)
    assert node.driver.unanswered == ()
    assert missing(node.driver.calls).reason.startswith("the collector did not finish in 0.6 s")
    report = judge(node)
    assert [fault.check for fault in report.faults if fault.check.startswith("driver.")] == []
    assert next(check for check in report.checks if check.id == "driver.responsive").status.value == "unknown"
    assert report.verdict != "pass"


def test_the_deadline_grows_by_what_was_lost_and_a_slow_machine_is_read_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuStarvation, "_waited_s", lambda self: 1e9)
    monkeypatch.setattr("gpudoctor.facts.nvml.collector.MOST_STARVED", 40.0)  # this machine may be slow itself
    # in all longer than the deadline, shorter than it may grow
    stall = ScriptedFault("nvmlDeviceGetTemperature", gpu=1, delay_s=1.6)
    node = collect(root, make_node(2), stall, deadline_s=1.5, call_deadline_s=0.2)
    assert node.driver.unanswered == ()
    assert not isinstance(node.driver.calls, Missing)
    assert [gpu.index for gpu in node.gpus] == [0, 1]
