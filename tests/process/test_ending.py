"""Processes are started, and ended whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from gpudoctor.process.die_with_parent import dependent_program, dependent_python
from gpudoctor.process.ending import RunningProcess, ending_words, kill_all, reap, signal_name
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.pipes import LineReader
from gpudoctor.process.spawn import PIPE, Child

PATIENT_S = 60.0
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


def python(code: str) -> Child:
    return Child([sys.executable, "-c", code], stdout=PIPE)


@pytest.fixture
def deaf() -> Iterator[Child]:
    """A process that ignores SIGTERM, and has reported so."""
    process = python(DEAF)
    assert LineReader(process.stdout).one(PATIENT_S) == b"deaf"
    yield process
    process.end(PATIENT_S)
    process.close()


class StuckProcess(RunningProcess):
    """As if it were stuck in the kernel: no signal ends it."""

    def __init__(self) -> None:
        self.pid = -1
        self.sent: list[int] = []
        self.abandoned = False

    @property
    def returncode(self) -> int | None:
        return None

    def ends_within(self, limit_s: float) -> int | None:
        return None

    def send(self, number: int, *, group: bool = False) -> bool:
        self.sent.append(number)
        return True

    def abandon(self) -> None:
        self.abandoned = True


def test_one_that_ignores_sigterm_is_killed(deaf: Child) -> None:
    assert deaf.end(0.1)
    assert deaf.returncode == -signal.SIGKILL


def test_one_that_has_ended_gets_no_signal() -> None:
    process = python("")
    assert process.ends_within(PATIENT_S) == 0
    assert process.end(0.0)
    assert not process.send(signal.SIGKILL)
    assert process.returncode == 0
    process.close()


def test_its_whole_group_is_ended() -> None:
    # not print: unbuffered, Python writes the end of the line by itself, and the other's number comes between
    said = "os.write(1, b'%d\\n' % os.getpid())"
    process = python(f"import os, signal\nsignal.signal(15, signal.SIG_IGN)\nos.fork()\n{said}\nsignal.pause()")
    reader, pids = LineReader(process.stdout), set[int]()
    while len(pids) < 2:
        lines = reader.lines(PATIENT_S)
        assert lines, f"only {pids} have begun"
        pids |= {int(line) for line in lines}
    left = [psutil.Process(pid) for pid in pids - {process.pid}]
    process.end(0.1)
    process.close()
    assert psutil.wait_procs(left, timeout=PATIENT_S)[1] == []


def test_one_that_cannot_be_killed_is_abandoned() -> None:
    process = StuckProcess()
    assert not process.end(0.0)
    assert (process.sent, process.abandoned) == ([signal.SIGTERM, signal.SIGKILL], True)


def test_a_signals_exception_meanwhile_leaves_nothing_behind(deaf: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    class StopError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StopError

    def interrupted(limit_s: float) -> int | None:
        os.kill(os.getpid(), signal.SIGUSR1)
        return waits(limit_s)

    waits = deaf.ends_within
    monkeypatch.setattr(deaf, "ends_within", interrupted)
    signal.signal(signal.SIGUSR1, stop)
    with pytest.raises(StopError):
        deaf.end(PATIENT_S)
    assert waits(PATIENT_S) == -signal.SIGKILL


def test_many_are_killed_at_once_and_those_that_stay_are_abandoned(deaf: Child) -> None:
    stuck = StuckProcess()
    kill_all([stuck, deaf], PATIENT_S)
    assert (stuck.sent, stuck.abandoned, deaf.returncode) == ([signal.SIGKILL], True, -signal.SIGKILL)


def test_a_forked_child_never_returns_and_tells_what_went_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("of the child")

    here = os.getpid()
    assert [ForkedProcess(run).ends_within(PATIENT_S) for run in (fail, lambda: None, lambda: os._exit(7))] == [1, 0, 7]
    assert os.getpid() == here
    assert "ValueError: of the child" in capfd.readouterr().err


def test_a_child_is_reaped_once() -> None:
    process = ForkedProcess(signal.pause)
    assert reap(process.pid) is None
    process.send(signal.SIGKILL)
    assert process.ends_within(PATIENT_S) == -signal.SIGKILL
    assert reap(process.pid) == (process.pid, 0), "it is not ours any more"


@pytest.mark.parametrize("command", ["dependent_python('signal', 'pause')", "dependent_program(['sleep', '600'])"])
def test_no_dependent_process_outlives_the_one_that_started_it(command: str) -> None:
    code = (
        f"from gpudoctor.process.die_with_parent import {command.partition('(')[0]}\n"
        "from gpudoctor.process.spawn import Child\n"
        f"import signal\nprint(Child({command}).pid, flush=True)\nsignal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert psutil.wait_procs([child], timeout=PATIENT_S)[1] == []


def test_a_dependent_process_whose_parent_is_gone_already_does_nothing() -> None:
    command = dependent_program(["echo", "begun"])
    asked = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"]  # another parent than this one
    assert subprocess.run(asked, capture_output=True, check=True).stdout == b""


def test_a_dependent_function_finds_the_arguments_that_it_was_started_with() -> None:
    process = Child(dependent_python(__name__, "tell_arguments", "a b", "--c"), stdout=PIPE)
    assert LineReader(process.stdout).one(PATIENT_S) == b"['a b', '--c'] ['a b', '--c']"
    assert process.ends_within(PATIENT_S) == 0
    process.close()


def tell_arguments(*arguments: str) -> None:
    """In the child."""
    sys.stdout.write(f"{list(arguments)} {sys.argv[1:]}\n")
    sys.stdout.flush()


def test_how_a_process_ended_in_words() -> None:
    assert [ending_words(status) for status in (None, 2, -11)] == ["it did not end", "exit code 2", "killed by SIGSEGV"]
    assert signal_name(200) == "signal 200"
