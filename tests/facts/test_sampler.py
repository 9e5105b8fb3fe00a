"""Telemetry: what the sampling process reads, what becomes of it when the driver hangs, and what it adds up to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import Spread
from gpudoctor.facts.nvml import sampler_child as nvml_sampler
from gpudoctor.facts.nvml.channel import SIZE_BYTES
from gpudoctor.facts.nvml.sampler import Sampler, interval_for
from gpudoctor.facts.nvml.sampler_child import SampleOrder, sample_until, serve
from gpudoctor.facts.nvml.samples import NAMES, Sample, SampleRecording, SamplerLine
from gpudoctor.process.pipes import anonymous_file
from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault
from tests.conftest import ROOT
from tests.facts.broken_drivers import spec_of
from tests.facts.nvml_nodes import ABSENT_IN_470, LAST_FIELD_IN_470, make_gpu, make_node, with_gpu
from tests.subprocesses import completed

pytestmark = pytest.mark.usefixtures("no_process_stays")
PATIENT_S = 60.0  # how long a test waits for another process on a busy machine


def named(node: Node) -> tuple[tuple[int, str], ...]:
    return tuple((gpu.index, str(gpu.uuid)) for gpu in node.gpus)


def sample(
    nvml: FakeNvml, node: Node, ticks: int, gpus: tuple[tuple[int, str], ...] = ()
) -> tuple[list[Sample], list[float], list[SamplerLine]]:
    """Sample in this process; returns the messages, the pauses between ticks, and what was no sample."""
    rests: list[float] = []
    said: list[SamplerLine] = []

    def stopped(wait_s: float) -> bool:
        rests.append(wait_s)
        return len(rests) == ticks

    sample_until(stopped, said.append, nvml, gpus or named(node), 0.2)
    samples = [s.sample for s in said if s.sample is not None]
    return samples, rests, [s for s in said if s.sample is None]


def of_gpu(samples: list[Sample], index: int) -> list[Sample]:
    return [s for s in samples if s.gpu == index]


# the answers of one GPU


def test_a_whole_sample_tells_every_reading_of_the_gpu() -> None:
    node = make_node(2)
    samples, _, _ = sample(FakeNvml(node), node, ticks=1)
    first = of_gpu(samples, 1)[0]
    assert first.readings == {
        "power_w": 120.2,
        "sm_mhz": 1005,
        "temperature_c": 41,
        "utilization_pct": 97,
        "memory_mhz": 2619,
        "memory_used_mib": 17,
        "pcie_generation": 4,
        "pcie_width": 8,
    }
    assert first.events == ("sw-power-cap", "0x200")
    assert first.counters == {"pcie_replays": 3, "ecc_corrected": 1, "ecc_uncorrected": 2}
    assert first.timers_ms == {
        "sw-power-cap": 0.011,
        "sync-boost": 0.012,
        "sw-thermal": 0.013,
        "hw-thermal": 0.014,
        "hw-power-brake": 0.015,
    }
    assert first.unread == {}
    assert set(first.readings) | {"event_reasons"} | set(first.counters) == set(NAMES)


def test_everything_is_read_first_and_last_and_in_turn_between_and_cheap_values_every_time() -> None:
    node = make_node(1)
    nvml = FakeNvml(node)
    samples, _, _ = sample(nvml, node, ticks=6)
    assert [bool(s.counters) for s in samples] == [True, False, False, False, False, True, True]
    fast = {"sm_mhz", "utilization_pct", "pcie_generation", "power_w"}
    assert all(fast <= s.readings.keys() and s.events is not None for s in samples)
    for slow in ("temperature_c", "memory_mhz", "memory_used_mib", "pcie_width"):
        assert sum(slow in s.readings for s in samples) == 3, slow
    assert nvml.unknown == set()


def test_a_slow_driver_is_asked_more_seldom() -> None:
    node = make_node(1)
    _, rests, _ = sample(FakeNvml(node, (ScriptedFault("nvmlDeviceGetTemperature", delay_s=0.06),)), node, ticks=1)
    assert rests[0] >= 4 * 0.06


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("call_ms", [0.3, 2.0, 5.0, 10.0])
def test_a_train_of_three_seconds_is_seen_five_times_on_each_of_eight_gpus(
    call_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HGX nodes whose driver takes 2 to 10 ms a call; by the clock of the calls and rests, not by this machine's."""
    node = make_node(8)
    nvml = FakeNvml(node)
    rests: list[float] = []
    samples: list[Sample] = []

    def clock() -> float:
        return sum(nvml.calls.values()) * call_ms / 1000 + sum(rests)

    def stopped(wait_s: float) -> bool:
        rests.append(wait_s)
        return clock() > 20

    monkeypatch.setattr(nvml_sampler, "monotonic", clock)
    sample_until(stopped, lambda said: samples.append(said.sample) if said.sample else None, nvml, named(node), 0.2)
    for begin_s in (3.0, 5.5, 8.1, 11.7):  # the first samples are whole, and take longer
        for gpu in SampleRecording(named(node), samples).between(begin_s, begin_s + 3.0):
            assert gpu.samples >= 5
            assert gpu.unread == {}, "what is read in turn is read too"
    resting = sum(rests) / clock()
    assert resting > (0.75 if call_ms <= 2.0 else 0.15), "the driver is there for the ranks"


