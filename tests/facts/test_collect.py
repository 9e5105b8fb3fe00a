"""The live machine through the collector process: whatever the driver does, the facts come and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.registry import registry
from gpudoctor.facts import collect as live_facts
from gpudoctor.facts.collect import collect_live
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, fill
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.channel import InFlight
from gpudoctor.facts.nvml.spawn import DriverProcess
from gpudoctor.facts.system import path_status
from gpudoctor.report.judge import Question
from gpudoctor.report.judge import judge as report_on
from gpudoctor.testing.fake_nvml import FakeNvml, Script, ScriptedFault, from_file, write_script
from tests.checks.one_check import judge, words
from tests.facts.live_nodes import CALL_DEADLINE_S, as_read, collect
from tests.facts.nvml_nodes import make_node, with_gpu
from tests.narrowed import missing, present

PATIENT_S = 60.0
pytestmark = pytest.mark.usefixtures("no_process_stays")


@pytest.fixture
def deadline_from_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline for the driver counts from its first call: a busy machine may take any time to start a process."""
    read, begun = DriverProcess.calls, set[int]()

    def calls(process: DriverProcess) -> tuple[tuple[InFlight, ...], int]:
        found = read(process)
        if found[0]:
            begun.add(process.pid)
        elif process.pid not in begun:
            process.started_s = monotonic()
        return found

    monkeypatch.setattr(DriverProcess, "calls", calls)
    monkeypatch.setattr(live_facts, "_SLACK_S", PATIENT_S)


def test_the_facts_of_eight_gpus_come_through_the_collector(root: Path) -> None:
    told = make_node(8)
    # NVML's order is not the bus's
    gpus = tuple(replace(gpu, bus_id=f"0000:{0x80 - gpu.index:02x}:00.0") for gpu in told.gpus)
    told = replace(told, gpus=gpus)
    lines: list[str] = []
    node = collect(root, told, progress=lines.append)
    assert [as_read(gpu) for gpu in node.gpus] == list(reversed(told.gpus))
    assert node.pairs == told.pairs
    assert (node.driver.unanswered, node.driver.handle_errors) == ((), ())
    assert (node.driver.init_code, node.driver.module_loaded, node.driver.device_count) == (0, True, 8)
    assert isinstance(node.driver.calls, int)
    assert node.source.kind == "live"
    assert node.source.name == os.uname().nodename
    assert present(node.source.collected_at).endswith("Z")
    assert node.host.hostname != node.host.container  # the host's readers ran
    assert lines


def test_a_call_that_hangs_on_one_gpu_costs_neither_the_others_nor_its_own_earlier_facts(root: Path) -> None:
    told = make_node(8)
    hang = ScriptedFault("nvmlDeviceGetTemperature", gpu=3, hang=True)
    node = collect(root, told, hang, call_deadline_s=CALL_DEADLINE_S)
    for gpu in (0, 1, 2, 4, 5, 6, 7):
        assert as_read(node.gpus[gpu]) == told.gpus[gpu]
    (unanswered,) = node.driver.unanswered
    assert (unanswered.call, unanswered.gpu, unanswered.reason) == ("nvmlDeviceGetTemperature", 3, "did not return")
    assert unanswered.waited_s >= CALL_DEADLINE_S
    hurt = node.gpus[3]
    assert (hurt.uuid, hurt.ecc, hurt.clocks) == (told.gpus[3].uuid, told.gpus[3].ecc, told.gpus[3].clocks)
    reason = f"nvmlDeviceGetTemperature on GPU 3 did not return in {unanswered.waited_s:.1f} s"
    for leaf in (hurt.thermal.gpu_c, hurt.power.draw_w, hurt.nvlinks, hurt.processes):
        assert leaf == Missing(reason, "failed")
    assert len(present(node.pairs)) == 28
    for pair in present(node.pairs):
        expected = Missing(reason, "failed") if 3 in (pair.a, pair.b) else 18
        assert pair.nvlinks == expected


