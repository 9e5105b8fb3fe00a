"""A signal at each stage of a check: one whole report of what was known, the shell's exit code, nothing left."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudoctor.testing.fake_nvml import Script, ScriptedFault, write_script
from tests.facts.nvml_nodes import make_node, make_root
from tests.subprocesses import shell_program

FIRST, SECOND, HANGUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
# the machine of the first two arguments: its root, and the stand-in for its driver
LIVE = """
import sys
from functools import partial
from pathlib import Path
import gpudoctor.facts.collect as collect
collect.collect_live = partial(
    collect.collect_live, Path(sys.argv.pop(1)), call_deadline_s=60.0,
    nvml_module=sys.argv.pop(1))
from gpudoctor.cli.main import main
sys.exit(main())
"""
# a machine with its kernel log in the journal only
JOURNAL_ONLY = """
import sys
import gpudoctor.facts.kernel_log.live as log
from gpudoctor.facts.model.missing import Missing
log._read_ring_buffer = lambda path: Missing("/dev/kmsg: no permission", "denied")
from gpudoctor.cli.main import main
sys.exit(main())
"""
HUNG_JOURNAL = """\
trap '' TERM INT HUP
sleep 600 &
echo $! $$ > "$JOURNAL_PIDS.new"
mv "$JOURNAL_PIDS.new" "$JOURNAL_PIDS"
while :; do wait; sleep 1; done
"""
PATIENT = (
    "import gpudoctor.process.signals as e; e._PATIENCE_S = 0.0\n"
    "from gpudoctor.cli.main import main; raise SystemExit(main())"
)


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """The run's temporary directory; nothing of it may stay."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def started(
    temporary: Path, *command: str, env: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    whole = {**os.environ, "TMPDIR": str(temporary), **(env or {})}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, *command], env=whole, **options)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, str]:
    """Exit code, stdout, stderr; all that it had started must have ended too."""
    with process:
        out, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    return process.returncode, out, err.decode()


@pytest.mark.wide(but=["numbers2-json"])
@pytest.mark.parametrize(
    ("numbers", "form"),
    [((FIRST,), "json"), ((SECOND,), "text"), ((HANGUP, SECOND, HANGUP), "json"), ((FIRST,) * 5, "json")],
)
def test_while_the_driver_hangs_what_the_others_told_is_reported(
    numbers: tuple[signal.Signals, ...], form: str, tmp_path: Path, temporary: Path
) -> None:
    root = make_root(tmp_path / "root")
    told = make_node(2)
    spec = write_script(
        tmp_path / "s.json", Script(told, (ScriptedFault("nvmlDeviceGetTemperature", gpu=1, hang=True),))
    )
    words = ["check", "--level", "quick", "--include-facts", "--progress", "--deadline", "60", "--format", form]
    process = started(temporary, "-c", LIVE, str(root), spec, *words)
    assert process.stderr is not None
    while b"1 of 2" not in process.stderr.readline():
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 1
    for number in numbers:
        process.send_signal(number)
    code, out, _ = ended(process)
    assert code in {128 + number for number in numbers}
    assert psutil.wait_procs(children, timeout=20)[1] == []
    if form == "text":
        assert out.count(b"INTERRUPTED by SIGTERM") == 1
        return
    report = json.loads(out)
    assert report["exit_code"] == code
    first, second = report["facts"]["gpus"]
    assert first["thermal"]["gpu_c"] == told.gpus[0].thermal.gpu_c
    assert "interrupted by SIG" in second["thermal"]["gpu_c"]["missing"]
    statuses = {check["id"]: check["status"] for check in report["checks"]}
    assert statuses["driver.responsive"] == "unknown"
    assert report["verdict"] != "pass"


@pytest.fixture
def hung_journal(tmp_path: Path) -> dict[str, str]:
    """The environment in which journalctl ignores every signal that can be ignored, and has a child."""
    program = shell_program(tmp_path / "bin" / "journalctl", HUNG_JOURNAL)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "JOURNAL_PIDS": str(tmp_path / "pids")}


