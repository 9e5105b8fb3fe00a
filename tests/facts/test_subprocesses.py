"""Running a command: its answer or one clear reason, and nothing of it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.sysfs import run_command
from gpudoctor.process.command import Completed
from tests.narrowed import missing


def python(code: str, deadline_s: float = 60.0, max_bytes: int = 1 << 20) -> Completed | Missing:
    return run_command([sys.executable, "-c", code], deadline_s, max_bytes)


def test_a_command_that_ends_gives_its_status_and_output() -> None:
    assert python("print('hello'); raise SystemExit(3)") == Completed(3, "hello\n")


def test_a_program_that_is_not_there_is_absent() -> None:
    assert run_command(["no-such-program-here"], 5.0) == Missing("no-such-program-here is not installed", "absent")


@pytest.mark.parametrize(
    ("content", "mode", "kind"), [(b"#!/bin/sh\n", 0o644, "denied"), (b"\x00\x01\x02", 0o755, "failed")]
)
def test_a_file_that_may_not_be_run_is_denied_and_one_that_is_no_program_a_failure(
    tmp_path: Path, content: bytes, mode: int, kind: str
) -> None:
    file = tmp_path / "tool"
    file.write_bytes(content)
    file.chmod(mode)
    assert missing(run_command([str(file)], 5.0)).kind == kind


def test_words_do_not_depend_on_the_users_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert python("import os; print(os.environ['LC_ALL'], os.environ['LANG'])") == Completed(0, "C C\n")


def test_stdin_is_empty_and_arguments_are_never_a_shells() -> None:
    assert python("import sys; print(repr(sys.stdin.read()))") == Completed(0, "''\n")
    assert run_command(["echo", "$HOME; ls"], 30.0) == Completed(0, "$HOME; ls\n")


def test_output_that_is_not_utf8_is_still_text() -> None:
    assert python("import sys; sys.stdout.buffer.write(b'a\\xffb')") == Completed(0, "a\ufffdb")


def test_a_command_that_does_not_end_is_a_failure_and_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    # it writes something first, ignores SIGTERM, and has a child in its group that holds the pipe open
    code = (
        "import os, signal, threading\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        f"open({str(note)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "print('half an answer', flush=True)\n"
        "threading.Event().wait()\n"
    )
    answer = missing(python(code, deadline_s=3.0))
    assert answer.kind == "failed"
    assert answer.reason.endswith("did not end in 3 s")
    pids = [int(line) for line in note.read_text().split()]
    assert len(pids) == 2
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=10)
    # without an init to reap it an orphan may stay as a zombie: dead all the same
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_a_command_that_closed_its_output_but_does_not_end_is_late_too() -> None:
    assert missing(python("import os, threading; os.close(1); threading.Event().wait()", deadline_s=2.0), "failed")


def test_output_is_cut_at_the_limit_and_says_so() -> None:
    answer = python("while True: print('x' * 1000)", max_bytes=2500)
    assert isinstance(answer, Completed)
    assert (len(answer.stdout), answer.truncated, answer.returncode) == (2500, True, None)


def test_output_of_exactly_the_limit_is_whole() -> None:
    assert python("print('x' * 99)", max_bytes=100) == Completed(0, "x" * 99 + "\n")


def test_a_signal_while_the_program_is_started_does_not_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class StopError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StopError

    begun: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(real(*args, **options))
        os.kill(os.getpid(), signal.SIGHUP)  # would otherwise be raised inside Popen itself
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    before = signal.signal(signal.SIGHUP, stop)
    try:
        with pytest.raises(StopError):
            run_command(["sleep", "600"], 60.0)
        assert signal.getsignal(signal.SIGHUP) is stop
    finally:
        signal.signal(signal.SIGHUP, before)
    assert begun[0].returncode is not None