def test_a_gpu_that_hangs_at_once_is_still_named_by_its_bus_id(root: Path) -> None:
    hang = ScriptedFault("nvmlDeviceGetCudaComputeCapability", gpu=1, hang=True)
    node = collect(root, make_node(2), hang, call_deadline_s=CALL_DEADLINE_S)
    assert (node.gpus[1].index, node.gpus[1].bus_id) == (1, "0000:19:00.0")
    assert missing(node.gpus[1].uuid).kind == "failed"


@pytest.mark.wide
def test_two_gpus_that_hang_are_both_named(root: Path) -> None:
    faults = (
        ScriptedFault("nvmlDeviceGetName", gpu=0, hang=True),
        ScriptedFault("nvmlDeviceGetMigMode", gpu=2, hang=True),
    )
    node = collect(root, make_node(3), *faults, call_deadline_s=CALL_DEADLINE_S)
    told = {(call.gpu, call.call) for call in node.driver.unanswered}
    assert told == {(0, "nvmlDeviceGetName"), (2, "nvmlDeviceGetMigMode")}
    assert node.gpus[0].uuid != node.gpus[2].uuid
    assert "nvmlDeviceGetMigMode on GPU 2" in missing(node.gpus[2].settings.mig_enabled).reason


@pytest.mark.wide
def test_a_handle_lookup_that_hangs_gets_the_whole_deadline_and_costs_only_that_gpu(root: Path) -> None:
    told = make_node(4)
    hang = ScriptedFault("nvmlDeviceGetHandleByIndex", gpu=1, hang=True)
    node = collect(root, told, hang, deadline_s=4.0, call_deadline_s=CALL_DEADLINE_S)
    assert [as_read(gpu) for gpu in node.gpus] == [told.gpus[index] for index in (0, 2, 3)]
    assert node.driver.handle_errors == (), "the driver said nothing"
    (words,) = node.driver.unread_handles
    assert words.startswith("GPU 1: nvmlDeviceGetHandleByIndex on GPU 1 did not return")
    assert node.driver.device_count == 4


STALLED = "nvmlDeviceGetTemperature"


def status_of(check: str, node: Node) -> str:
    return judge(check, node).status.value


def exit_code(node: Node) -> int:
    """Of the checks of the driver; the others look at the machine that the tests run on."""
    asked = tuple(check for check in registry() if check.id.startswith(("driver.", "gpu.lost")))
    return report_on(node, question=Question(checks=asked, level="quick")).exit_code


def test_a_stall_of_seconds_under_running_ranks_is_no_dead_driver(root: Path) -> None:
    # 8 x H100 with a training job: its ranks held the driver's lock for 2.6 s, and the prolog drained the node
    told = make_node(8)
    stall = ScriptedFault(STALLED, gpu=3, delay_s=2.6)
    node = collect_live(root, nvml_module=write_script(root.parent / "script.json", Script(told, (stall,))))
    assert [as_read(gpu) for gpu in node.gpus] == list(told.gpus)
    assert node.driver.unanswered == ()
    assert node.driver.slowest_call == f"{STALLED} on GPU 3"
    assert (status_of("driver.responsive", node), status_of("gpu.lost", node)) == ("pass", "pass")


# 1, 3, 8 and 30 s if a call has 10 s
@pytest.mark.wide(every=2)
@pytest.mark.parametrize(
    ("stall_s", "call_deadline_s", "answers"),
    [(0.2, 2.0, True), (0.6, 2.0, True), (1.6, 20.0, True), (30.0, 0.8, False)],
)
def test_a_call_that_answers_late_is_told_and_one_that_does_not_is_named(
    root: Path, stall_s: float, call_deadline_s: float, answers: bool
) -> None:
    told = make_node(2)
    node = collect(root, told, ScriptedFault(STALLED, gpu=1, delay_s=stall_s), call_deadline_s=call_deadline_s)
    assert as_read(node.gpus[0]) == told.gpus[0]
    assert [(call.call, call.gpu) for call in node.driver.unanswered] == ([] if answers else [(STALLED, 1)])
    assert (as_read(node.gpus[1]) == told.gpus[1]) is answers
    assert status_of("driver.responsive", node) == ("pass" if answers else "fail")
    assert status_of("gpu.lost", node) == ("pass" if answers else "unknown")
    assert exit_code(node) == (0 if answers else 1)


