"""Children with limits: their bytes come back, and who takes too much is ended and named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor.process.bounded import BoundedChild, ChildLimits, ChildRefusedError, bounded, bounded_results
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.signals import InterruptedBySignal


def asleep() -> bytes:
    time.sleep(60)
    return b""


def killed() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_results_come_in_order() -> None:
    works = [lambda n=n: str(n).encode() for n in range(5)]
    assert list(bounded_results(works, workers=2)) == [b"0", b"1", b"2", b"3", b"4"]


def test_who_takes_too_much_memory_is_refused() -> None:
    with pytest.raises(ChildRefusedError, match="needs more than 64 MiB"):
        bounded(lambda: bytes(bytearray(1 << 30)[:1]), ChildLimits(memory_bytes=64 << 20))


def test_who_takes_too_long_or_says_too_much_is_refused() -> None:
    with pytest.raises(ChildRefusedError, match="reading it takes longer"):
        bounded(asleep, ChildLimits(seconds=0.2))
    with pytest.raises(ChildRefusedError, match="larger than 1 MiB"):
        bounded(lambda: bytes(3 << 20), ChildLimits(result_bytes=1 << 20))


def test_a_child_that_dies_is_said() -> None:
    with pytest.raises(ChildRefusedError, match="status -9"):
        bounded(killed)


def test_the_child_of_a_reader_that_stops_is_ended() -> None:
    child = BoundedChild(asleep, ChildLimits())
    child.close()
    assert not Path(f"/proc/{child._process.pid}").exists()


def test_a_signal_that_comes_while_a_child_is_made_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = []

    class SignalledAtOnce(ForkedProcess):
        def __init__(self, run: Callable[[], object]) -> None:
            super().__init__(run)
            pids.append(self.pid)
            signal.raise_signal(signal.SIGTERM)

    def interrupt(number: int, frame: object) -> None:
        raise InterruptedBySignal(number)

    monkeypatch.setattr("gpudoctor.process.bounded.ForkedProcess", SignalledAtOnce)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(InterruptedBySignal):
            list(bounded_results([asleep, asleep], workers=2))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [False]
