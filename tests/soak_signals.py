"""Commands stopped, interrupted and killed at random moments: each must end at once and leave nothing behind.

    python -m tests.soak_signals [EACH [SEED]]

EACH (30) times every signal for every command. Afterwards no process and no temporary file of the command may be left,
and after SIGTERM and SIGINT the exit code is 128 + the signal, or that of a command that had ended before. SIGSTOP
takes one process of the command by chance; SIGTERM follows.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from gpudoctor.diagnose.example_jobs import EXAMPLE_JOBS, log_of
from tests.diagnose.test_flight_recorder import dump
from tests.tui.processes import of_folder

EACH, SEED = 30, 20261128
ENDS_WITHIN_S = 5.0
# on a busy machine the kernel takes its time to end what was killed
GONE_WITHIN_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP)
_OWN = (sys.executable, "-m", "gpudoctor")
_LOG_MIB = 128
_STEPS = "import time; [time.sleep(0.1) for _ in range(200)]"  # ends by itself if it is left


class Command(msgspec.Struct, frozen=True):
    """A command, how long it takes at most until it is busy, and its exit codes if it ends before the signal."""

    words: tuple[str, ...]
    busy_s: float
    codes: tuple[int, ...] = (0, 1, 3)


def commands(folder: Path) -> dict[str, Command]:
    """The commands by name; `folder` holds the job that `diagnose` reads."""
    fake = (*_OWN, "fake-driver", "--node", "hgx-h100-8", "--")
    return {
        "diagnose": Command((*_OWN, "diagnose", str(folder)), 6.0),
        "check": Command((*_OWN, "check", "--level", "quick"), 2.0),
        "check with a driver": Command((*fake, *_OWN, "check", "--level", "quick"), 3.0),
        "check with ranks": Command(
            (*_OWN, "check", "--node", "hgx-h100-8", "--backend", "gloo", "--ranks", "2"), 12.0
        ),
        "run": Command((*_OWN, "run", "--on-exit", "end", "--", sys.executable, "-c", _STEPS), 3.0, (0, 1)),
        "watch": Command((*fake, *_OWN, "watch"), 4.0),
        "agent": Command((*fake, *_OWN, "agent", "--listen", "127.0.0.1:0", "--jitter", "0"), 5.0),
    }


def write_job(folder: Path) -> None:
    """Logs of 128 MiB, of which one is packed, and dumps of the flight recorder."""
    import gzip
    import pickle

    logs = b"".join(log_of(name).read_bytes() for name in EXAMPLE_JOBS)
    whole = logs * (_LOG_MIB * 2**19 // len(logs))
    (folder / "train.log").write_bytes(whole)
    (folder / "train.log.gz").write_bytes(gzip.compress(whole, 1))
    for rank in range(8):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(200)))


def trial(
    command: Command, number: signal.Signals, after_s: float, choose: Callable[[list[int]], int]
) -> tuple[list[str], float]:
    """What was wrong, and how long it took to end; `choose` picks the process that SIGSTOP stops."""
    with tempfile.TemporaryDirectory(prefix="gpudoctor-soak-") as scratch:
        environment = {**os.environ, "TMPDIR": scratch, "XDG_STATE_HOME": f"{scratch}/state"}
        process = subprocess.Popen(
            command.words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            ended = process.wait(after_s)
        except subprocess.TimeoutExpired:
            ended = None
        if ended is not None:
            return [*_left(Path(scratch), number), *_wrong_code(command, ended, None)], 0.0
        began = time.monotonic()
        _strike(process, number, choose, Path(scratch))
        try:
            code = process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            code = None
        took_s = time.monotonic() - began
        problems = [f"not ended after {ENDS_WITHIN_S:g} s"] if code is None else _wrong_code(command, code, number)
        problems += _left(Path(scratch), number)
        for each in of_folder(Path(scratch)):
            with suppress(psutil.Error):
                each.kill()
        process.wait()
        return problems, took_s


def _strike(
    process: subprocess.Popen[bytes], number: signal.Signals, choose: Callable[[list[int]], int], scratch: Path
) -> None:
    if number is not signal.SIGSTOP:
        process.send_signal(number)
        return
    stopped = choose(sorted(each.pid for each in of_folder(scratch)) or [process.pid])
    try:
        os.kill(stopped, signal.SIGSTOP)
    except ProcessLookupError:
        stopped = process.pid
    process.send_signal(signal.SIGTERM)
    # a stopped process gets no other signal before it goes on, and `run` stops with its command: as timeout(1) does
    process.send_signal(signal.SIGCONT)


def _wrong_code(command: Command, code: int, number: signal.Signals | None) -> list[str]:
    sent = {None: None, signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 128 + signal.SIGINT}.get(
        number, 128 + signal.SIGTERM
    )
    # before Python runs, a signal has its default action
    by_default = {-signal.SIGTERM, -signal.SIGINT} if number is not None else set()
    if code in (sent, *command.codes, *by_default):
        return []
    return [f"exit code {code}"]


def _left(scratch: Path, number: signal.Signals) -> list[str]:
    """Processes, and temporary files except after SIGKILL, which nobody can clean up after."""
    until = time.monotonic() + GONE_WITHIN_S
    while (left := of_folder(scratch)) and time.monotonic() < until:
        time.sleep(0.05)
    names = []
    for process in left:
        with suppress(psutil.Error):
            names.append(" ".join(process.cmdline())[:100])
    files = [] if number is signal.SIGKILL else [entry.name for entry in scratch.iterdir() if entry.name != "state"]
    return [*(f"left: {name}" for name in names), *(f"file left: {name}" for name in files)]


def soak(each: int = EACH, seed: int = SEED, chosen: str = "") -> int:
    """Run all trials; print what was wrong; return how often."""
    chance = random.Random(seed)
    # a shell ignores SIGINT in what it starts in the background, and commands inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="gpudoctor-soak-job-"))
    bad, runs, slowest = 0, Counter[str](), 0.0
    try:
        write_job(folder)
        plan = [
            (name, number) for name in commands(folder) if chosen in name for number in SIGNALS for _ in range(each)
        ]
        chance.shuffle(plan)
        for name, number in plan:
            command = commands(folder)[name]
            after_s = chance.random() * command.busy_s
            problems, took_s = trial(command, number, after_s, chance.choice)
            runs[f"{name} {number.name}"] += 1
            slowest = max(slowest, took_s)
            if problems:
                bad += 1
                sys.stdout.write(f"{name}, {number.name} after {after_s:.2f} s: {'; '.join(problems)}\n")
                sys.stdout.flush()
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(
        f"{runs.total()} runs of {len(runs)} kinds, {bad} wrong; the slowest end took {slowest:.1f} s; seed {seed}\n"
    )
    return bad


if __name__ == "__main__":
    asked = [*sys.argv[1:], *("", "", "")]
    sys.exit(1 if soak(int(asked[0] or EACH), int(asked[1] or SEED), asked[2]) else 0)