def test_a_sampler_of_a_long_burn_comes_as_seldom_as_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node(8)
    rests: list[float] = []

    def stopped(wait_s: float) -> bool:
        rests.append(wait_s)
        return True

    monkeypatch.setattr(nvml_sampler, "monotonic", lambda: 0.0)
    sample_until(stopped, lambda _: None, FakeNvml(node), named(node), 17.0)
    assert rests == [17.0]


def test_what_a_gpu_does_not_have_is_asked_for_once() -> None:
    node = with_gpu(make_node(1), 0, pcie=make_gpu(0).pcie)
    nvml = FakeNvml(
        node,
        (ScriptedFault("nvmlDeviceGetUtilizationRates", code=3), ScriptedFault("nvmlDeviceGetTemperature", code=4)),
    )
    samples, _, _ = sample(nvml, node, ticks=3)
    assert nvml.calls["nvmlDeviceGetUtilizationRates", 0] == 1
    assert nvml.calls["nvmlDeviceGetTemperature", 0] == 1
    assert samples[0].unread["utilization_pct"].kind == "unsupported"
    assert samples[0].unread["temperature_c"].kind == "denied"
    assert all(s.unread == {} for s in samples[1:])
    [summary] = SampleRecording(named(node), samples).between(0.0, float("inf"))
    assert summary.unread["utilization_pct"].kind == "unsupported"
    assert "utilization_pct" not in summary.readings


def test_an_old_driver_tells_what_it_can() -> None:
    node = make_node(1, driver="470.82.01")
    nvml = FakeNvml(node, absent=ABSENT_IN_470, last_field=LAST_FIELD_IN_470)
    samples, _, _ = sample(nvml, node, ticks=2)
    assert samples[0].readings["power_w"] == 120.2  # by the older call
    assert samples[0].readings["memory_used_mib"] == 17
    assert samples[0].events == ("sw-power-cap", "0x200")
    assert samples[0].timers_ms == {"sw-power-cap": 0.011, "sync-boost": 0.012, "sw-thermal": 0.013}


def test_a_gpu_that_is_lost_under_load_keeps_its_samples_and_says_why_there_are_no_more() -> None:
    node = make_node(2)
    lost = ScriptedFault("nvmlDeviceGet*", gpu=1, from_call=30, code=15)
    samples, _, _ = sample(FakeNvml(node, (lost,)), node, ticks=6)
    well, sick = SampleRecording(named(node), samples).between(0.0, float("inf"))
    assert well.unread == {}
    assert sick.readings["sm_mhz"].median == 1005
    assert "GPU is lost (15)" in sick.unread["sm_mhz"].reason
    assert sick.unread["sm_mhz"].kind == "failed"
    assert sick.samples < well.samples


def test_a_gpu_without_a_handle_costs_only_its_own_samples() -> None:
    node = make_node(2)
    samples, _, _ = sample(FakeNvml(node, (ScriptedFault("nvmlDeviceGetHandleByUUID", code=15),)), node, ticks=1)
    for gpu in SampleRecording(named(node), samples).between(0.0, float("inf")):
        assert (gpu.samples, set(gpu.unread)) == (0, set(NAMES))
    samples, _, _ = sample(FakeNvml(node), node, ticks=1, gpus=(named(node)[0], (0, "GPU-gone")))
    assert [bool(s.readings) for s in samples] == [False, True, True]


def test_a_library_that_does_not_start_is_a_reason() -> None:
    node = make_node(1)
    samples, _, rest = sample(FakeNvml(node, (ScriptedFault("nvmlInit", code=9),)), node, ticks=1)
    assert samples == []
    assert "driver not loaded" in str(rest[0].failure)


# what many samples amount to


def at(at_s: float, gpu: int = 0, **leaves: Any) -> Sample:
    leaves.setdefault("readings", {"sm_mhz": 1000.0 + at_s})
    return Sample(at_s, gpu, **leaves)


ONE = ((0, "GPU-0"),)


