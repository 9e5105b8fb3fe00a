"""The process that calls the driver for `gpudoctor watch`: what becomes of it when the driver hangs, dies or lies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import psutil
import pytest

from gpudoctor.facts.nvml.channel import SIZE_BYTES
from gpudoctor.facts.stream.driver import DriverWatch
from gpudoctor.facts.stream.driver_child import serve
from gpudoctor.facts.stream.messages import ReaderAnswer, Silence, WatchOrder
from gpudoctor.process.pipes import anonymous_file
from gpudoctor.testing.fake_nvml import ScriptedFault
from tests.facts.broken_drivers import spec_of
from tests.facts.nvml_nodes import make_node
from tests.facts.test_watch_driver import named
from tests.imported_torch import own_children
from tests.narrowed import present

pytestmark = pytest.mark.usefixtures("no_process_stays")
PATIENT_S = 60.0  # how long a test waits for another process on a busy machine


Start = Callable[..., DriverWatch]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[DriverWatch] = []

    def start(*faults: ScriptedFault, count: int = 2, maker: str = "", **options: Any) -> DriverWatch:
        node = make_node(count)
        options.setdefault("call_deadline_s", 30.0)
        options.setdefault("patience_s", 30.0)
        options.setdefault("first_backoff_s", 0.01)
        started.append(DriverWatch(named(node), 60.0, spec_of(tmp_path, node, *faults, maker=maker), **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def until_silent(watch: DriverWatch, why: str = "") -> Silence:
    """The first silence whose words start with this: on a busy machine a process may be slow to start."""
    limit_s = monotonic() + PATIENT_S
    while monotonic() < limit_s:
        silence = watch.read()[1]
        if silence is not None and silence.why.startswith(why):
            return silence
    raise AssertionError(f"it never fell silent so: {why}")


def until_answered(watch: DriverWatch) -> tuple[ReaderAnswer, list[Silence]]:
    silences: list[Silence] = []
    limit_s = monotonic() + PATIENT_S
    while monotonic() < limit_s:
        answer, silence = watch.read()
        if answer is not None:
            assert silence is None
            return answer, silences
        silences.append(present(silence))
    raise AssertionError("it never answered")


def test_each_reading_is_one_answer_of_every_gpu(start: Start) -> None:
    watch = start(count=3)
    for _ in range(3):
        answer, silence = watch.read()
        assert silence is None
        assert [tick.gpu for tick in present(answer).gpus] == [0, 1, 2]


def test_a_call_that_does_not_return_is_named_and_its_process_ended(start: Start) -> None:
    watch = start(
        ScriptedFault("nvmlDeviceGetTemperature", gpu=1, hang=True), call_deadline_s=0.4, first_backoff_s=1000.0
    )
    why = "nvmlDeviceGetTemperature on GPU 1 has not returned for "
    silence = until_silent(watch, why)
    while watch.pid is not None:
        until_silent(watch)
    again = until_silent(watch)
    assert again.since_s == silence.since_s
    assert again.why.startswith(why)
    assert own_children() == []


def test_a_start_that_takes_long_is_told_but_not_given_up(start: Start) -> None:
    watch = start(ScriptedFault("nvmlInit", hang=True), call_deadline_s=0.4, start_deadline_s=PATIENT_S)
    until_silent(watch, "nvmlInit has not returned for ")
    first = present(watch.pid)
    until_silent(watch)
    assert watch.pid == first


def test_a_call_that_stalls_is_told_and_waited_for(start: Start) -> None:
    # ranks that start hold the driver's lock for seconds: the reader must not be ended for that
    watch = start(ScriptedFault("nvmlDeviceGetMemoryInfo", gpu=1, delay_s=1.0), patience_s=0.2)
    until_silent(watch, "the driver has not told all for ")
    first = watch.pid
    until_answered(watch)
    assert watch.pid == first


@pytest.mark.wide
def test_it_is_started_again_and_the_silence_ends(start: Start) -> None:
    watch = start(maker="hangs_once", call_deadline_s=0.5)
    whole, _ = until_answered(watch)
    first = watch.pid
    silence = until_silent(watch, "nvmlDeviceGetClockInfo on GPU 0 has not returned for ")
    again, silences = until_answered(watch)
    assert watch.pid != first
    assert len({one.since_s for one in (silence, *silences)}) == 1
    assert [tick.counters for tick in again.gpus] == [tick.counters for tick in whole.gpus]
    assert not any("nvlink_rx_gb_s" in tick.readings for tick in again.gpus), "what it carried meanwhile is no rate"


def test_a_crash_is_told_with_its_signal_and_call(start: Start) -> None:
    watch = start(maker="dies_once")
    until_answered(watch)
    until_silent(watch, "the reader died by SIGSEGV in nvmlDeviceGetMemoryInfo; asked again in ")
    until_answered(watch)


@pytest.mark.wide
def test_readers_that_die_one_after_the_other_leave_no_descriptor_open(start: Start) -> None:
    watch = start(ScriptedFault("nvmlDeviceGetMemoryInfo", gpu=1, from_call=2, crash=True))
    counts = []
    for _ in range(3):
        until_answered(watch)
        until_silent(watch, "the reader died")
        counts.append(psutil.Process().num_fds())
    assert counts == [counts[0]] * 3


@pytest.mark.wide
def test_each_silence_has_its_own_begin(start: Start) -> None:
    watch = start(ScriptedFault("nvmlDeviceGetMemoryInfo", gpu=1, from_call=2, crash=True))
    begins = []
    for _ in range(2):
        until_answered(watch)
        begins.append(until_silent(watch, "the reader died").since_s)
    assert begins[0] < begins[1]


@pytest.mark.wide
def test_a_driver_that_does_not_start_is_asked_again_later_and_later(start: Start) -> None:
    watch = start(ScriptedFault("nvmlInit", code=9), first_backoff_s=0.01)
    words: list[str] = []
    while len(words) < 4:
        why = until_silent(watch).why
        # on a busy machine the child itself may come late, which is reported too
        if why not in words and "has not answered" not in why:
            words.append(why)
    assert words == [
        f"the driver's library did not start: nvmlInit: driver not loaded; asked again in {s:g} s"
        for s in (0.01, 0.02, 0.04, 0.08)
    ]


def test_where_no_process_can_be_started_it_is_said_and_nothing_is_left_open(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = start()
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    until_silent(watch, "the reader of the driver could not be started: No such file")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    monkeypatch.undo()
    until_answered(watch)


@pytest.mark.wide(every=3)
@pytest.mark.parametrize(
    ("maker", "words"),
    [
        ("garbled", "is no answer"),
        ("garbled_and_answered", "is no answer"),
        ("broken", "RuntimeError: no such driver"),
    ],
)
def test_a_reader_that_fails_is_a_silence(start: Start, maker: str, words: str) -> None:
    assert words in until_silent(start(maker=maker)).why


def test_readers_that_cannot_be_ended_are_not_piled_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudoctor.facts.stream import driver as driver_watch

    watch = start(ScriptedFault("nvmlDeviceGetTemperature", hang=True), call_deadline_s=0.2, start_deadline_s=PATIENT_S)
    end = driver_watch._Reader.end
    # as if they were stuck in the kernel
    monkeypatch.setattr(driver_watch._Reader, "end", lambda reader: end(reader) and False)
    monkeypatch.setattr(driver_watch, "reap", lambda pid: None)
    while "stuck in the kernel" not in (silence := until_silent(watch)).why:
        pass
    assert silence.why.startswith("nvmlDeviceGetTemperature on GPU 0 has not returned for ")
    assert "3 readers are stuck" in silence.why
    assert watch.pid is None
    until_silent(watch)
    assert watch.pid is None


def test_the_process_answers_once_for_each_request(tmp_path: Path) -> None:
    node = make_node(2)
    reader, out = os.pipe()
    requests, writer = os.pipe()
    os.write(writer, b"...")
    os.close(writer)
    memory = anonymous_file(SIZE_BYTES)
    spec = spec_of(tmp_path, node)
    serve(WatchOrder(out=out, trace=memory, nvml=spec, requests=requests, gpus=named(node), interval_s=1.0))
    for descriptor in (out, requests, memory):
        os.close(descriptor)
    with os.fdopen(reader, "rb") as lines:
        answers = [msgspec.json.decode(line, type=ReaderAnswer) for line in lines]
    assert [[tick.gpu for tick in answer.gpus] for answer in answers] == [[0, 1]] * 3
    assert [answer.processes is not None for answer in answers] == [True, False, False]