class Cold:
    """Without persistence mode: each GPU takes a while to wake, and all other calls wait behind the driver's lock."""

    def __init__(self, nvml: FakeNvml) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._nvml, name)
        if not name.startswith("nvmlDevice"):
            return real

        def queued(*args: Any) -> Any:
            with self._lock:
                if name == "nvmlDeviceGetHandleByIndex":
                    threading.Event().wait(WAKE_S)
                return real(*args)

        return queued


WAKE_S = 0.5


def cold(path: str) -> Cold:
    return Cold(from_file(path))


def asleep(count: int) -> Node:
    node = make_node(count)
    for gpu in node.gpus:
        node = with_gpu(node, gpu.index, settings=replace(gpu.settings, persistence=False))
    return node


def test_gpus_that_wake_one_after_the_other_are_waited_for_and_the_time_is_told(root: Path) -> None:
    # 8 x A100 without persistence mode took 8 to 24 s until the last handle; whoever waits for the lock is not hung
    told = asleep(4)
    node = collect(root, told, maker="tests.facts.test_collect:cold", call_deadline_s=WAKE_S / 2)
    assert [as_read(gpu) for gpu in node.gpus] == list(told.gpus)
    assert (node.driver.unanswered, node.driver.unread_handles) == ((), ())
    assert present(node.driver.start_s) >= 4 * WAKE_S
    assert "Handle" not in str(node.driver.slowest_call)
    responsive = judge("driver.responsive", node)
    assert responsive.status.value == "pass"
    assert f"persistence mode is off: the driver took {present(node.driver.start_s):.3g} s to wake" in words(responsive)


@pytest.mark.wide
@pytest.mark.usefixtures("deadline_from_first_call")
def test_gpus_that_still_wake_when_the_time_is_over_are_unknown_and_not_lost(root: Path) -> None:
    # so many that some still wake on a busy machine, where the time is up to three times as long
    node = collect(
        root, asleep(12), maker="tests.facts.test_collect:cold", deadline_s=2.5 * WAKE_S, call_deadline_s=WAKE_S / 2
    )
    assert node.driver.handle_errors == (), "the driver said nothing"
    assert {call.call for call in node.driver.unanswered} <= {"nvmlDeviceGetHandleByIndex"}
    assert len(node.gpus) + len(node.driver.unread_handles) == 12
    assert node.driver.unread_handles
    for check in ("driver.responsive", "gpu.count"):
        assert status_of(check, node) == "unknown", check
    assert status_of("gpu.lost", node) in ("unknown", "skip")
    assert exit_code(node) == 3


