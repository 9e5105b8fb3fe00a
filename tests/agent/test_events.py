"""The agent and events: an Xid of the driver or in the kernel log is looked at now, not at the next interval."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gpudoctor.agent.events import EventWatch, WakeUp
from tests.agent import running
from tests.agent.running import Agent, agent, wait_for

_XID = "4,{number},{time},-;NVRM: Xid (PCI:0000:4b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"


@contextmanager
def _on_fake_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Iterator[tuple[Agent, Path]]:
    """An agent with an hour's interval on a live node with the fake driver; the file to which events are appended."""
    fake = [sys.executable, "-m", "gpudoctor", "fake-driver", "--node", "hgx-h100-8", "--"]
    plain = running.command
    monkeypatch.setattr(running, "command", lambda *words: [*fake, *plain(*words)])
    with agent(folder, "--interval", "3600", *options) as it:
        it.after_run()
        _, place = next(
            entry.partition(b"=")[::2]
            for process in (it.process.pid, *(each.pid for each in psutil.Process(it.process.pid).children(True)))
            for entry in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            if entry.startswith(b"GPUDOCTOR_FAKE_DRIVER=")
        )
        try:
            yield it, Path(place.decode()) / "events"
        finally:
            it.end()  # killed with its children, it would leave the driver's folder half removed


def test_an_xid_of_the_driver_is_looked_at_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _on_fake_driver(tmp_path, monkeypatch) as (it, events):
        before = it.report()["run"]["id"]
        events.write_text("3 8 79\n")  # nvmlEventTypeXidCriticalError
        wait_for(lambda: it.report()["run"]["id"] != before, it.process)
        assert "driver: Xid 79 on GPU 3: checking now" in it.words()


def test_without_events_the_schedule_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _on_fake_driver(tmp_path, monkeypatch, "--no-events") as (it, _):
        agents = [it.process.pid, *(each.pid for each in psutil.Process(it.process.pid).children(True))]
        assert not any(b"event_child" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in agents)


def test_a_line_of_the_kernel_log_wakes_and_one_about_something_else_does_not(tmp_path: Path) -> None:
    async def woken() -> list[str]:
        heard: list[str] = []
        watch = EventWatch(heard.append, tmp_path, nvml="gpudoctor.testing.fake_nvml:FakeNvml:cpu-only")
        os.write(writer, b"6,1,1000,-;usb 1-1: new device\n")
        os.write(writer, _XID.format(number=2, time=2000).encode())
        while not heard:
            await asyncio.sleep(0.01)
        watch.close()
        return heard

    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev" / "kmsg")
    writer = os.open(tmp_path / "dev" / "kmsg", os.O_RDWR)
    try:
        [line] = asyncio.run(woken())
    finally:
        os.close(writer)
    assert line.startswith("kernel log: NVRM: Xid (PCI:0000:4b:00): 79")


def test_a_storm_of_events_is_one_check_and_the_next_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def runs() -> list[bool]:
        wake_up = WakeUp()
        for number in range(100):
            wake_up.wake(f"event {number}")
        first = await wake_up.within(60)
        nothing = await wake_up.within(0.01)
        wake_up.wake("another")
        waiting = asyncio.ensure_future(wake_up.within(60))
        early, _ = await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        return [first, nothing, bool(early)]

    monkeypatch.setattr("gpudoctor.agent.events.SETTLE_S", 0.0)
    assert asyncio.run(runs()) == [True, False, False]
