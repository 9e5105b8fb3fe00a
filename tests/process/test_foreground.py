"""A command under `gpudoctor run` is the command without it: its code, its bytes, its signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none", "--"]


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL),
        (["/does/not/exist"], 127),
        (["/"], 126),
    ],
)
def test_the_exit_code_is_that_of_the_command(command: list[str], code: int) -> None:
    assert subprocess.run([*RUN, *command], capture_output=True, check=False).returncode == code


@pytest.mark.wide
def test_a_script_without_interpreter_line_runs_as_a_shell_runs_it(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("echo from the script\n", encoding="utf-8")
    script.chmod(0o755)
    assert subprocess.run([*RUN, str(script)], capture_output=True, check=True).stdout == b"from the script\n"


def test_stdin_stdout_and_further_descriptors_pass_through() -> None:
    reads, writes = os.pipe()
    data = bytes(range(256)) * 4096
    with os.fdopen(reads, "rb") as other:
        done = subprocess.run(
            [*RUN, "sh", "-c", f"cat; echo third >/proc/self/fd/{writes}"],
            input=data,
            capture_output=True,
            pass_fds=[writes],
            check=True,
        )
        os.close(writes)
        assert other.read() == b"third\n"
    assert done.stdout == data


def test_a_terminal_is_still_a_terminal() -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen([*RUN, "sh", "-c", "tty >&2; test -t 0 && test -t 1"], stdin=follower, stdout=follower)
    assert process.wait() == 0
    os.close(leader)
    os.close(follower)


# counts the signals that it receives, and ends when it has been told to
_COUNTS = """
import signal, sys, time
seen = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda n, _: seen.append(n))
print("ready", flush=True)
sys.stdin.readline()
print(*seen, flush=True)
"""


@pytest.mark.wide(every=6)
@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_each_signal_reaches_the_command_once(number: signal.Signals, to_group: bool) -> None:
    process = subprocess.Popen(
        [*RUN, sys.executable, "-u", "-c", _COUNTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (os.killpg if to_group else os.kill)(process.pid, number)
    # the signal is passed on before the command reads what follows: the wait for the witness is shorter
    subprocess.run(["sleep", "0.5"], check=True)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.read() == f"{int(number)}\n"
    assert process.wait() == 0
    process.stdin.close()
    process.stdout.close()


@pytest.mark.wide
def test_an_ignored_signal_stays_ignored_and_no_other_is() -> None:
    shows = "grep SigIgn /proc/self/status"
    ignores = ["sh", "-c", f"trap '' INT; exec {sys.executable} -m gpudoctor run --precheck none -- {shows}"]
    assert ignored_by(ignores) & 1 << (signal.SIGINT - 1)
    assert ignored_by([*RUN, *shows.split()]) == ignored_by(shows.split())


def ignored_by(command: list[str]) -> int:
    """The signals that a process ignores, as a mask, without the two of the C library, which posix_spawn ignores."""
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(text.split()[1], 16) & ~(0b11 << 31)


def test_a_command_that_stops_stops_its_caller_as_without() -> None:
    process = subprocess.Popen([*RUN, "sh", "-c", "kill -STOP $$; exit 5"], start_new_session=True)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait() == 5


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(("on_exit", "ends"), [("leave", False), ("end", True)])
def test_the_command_outlives_a_killed_gpudoctor_unless_it_shall_not(on_exit: str, ends: bool) -> None:
    command = [*RUN[:-1], "--on-exit", on_exit, "--", "sh", "-c", "echo $$; exec sleep 600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    descriptor = os.pidfd_open(pid)
    process.kill()
    process.wait()
    try:
        if ends:
            process.stdout.read()  # ends when the command has ended
        else:
            os.kill(pid, 0)
    finally:
        if not ends:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        process.stdout.close()
        os.close(descriptor)