def test_only_samples_within_the_window_count() -> None:
    recording = SampleRecording(ONE, [at(t) for t in (1.0, 2.0, 3.0, 4.0, 5.0)])
    [gpu] = recording.between(2.0, 4.0)
    assert gpu.readings["sm_mhz"] == Spread(1002.0, 1003.0, 1004.0)
    assert (gpu.samples, gpu.sampled_s, gpu.uuid) == (3, 2.0, "GPU-0")
    assert recording.series(0, "sm_mhz")[0] == (1.0, 1001.0)
    assert recording.series(0, "power_w") == []


def test_the_share_of_a_reason_is_of_the_samples_that_were_asked_for_it() -> None:
    events: list[tuple[str, ...] | None] = [("hw-power-brake",), ("hw-power-brake", "idle"), (), None]
    recording = SampleRecording(ONE, [at(float(t), events=e) for t, e in enumerate(events)])
    [gpu] = recording.between(0.0, 9.0)
    assert gpu.event_share == {"hw-power-brake": pytest.approx(2 / 3, abs=1e-4), "idle": pytest.approx(1 / 3, abs=1e-4)}


def test_timers_count_within_the_window_and_counters_across_its_edges() -> None:
    told = [(1.0, 100.0, 5), (3.0, 150.0, 5), (5.0, 250.0, 7), (7.0, 900.0, 9)]
    samples = [at(t, timers_ms={"hw-thermal": ms}, counters={"pcie_replays": n}) for t, ms, n in told]
    [gpu] = SampleRecording(ONE, samples).between(2.0, 6.0)
    assert gpu.event_ms == {"hw-thermal": 100.0}
    assert gpu.counters == {"pcie_replays": 4}, "what grew between two readings may have grown within the window"


def test_a_counter_that_was_read_once_says_nothing_and_one_that_was_reset_starts_anew() -> None:
    [once] = SampleRecording(ONE, [at(1.0, counters={"ecc_uncorrected": 2})]).between(0.0, 2.0)
    assert once.counters == {}
    assert once.unread["ecc_uncorrected"].kind == "absent"
    again = [at(1.0, counters={"ecc_uncorrected": 9}), at(2.0, counters={"ecc_uncorrected": 1})]
    assert SampleRecording(ONE, again).between(0.0, 3.0)[0].counters == {"ecc_uncorrected": 1}


def test_a_call_that_failed_once_and_then_answered_is_no_gap() -> None:
    failed = {"power_w": Missing("nvmlDeviceGetPowerUsage: unknown error (999)", "failed")}
    samples = [at(1.0, unread=failed), at(2.0, readings={"power_w": 600.0})]
    [gpu] = SampleRecording(ONE, samples).between(0.0, 3.0)
    assert "power_w" not in gpu.unread
    [turned] = SampleRecording(ONE, [samples[1], at(3.0, unread=failed)]).between(0.0, 4.0)
    assert turned.readings["power_w"].median == 600.0
    assert turned.unread["power_w"].kind == "failed"


def test_a_failure_before_the_window_is_not_told_of_it() -> None:
    failed = {"power_w": Missing("x", "failed")}
    [gpu] = SampleRecording(ONE, [at(1.0, unread=failed), at(5.0)]).between(4.0, 6.0)
    assert gpu.unread["power_w"] == Missing("not sampled while it ran")


def test_a_sampler_that_stopped_early_says_so_of_the_probes_that_came_later() -> None:
    two = ((0, "GPU-0"), (1, "GPU-1"))
    recording = SampleRecording(
        two, [at(1.0), at(1.0, gpu=1), at(2.0)], failure="nvmlX on GPU 1 did not return in 10.0 s"
    )
    during = recording.telemetry("collective", 0.5, 2.0)
    assert during.ended is None, "the probe was over before the call hung"
    cut = recording.telemetry("train", 1.5, 4.0)
    assert (cut.during, cut.duration_s, cut.ended) == ("train", 2.5, recording.failure)
    assert [gpu.samples for gpu in cut.gpus] == [1, 0]
    assert cut.gpus[1].unread["sm_mhz"] == Missing(str(recording.failure), "failed")


# the process


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Callable[..., Sampler]]:
    started: list[Sampler] = []

    def start(*faults: ScriptedFault, count: int = 2, call_deadline_s: float = 30.0, maker: str = "") -> Sampler:
        node = make_node(count)
        spec = spec_of(tmp_path, node, *faults, maker=maker)
        started.append(Sampler(named(node), call_deadline_s=call_deadline_s, nvml=spec))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_the_sampler_samples_every_gpu_until_it_is_stopped(sampler: Callable[..., Sampler]) -> None:
    one = sampler(count=3)
    one.stop()
    recording = one.recording()
    assert (recording.failure, recording.unanswered) == (None, ())
    gpus = recording.between(0.0, float("inf"))
    assert [gpu.uuid for gpu in gpus] == [gpu.uuid for gpu in make_node(3).gpus]
    assert all(gpu.samples >= 2 and gpu.readings["utilization_pct"].median == 97 for gpu in gpus)
    assert all(gpu.counters == {"pcie_replays": 0, "ecc_corrected": 0, "ecc_uncorrected": 0} for gpu in gpus)
    one.stop()  # a second time does no harm
    assert one.recording() is recording


