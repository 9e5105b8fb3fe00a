"""The check child: what it is told, what comes of it, and that it always ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from gpudoctor.errors import UserError
from gpudoctor.facts.model.node import Node
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.report.progress import ProgressLine
from gpudoctor.tui.check_runner import Checker, ssh_prefix
from gpudoctor.tui.state import FinishedRun
from tests.subprocesses import completed
from tests.tui.processes import all_end, of_folder

NARROW = ["--node", "hgx-h100-8", "--fault", "pcie-width-x8@5"]
# a rank that never comes back: the run would take half a minute
HANGS = ["--node", "hgx-h100-8", "--inject", "hang-rank=1:all_reduce"]


@pytest.fixture(autouse=True)
def _no_user_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def stands_for_gpudoctor(code: str) -> list[str]:
    """A prefix that runs this Python code instead, whatever arguments follow."""
    return [sys.executable, "-c", code]


def finished(checker: Checker, *words: str) -> FinishedRun:
    return asyncio.run(checker.run(words, "quick"))


def why_none(checker: Checker, *words: str) -> str:
    """Why a run gives no report."""
    run = finished(checker, *words)
    assert run.report is None
    return run.error or ""


def test_a_run_gives_the_report_with_its_facts() -> None:
    run = finished(Checker([], NARROW), "pcie", "gpu.count")
    assert run.error is None
    assert run.report is not None
    assert [fault.check for fault in run.report.faults] == ["pcie.link-width"]
    assert {check.domain for check in run.report.checks} == {"pcie", "gpu"}
    assert isinstance(run.report.facts, Node)
    assert len(run.report.facts.gpus) == 8
    assert (run.only, run.level) == (("pcie", "gpu.count"), "quick")


def test_load_goes_to_cpu_ranks_where_the_node_is_no_machine() -> None:
    simulated = Checker([], ["--node", "rtx4090-4"])
    assert "--backend" not in simulated.command([], "quick")
    for level in ("standard", "full", "burn"):
        command = simulated.command([], level)
        assert command[command.index("--backend") + 1] == "gloo"
    assert not simulated.loads_gpus
    live = Checker([], [])
    assert live.loads_gpus
    assert "--backend" not in live.command([], "full")
    assert "--force" in live.command([], "full", force=True)
    assert "--force" not in live.command([], "full")


def test_over_ssh_each_word_reaches_the_other_shell_as_it_is() -> None:
    checker = Checker(ssh_prefix("node17"), ["--node", "a dump; rm x"])
    command = checker.command(["pcie.*"], "quick")
    assert command[:6] == ["ssh", "-o", "BatchMode=yes", "--", "node17", "gpudoctor"]
    # what ssh does: join with blanks, for a shell to take apart
    shell = " ".join(["printf", "'%s\\n'", *command[6:]])
    told = completed(["sh", "-c", shell], check=True).stdout.splitlines()
    assert told[:2] == ["check", "pcie.*"]
    assert "a dump; rm x" in told


def test_what_gpudoctor_could_not_do_is_one_line() -> None:
    why = why_none(Checker([], NARROW), "pcie.link-widht")
    assert "no check is called 'pcie.link-widht'" in why
    assert "\n" not in why


def test_no_report_is_told_with_the_last_words_on_stderr() -> None:
    code = "import sys; sys.stderr.write('first\\nssh: connect to host node17: \\x1b[31mrefused\\n'); sys.exit(255)"
    why = why_none(Checker(stands_for_gpudoctor(code), []))
    assert "exit code 255" in why
    assert why.endswith("ssh: connect to host node17: \\x1b[31mrefused")


def test_a_child_that_is_killed_is_no_verdict() -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    assert why_none(Checker(stands_for_gpudoctor(code), [])) == "gpudoctor check gave no report (killed by SIGKILL)"


@pytest.mark.parametrize("text", ["Welcome to node17!", "{}", '{"schema": "gpudoctor.report/9"}'])
def test_what_is_no_report_is_not_believed(text: str) -> None:
    assert "report" in why_none(Checker(stands_for_gpudoctor(f"print({text!r})"), []))


def test_a_report_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudoctor.tui.check_runner.REPORT_BYTES_MAX", 1 << 20)
    endless = stands_for_gpudoctor("import sys\nwhile True: sys.stdout.write('[' * 65536)")
    assert "larger than can be" in why_none(Checker(endless, []))


def test_what_runs_on_with_the_pipes_of_a_check_does_not_hold_up_its_report(tmp_path: Path) -> None:
    """A daemon that a plugin's check started: the screen showed the check as running for as long as that ran."""
    left = tmp_path / "left"
    code = (
        "import subprocess, sys; from gpudoctor.__main__ import run; "
        f"open({str(left)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); sys.exit(run())"
    )
    checker = Checker(stands_for_gpudoctor(code), NARROW)
    try:
        run = asyncio.run(asyncio.wait_for(checker.run(("pcie",), "quick"), 60))
    finally:
        psutil.Process(int(left.read_text())).kill()
    assert run.error is None
    assert run.report is not None