def test_ctrl_c_while_a_gpu_wakes_does_not_call_what_waits_behind_it_hung(root: Path) -> None:
    # 8 x H100 without persistence mode, interrupted after 13 s: GPU 0 waited for the lock, and failed the node
    class StopError(Exception):
        pass

    def stop(number: int, _: object) -> None:
        raise StopError(signal.Signals(number).name)

    def progress(words: str) -> None:
        if words.startswith("nvmlDeviceGetHandleByIndex"):
            os.kill(os.getpid(), signal.SIGUSR1)

    half_read: list[Node] = []
    waits = (
        ScriptedFault("nvmlDeviceGetHandleByIndex", gpu=1, hang=True),
        ScriptedFault("nvmlDeviceGetName", gpu=0, hang=True),
    )
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(StopError):
            collect(
                root,
                asleep(2),
                *waits,
                call_deadline_s=WAKE_S / 2,
                progress=progress,
                on_interrupt=half_read.append,
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
    [node] = half_read
    assert node.driver.unanswered == ()
    assert "interrupted by SIGUSR1" in str(node.gpus[0].name)
    assert status_of("driver.responsive", node) == "unknown"
    assert exit_code(node) == 3


def few_threads(path: str) -> FakeNvml:
    """A container in which no more than two threads can be started."""
    start = threading.Thread.start
    left = iter(range(2))

    def limited(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = limited  # type: ignore[method-assign, assignment]
    return from_file(path)


def test_where_no_more_threads_can_be_started_all_gpus_are_read_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a container with a limit on processes: six of eight GPUs were called lost
    told = make_node(8)
    node = collect(root, told, maker="tests.facts.test_collect:few_threads")
    assert [as_read(gpu) for gpu in node.gpus] == list(told.gpus)
    assert status_of("gpu.lost", node) == "pass"

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert [as_read(gpu) for gpu in collect(root, told).gpus] == list(told.gpus)


def test_a_driver_that_starts_slowly_is_waited_for(root: Path) -> None:
    told = make_node(1)
    slow = ScriptedFault("nvmlInit", delay_s=2 * CALL_DEADLINE_S)
    node = collect(root, told, slow, call_deadline_s=CALL_DEADLINE_S)
    assert as_read(node.gpus[0]) == told.gpus[0]
    assert node.driver.unanswered == ()
    assert present(node.driver.init_s) >= 2 * CALL_DEADLINE_S


@pytest.mark.usefixtures("deadline_from_first_call")
def test_an_init_that_hangs_ends_at_the_deadline_and_nothing_looks_fine(root: Path) -> None:
    hang = ScriptedFault("nvmlInit", hang=True)
    node = collect(root, make_node(2), hang, deadline_s=0.5, call_deadline_s=0.1)
    (unanswered,) = node.driver.unanswered
    assert (unanswered.call, unanswered.gpu) == ("nvmlInit", None)
    assert missing(node.driver.init_code, "failed", "nvmlInit")
    assert node.gpus == ()
    assert isinstance(node.pairs, Missing)
    assert node.driver.module_loaded is True


@pytest.mark.usefixtures("deadline_from_first_call")
def test_a_deadline_too_short_to_tell_a_hang_blames_no_call_but_names_the_one_it_was_in(root: Path) -> None:
    node = collect(root, make_node(2), ScriptedFault("nvmlInit", hang=True), deadline_s=0.5)
    assert node.driver.unanswered == ()
    assert missing(node.driver.init_code, "failed", "nvmlInit")


def test_no_time_at_all_leaves_failures_and_no_process(root: Path) -> None:
    # the collector of a busy machine may be ahead of its reader: without a start of the driver it has nothing to send
    node = collect(root, make_node(2), ScriptedFault("nvmlInit", hang=True), deadline_s=0.0)
    assert node.driver.unanswered == (), "no call is to blame"
    assert missing(node.driver.init_code).kind == "failed"
    assert missing(node.driver.calls).kind == "failed"
    assert node.gpus == ()


def test_a_crash_names_the_call_and_the_gpu_that_it_came_from(root: Path) -> None:
    # the others are kept busy in their own calls, so that being in a call does not identify the GPU that crashed
    others = [ScriptedFault("nvmlDeviceGetMigMode", gpu=gpu, hang=True) for gpu in (0, 1, 3)]
    crash = ScriptedFault("nvmlDeviceGetComputeRunningProcesses_v3", gpu=2, crash=True)
    node = collect(root, make_node(4), crash, *others)
    (unanswered,) = node.driver.unanswered
    assert (unanswered.call, unanswered.gpu) == ("nvmlDeviceGetComputeRunningProcesses_v3", 2)
    assert unanswered.reason == "the collector died by SIGSEGV in nvmlDeviceGetComputeRunningProcesses_v3"
    crashed = next(gpu for gpu in node.gpus if gpu.index == 2)
    assert "SIGSEGV" in missing(crashed.processes).reason
    assert crashed.power == make_node(4).gpus[2].power


def test_seven_handles_of_eight(root: Path) -> None:
    node = collect(root, make_node(8), ScriptedFault("nvmlDeviceGetHandleByIndex", gpu=5, code=15))
    assert node.driver.handle_errors == ("index 5: GPU is lost (15)",)
    assert (node.driver.device_count, len(node.gpus)) == (8, 7)


def test_an_init_error_is_told_with_its_code(root: Path) -> None:
    node = collect(root, make_node(2), ScriptedFault("nvmlInit", code=18))
    assert (node.driver.init_code, node.driver.init_error) == (18, "driver/library version mismatch")
    assert (node.gpus, node.driver.unanswered) == ((), ())


def test_a_collector_that_does_not_start_says_why(root: Path) -> None:
    node = collect_live(root, nvml_module="tests.no_such_module:x:y")
    assert node.driver.unanswered == (), "the driver is not to blame"
    for leaf in (node.driver.init_code, node.driver.calls):
        assert missing(leaf, "failed", "ended with status 1", "No module named 'tests.no_such_module'")


def broken(path: str) -> FakeNvml:
    """A driver that returns an unexpected type."""
    nvml = from_file(path)
    nvml.nvmlDeviceGetMigMode = lambda handle: 5 if handle.index == 1 else [0, 1]  # type: ignore[attr-defined]
    return nvml


def test_a_reader_that_breaks_leaves_failures_and_never_defaults(root: Path) -> None:
    told = make_node(2)
    node = collect(root, told, maker="tests.facts.test_collect:broken")
    assert as_read(node.gpus[0]) == told.gpus[0]
    assert missing(node.gpus[1].settings.mig_enabled, "failed", "TypeError")


class Pausing:
    """A driver that is busy on GPU 1: between two calls, for longer than a call may take."""

    def __init__(self, nvml: FakeNvml) -> None:
        self._nvml = nvml

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlDeviceGetPersistenceMode":
            threading.Event().wait(2 * CALL_DEADLINE_S)
        return getattr(self._nvml, name)


def pausing(path: str) -> Pausing:
    return Pausing(from_file(path))


@pytest.mark.wide
def test_a_thread_between_two_calls_counts_as_alive_while_another_hangs(root: Path) -> None:
    told = make_node(2)
    hang = ScriptedFault("nvmlDeviceGetName", gpu=0, hang=True)
    node = collect(root, told, hang, maker="tests.facts.test_collect:pausing", call_deadline_s=CALL_DEADLINE_S)
    assert as_read(node.gpus[1]) == told.gpus[1]
    assert [call.gpu for call in node.driver.unanswered] == [0]


def stubborn(path: str) -> FakeNvml:
    """A driver under which the process ignores the wish to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return from_file(path)


def test_a_collector_that_ignores_sigterm_is_killed(root: Path) -> None:
    hang = ScriptedFault("nvmlDeviceGetName", gpu=0, hang=True)
    node = collect(root, make_node(1), hang, maker="tests.facts.test_collect:stubborn", call_deadline_s=CALL_DEADLINE_S)
    assert node.driver.unanswered[0].call == "nvmlDeviceGetName"


def test_without_the_kernel_module_no_collector_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", fail)
    monkeypatch.setattr(path_status, "may_hang", lambda *_: False)  # whatever is mounted on this machine
    node = collect_live(tmp_path)
    assert (node.driver.module_loaded, node.driver.init_code) == (False, 9)
    assert (node.gpus, node.pairs) == ((), Missing("the driver is not loaded"))


def test_fill_replaces_only_what_nobody_read() -> None:
    reason = Missing("the driver hung", "failed")
    gpu = fill(Gpu(0, "0000:18:00.0", name="NVIDIA T4", serial=Missing("no serial", "unsupported")), reason)
    assert (gpu.name, gpu.serial, gpu.uuid, gpu.ecc.enabled) == (
        "NVIDIA T4",
        Missing("no serial", "unsupported"),
        reason,
        reason,
    )