def journal_processes(process: subprocess.Popen[bytes], env: dict[str, str]) -> list[psutil.Process]:
    """Those of the hung journalctl, once it hangs."""
    while not Path(env["JOURNAL_PIDS"]).exists():
        assert process.poll() is None
        os.sched_yield()
    return [psutil.Process(int(pid)) for pid in Path(env["JOURNAL_PIDS"]).read_text().split()]


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(("number", "code"), [(FIRST, 130), (HANGUP, 129)])
def test_while_journalctl_hangs_the_report_comes_and_its_processes_end(
    number: signal.Signals, code: int, hung_journal: dict[str, str], temporary: Path
) -> None:
    words = ("check", "--level", "quick", "--json", "--include-facts", "--deadline", "60")
    process = started(temporary, "-c", JOURNAL_ONLY, *words, env=hung_journal)
    left = journal_processes(process, hung_journal)
    process.send_signal(number)
    got, out, _ = ended(process)
    report = json.loads(out)
    assert (got, report["exit_code"], report["run"]["interrupted"]) == (code, code, number.name)
    assert report["facts"]["host"]["kernel"] == os.uname().release
    assert f"interrupted by {number.name}" in json.dumps(report["facts"]["kernel_log"])
    assert psutil.wait_procs(left, timeout=20)[1] == []


def test_a_journalctl_that_hangs_is_given_up_at_the_deadline_and_its_answer_is_unknown(
    hung_journal: dict[str, str], temporary: Path
) -> None:
    words = ("check", "gpu.xid", "--level", "quick", "--json", "--deadline", "0.5")
    process = started(temporary, "-c", JOURNAL_ONLY, *words, env=hung_journal)
    left = journal_processes(process, hung_journal)
    code, out, _ = ended(process)
    assert code == 3
    [check] = json.loads(out)["checks"]
    assert (check["status"], check["findings"][0]["reason"]) == (
        "unknown",
        "kernel log: journalctl did not end in 0.5 s",
    )
    assert psutil.wait_procs(left, timeout=20)[1] == []


def wait_until_full(process: subprocess.Popen[bytes]) -> None:
    """Return once its stdout holds as much as a pipe can: it waits for a reader."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    size = fcntl.fcntl(pipe, 1032)  # F_GETPIPE_SZ
    while struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0] < size:
        assert process.poll() is None
        os.sched_yield()


WHOLE = ("check", "--level", "quick", "--json", "--include-facts", "--node", "hgx-h100-8")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_signals_while_the_report_is_written_do_not_cut_it(unbuffered: str, temporary: Path) -> None:
    process = started(temporary, "-m", "gpudoctor", *WHOLE, env={"PYTHONUNBUFFERED": unbuffered})
    wait_until_full(process)
    for number in (HANGUP, FIRST, SECOND):
        process.send_signal(number)
    code, out, _ = ended(process)
    report = json.loads(out)
    assert len(out) > 1 << 16
    assert code == report["exit_code"] == 0


@pytest.mark.parametrize("command", [WHOLE, ("facts", "--node", "hgx-h100-8")], ids=["check", "facts"])
def test_a_stdout_that_nobody_reads_does_not_hold_it_for_ever(command: tuple[str, ...], temporary: Path) -> None:
    process = started(temporary, "-c", PATIENT, *command)
    wait_until_full(process)
    while process.poll() is None:
        # one at a time: handlers that are interrupted by the next signal nest until Python's stack is used up
        if psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING:
            process.send_signal(SECOND)
        os.sched_yield()
    assert ended(process)[0] == 128 + SECOND


def test_whoever_blocks_signals_and_starts_it_can_end_it_all_the_same(temporary: Path) -> None:
    process = started(
        temporary, "-m", "gpudoctor", "check", "--level", "quick", "--json", "--node", "-",
        stdin=subprocess.PIPE, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, (FIRST, SECOND, HANGUP)),
    )  # fmt: skip
    process.send_signal(SECOND)
    assert ended(process)[0] == 128 + SECOND


def test_under_nohup_a_hangup_is_no_reason_to_end(temporary: Path) -> None:
    facts = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "facts", "--node", "t4-cloud-4"], stdout=subprocess.PIPE, check=True
    ).stdout
    process = started(
        temporary, "-m", "gpudoctor", "check", "--level", "quick", "--json", "--node", "-",
        stdin=subprocess.PIPE, preexec_fn=lambda: signal.signal(HANGUP, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(facts[:100])
    process.stdin.flush()
    process.send_signal(HANGUP)
    with process:
        out, err = process.communicate(facts[100:], timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert json.loads(out)["run"]["interrupted"] is None
