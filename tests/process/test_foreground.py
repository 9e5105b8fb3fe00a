"""A command under `gpudoctor run` is the command without it: its code, its bytes, its signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.needs import needs
from tests.subprocesses import completed

RUN = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none", "--"]


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL),
        (["/does/not/exist"], 127),
        ([""], 127),
        (["/"], 126),
    ],
)
def test_the_exit_code_is_that_of_the_command(command: list[str], code: int) -> None:
    done = subprocess.run([*RUN, *command], capture_output=True, check=False)
    assert done.returncode == code
    assert (b"could not be started" in done.stderr) == (code in (126, 127))


def test_without_a_home_and_with_a_report_that_cannot_be_written_the_command_runs_as_without() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "HOME"}
    command = [*RUN[:-1], "-o", "/dev/full", "--", "sh", "-c", "echo out; echo err >&2; exit 4"]
    done = completed(command, env=environ)
    assert (done.returncode, done.stdout) == (4, "out\n")
    assert "\nerr\n" in done.stderr
    assert "/dev/full: cannot write" in done.stderr


@needs("setsid")
def test_what_the_command_leaves_in_the_background_goes_on() -> None:
    reads, writes = os.pipe()
    background = f"(setsid sh -c 'read line; echo later $line' </proc/self/fd/{reads} &) ; exit 9"
    with subprocess.Popen([*RUN, "sh", "-c", background], stdout=subprocess.PIPE, pass_fds=[reads]) as process:
        os.close(reads)
        assert process.wait() == 9
        os.write(writes, b"on\n")
        os.close(writes)
        assert process.stdout is not None
        assert process.stdout.read() == b"later on\n"


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
    text = completed(command, check=True).stdout
    return int(text.split()[1], 16) & ~(0b11 << 31)


@pytest.mark.parametrize("stops_first", [True, False])
def test_a_stopped_command_that_is_told_to_end_goes_on_to_end(stops_first: bool) -> None:
    process = subprocess.Popen(
        [*RUN, "sh", "-c", f"{'kill -STOP $$;' * stops_first} echo; exec sleep 60"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    if stops_first:
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
    else:
        process.stdout.readline()
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()[-1:]
        # its end is passed on before the stop is seen
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        os.kill(int(child), signal.SIGSTOP)
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == -signal.SIGTERM
    process.stdout.close()


def test_a_command_that_stops_stops_its_caller_as_without() -> None:
    process = subprocess.Popen([*RUN, "sh", "-c", "kill -STOP $$; exit 5"], start_new_session=True)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait() == 5


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(("on_exit", "ends"), [("leave", False), ("end", True)])
def test_the_command_outlives_a_killed_gpudoctor_unless_it_shall_not(on_exit: str, ends: bool, tmp_path: Path) -> None:
    command = [*RUN[:-1], "--on-exit", on_exit, "--", "sh", "-c", "echo $$; exec sleep 600"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}  # killed, it leaves its folder
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environ)
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


# what a shell with job control does: the command is its foreground job, which is continued once it has stopped
_SHELL = """
import os, signal, sys, time
for number in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    for number in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        break
    os.tcsetpgrp(0, os.getpid())
    print("stopped by", os.WSTOPSIG(status), flush=True)
    time.sleep(0.3)  # as people are slower than programs
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
print("ended with", os.waitstatus_to_exitcode(status), flush=True)
"""
# no handlers: one that prints while print flushes is refused by Python, and one that comes before a pause is missed
_REPORTS = """
import signal, sys
awaited = (signal.SIGCONT, signal.SIGINT, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("ready", flush=True)
while True:
    number = signal.sigwait(awaited)
    with open(sys.argv[1], "a") as file:
        print("got", int(number), file=file)
    if number != signal.SIGCONT:
        sys.exit(40 + number)
    print("continued", flush=True)
"""


def in_terminal(tmp_path: Path, shell: list[str], *keys: tuple[str, str]) -> tuple[str, str]:
    """What a terminal shows when keys are typed, each once a text is there (none: it is closed); and what arrived."""
    arrived = tmp_path / "arrived"
    command = [*shell, *RUN, sys.executable, "-c", _REPORTS, str(arrived)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    shown = b""
    for text, key in keys:
        while f"{text}\r\n".encode() not in shown:
            try:
                shown += os.read(terminal, 4096)
            except OSError:
                pytest.fail(f"all that had the terminal ended before {text!r}: {shown!r}")
        if key:
            os.write(terminal, key.encode())
        else:
            os.close(terminal)
    if keys[-1][1]:
        with suppress(OSError):  # EIO: all that had the terminal have ended
            while True:
                shown += os.read(terminal, 4096)
        os.close(terminal)
    os.waitpid(pid, 0)
    return shown.decode(), arrived.read_text(encoding="utf-8")


@pytest.mark.timeout(60)
def test_ctrl_z_stops_the_command_once_and_the_shell_continues_it_once(tmp_path: Path) -> None:
    shell = [sys.executable, "-c", _SHELL]
    shown, arrived = in_terminal(tmp_path, shell, ("ready", "\x1a"), ("continued", "\x03"))
    assert shown.count("stopped by") == 1
    assert "ended with 42" in shown
    assert arrived == "got 18\ngot 2\n"


def test_a_closed_terminal_hangs_up_on_the_command(tmp_path: Path) -> None:
    _, arrived = in_terminal(tmp_path, [], ("ready", ""))
    assert arrived == f"got {int(signal.SIGHUP)}\n"