def test_a_program_that_is_not_there_is_one_line() -> None:
    run = finished(Checker(["/nonexistent/gpudoctor"], []))
    assert run.error == "/nonexistent/gpudoctor: No such file or directory"


def hanging(then: Callable[[Checker], Awaitable[None]]) -> tuple[FinishedRun, list[ProgressLine]]:
    """A run whose rank 1 hangs; `then` is done once a rank says that it begins the all_reduce."""
    said: list[ProgressLine] = []

    async def body() -> FinishedRun:
        checker, begun = Checker([], HANGS), asyncio.Event()

        def heard(line: ProgressLine) -> None:
            said.append(line)
            if line.progress.startswith("all_reduce of"):
                begun.set()

        task = asyncio.ensure_future(checker.run(("collective.correct",), "standard", on_progress=heard))
        await asyncio.wait_for(begun.wait(), 60)
        await then(checker)
        return await asyncio.wait_for(task, 60)

    return asyncio.run(body()), said


@pytest.mark.wide
def test_cancelled_it_gives_the_partial_report_and_nothing_of_it_stays(tmp_path: Path) -> None:
    seen = []

    async def cancel(checker: Checker) -> None:
        with pytest.raises(UserError, match="runs already"):
            await checker.run((), "quick")
        seen.extend(of_folder(tmp_path))
        checker.cancel()

    run, said = hanging(cancel)
    assert run.error is None
    assert run.report is not None
    assert run.report.run.interrupted == "SIGINT"
    assert run.report.verdict == "unknown"
    assert {line.rank for line in said if line.rank is not None} == {0, 1}
    assert {line.probe for line in said if line.rank is not None} == {"launch", "collective"}
    assert len(seen) >= 4  # the check, the starter, two ranks
    assert all_end(seen)


def test_closed_it_ends_the_child_without_waiting_for_it() -> None:
    deaf = "import signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
    deaf += 'print(\'{"progress":"deaf"}\', file=sys.stderr, flush=True); signal.pause()'

    async def body() -> FinishedRun:
        checker = Checker(stands_for_gpudoctor(deaf), [])
        run = asyncio.ensure_future(checker.run((), "quick", on_progress=lambda line: checker.close()))
        finished = await asyncio.wait_for(run, 60)
        assert (await checker.run((), "quick")).error == "gpudoctor is ending"
        return finished

    assert asyncio.run(body()).error == "gpudoctor check gave no report (killed by SIGKILL)"


SCREEN = """
import asyncio, sys
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.tui.check_runner import Checker
def heard(line):
    if line.progress.startswith("all_reduce of"):
        print("begun", flush=True)
asyncio.run(Checker([], sys.argv[1:]).run(("collective.correct",), "standard", on_progress=heard))
"""


@pytest.mark.wide
def test_nothing_is_left_when_the_screen_is_killed(tmp_path: Path) -> None:
    screen = subprocess.Popen([sys.executable, "-c", SCREEN, *HANGS], stdout=subprocess.PIPE, text=True)
    assert screen.stdout is not None
    with screen, screen.stdout:
        assert screen.stdout.readline() == "begun\n"
        seen = [process for process in of_folder(tmp_path) if process.pid != screen.pid]
        assert len(seen) >= 4
        screen.send_signal(signal.SIGKILL)
        screen.wait()
        assert all_end(seen)


def test_this_gpudoctor_is_what_runs_by_default() -> None:
    assert Checker([], []).command([], "quick")[: len(own_gpudoctor())] == own_gpudoctor()