def test_a_call_that_hangs_ends_the_sampling_and_nothing_else(sampler: Callable[..., Sampler]) -> None:
    one = sampler(ScriptedFault("nvmlDeviceGetTemperature", gpu=1, hang=True), call_deadline_s=0.5)
    one.stop(patience_s=PATIENT_S)
    recording = one.recording()
    [call] = recording.unanswered
    assert (call.call, call.gpu) == ("nvmlDeviceGetTemperature", 1)
    assert str(recording.failure).startswith("nvmlDeviceGetTemperature on GPU 1 did not return in")
    before, stuck = recording.between(0.0, float("inf"))
    assert before.readings["sm_mhz"].median == 1005
    assert (stuck.samples, stuck.unread["sm_mhz"].kind) == (0, "failed")


def test_who_is_in_a_hurry_does_not_wait_for_a_call(sampler: Callable[..., Sampler]) -> None:
    one = sampler(ScriptedFault("nvmlInit", hang=True))
    one.stop(patience_s=0.0)
    assert one.recording().unanswered == ()
    assert "did not end" in str(one.recording().failure)


def test_a_driver_that_kills_the_sampler_is_named(sampler: Callable[..., Sampler]) -> None:
    one = sampler(ScriptedFault("nvmlDeviceGetClockInfo", gpu=0, from_call=2, crash=True))
    one.stop(patience_s=PATIENT_S)
    [call] = one.recording().unanswered
    assert (call.call, call.gpu) == ("nvmlDeviceGetClockInfo", 0)
    assert "the sampler died by SIGSEGV" in call.reason


@pytest.mark.wide(every=3)
@pytest.mark.parametrize(
    ("maker", "words"),
    [("killed", "died by SIGKILL"), ("garbled", "no sample"), ("broken", "RuntimeError: no such driver")],
)
def test_a_sampler_that_fails_is_not_the_drivers_fault(sampler: Callable[..., Sampler], maker: str, words: str) -> None:
    one = sampler(maker=maker)
    one.stop(patience_s=PATIENT_S)
    recording = one.recording()
    assert words in str(recording.failure)
    assert recording.unanswered == ()
    assert all(gpu.unread["sm_mhz"].kind == "failed" for gpu in recording.between(0.0, float("inf")))


@pytest.mark.wide
def test_a_gpu_that_nobody_asked_for_is_left_out(sampler: Callable[..., Sampler]) -> None:
    one = sampler(maker="meddling")
    one.stop()
    recording = one.recording()
    assert recording.failure is None
    assert [gpu.index for gpu in recording.between(0.0, float("inf"))] == [0, 1]


def test_where_no_process_can_be_started_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(OSError, match="nowhere"):
        Sampler(ONE)
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "a file was left open"


def test_the_parent_imports_no_binding(tmp_path: Path) -> None:
    node = make_node(1)
    code = (
        "import sys, json\n"
        "from gpudoctor.facts.nvml.sampler import Sampler\n"
        f"one = Sampler({named(node)!r}, call_deadline_s=60.0, nvml=sys.argv[1])\n"
        "one.stop()\n"
        "[gpu] = one.recording().between(0.0, 1e18)\n"
        "print(json.dumps([gpu.samples > 1, [m for m in ('pynvml', 'torch', 'psutil') if m in sys.modules]]))\n"
    )
    argv = [sys.executable, "-c", code, spec_of(tmp_path, node)]
    done = completed(argv, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert json.loads(done.stdout) == [True, []]


def test_the_process_writes_a_line_a_sample_and_then_the_end(tmp_path: Path) -> None:
    node = make_node(2)
    reader, out = os.pipe()
    stop, writer = os.pipe()
    os.close(writer)
    memory = anonymous_file(SIZE_BYTES)
    spec = spec_of(tmp_path, node)
    serve(SampleOrder(out=out, trace=memory, nvml=spec, stop=stop, gpus=named(node), interval_s=60.0))
    for descriptor in (out, stop, memory):
        os.close(descriptor)
    with os.fdopen(reader, "rb") as lines:
        said = [msgspec.json.decode(line, type=SamplerLine) for line in lines]
    assert [one.sample.gpu if one.sample else None for one in said] == [0, 1, 0, 1, None]
    assert said[-1].end


def test_a_long_load_is_sampled_more_seldom() -> None:
    assert interval_for(30.0) == 0.2
    assert interval_for(86_400.0) == pytest.approx(17.28)
