"""One run, whatever the process does; the schedule; the strikes; and how old a report may be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import psutil
import pytest

from gpudoctor.agent.node_status import FailureStreak, Last, Moment, alarms, no_report, status_at, streaks_after
from gpudoctor.agent.schedule import OUTPUT_BYTES_MAX, first_due_s, next_due_s, outcome_of, quick_check
from gpudoctor.agent.state import LOCK_FILE, STATE_FILE, StateDirectory, WatchedSubject, default_directory, now
from gpudoctor.api.check_child import decoded
from gpudoctor.checks.core.finding import Status
from gpudoctor.errors import UserError
from gpudoctor.facts.simulated.load import apply_faults, load_node, node_names
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report, SourceSummary, render_json
from gpudoctor.report.prometheus import families
from tests.agent.running import DEADLINE_S, FAULTY, command, environ, wait_for
from tests.conftest import ROOT
from tests.needs import needs
from tests.subprocesses import completed

HEALTHY = judge(load_node("hgx-h100-8", {}))
WARNING = judge(apply_faults(load_node("hgx-h100-8", {}), ["persistence-off@3"]))
FAILING = judge(apply_faults(load_node("hgx-h100-8", {}), ["pcie-width-x8@5"]))
SILENT = judge(apply_faults(load_node("hgx-h100-8", {}), ["driver-hang@2"]))
SOURCE = SourceSummary("simulated", "hgx-h100-8")
AT = Moment("this boot", 1000.0, 1.7e9)
ERROR = no_report("nobody answered", AT, AT, "node7", SOURCE)


def later(seconds: float) -> Moment:
    return Moment(AT.boot, AT.since_boot_s + seconds, AT.unix_s + seconds)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def run(code: str) -> Report | str:
    """The result of a run of this program."""
    return run_with(code, os.environ)


def run_with(code: str, environ: Mapping[str, str]) -> Report | str:
    async def ended() -> Report | str:
        check = quick_check(python(code), environ)
        await check.to_its_end()
        check.stop_reading()
        return outcome_of(check)

    return asyncio.run(ended())


def said(outcome: Report | str) -> str:
    assert isinstance(outcome, str), "a report"
    return outcome


def test_the_report_is_taken_where_the_exit_code_agrees(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(render_json(FAILING))
    tell = f"import sys; print(open({str(file)!r}).read()); sys.exit"
    outcome = run(f"{tell}(1)")
    assert isinstance(outcome, Report)
    assert outcome.verdict == "fail"
    # a run that reports a pass and then died is not believed
    file.write_text(render_json(HEALTHY))
    assert "ended otherwise" in said(run(f"{tell}(1)"))
    assert "killed by SIGKILL, not 0" in said(
        run(f"{tell.replace('sys.exit', '')}sys.stdout.flush(); import os; os.kill(os.getpid(), 9)")
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('oh\\x1b[31m no')", "no report (exit code 1): oh\\x1b[31m no"),
        ("import os; os.abort()", "no report (killed by SIGABRT)"),
        ("print('{')", "cannot be read"),
        ('print(\'{"schema": "gpudoctor.report/9"}\')', "cannot be read"),
        ("print('[' * 100000)", "cannot be read"),
        ("print('[' * 100000 + '\\\\udcff')", "cannot be read"),
        ("while True: print('x' * 1000000)", "more than any report"),
    ],
)
def test_what_is_no_report_is_said_in_one_line(code: str, words: str) -> None:
    outcome = said(run(code))
    assert words in outcome
    assert outcome.isprintable()
    assert len(outcome) < 1000 < OUTPUT_BYTES_MAX


def test_a_name_that_is_not_utf8_does_not_cost_the_report() -> None:
    host = msgspec.structs.replace(HEALTHY.host, name="node\udcff")
    report = decoded(render_json(msgspec.structs.replace(HEALTHY, host=host)).encode())
    assert (report.host.name, report.verdict) == ("node?", "pass")


def test_the_runs_process_never_sees_the_token() -> None:
    code = "import os, sys; sys.exit('seen' if 'GPUDOCTOR_AGENT_TOKEN' in os.environ else 'not there')"
    assert said(run_with(code, {**os.environ, "GPUDOCTOR_AGENT_TOKEN": "x" * 20})).endswith("not there")


def after_one_run(folder: Path, program: Sequence[str], *how: str) -> str:
    """The state after one agent round of a program, in a separate process: a round ends all children of its process."""
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "tests.agent.one_round", str(folder), *how, "--", *program]
    done = completed(words, cwd=ROOT)
    if done.returncode == 77:
        pytest.skip("this system lets no process adopt orphans")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_that_does_not_listen_to_sigterm_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    deaf = "import os, signal; signal.signal(15, signal.SIG_IGN); "
    program = python(f"{deaf}open({str(pid)!r}, 'w').write(str(os.getpid())); signal.pause()")
    assert "did not end in 1 s, and was ended" in after_one_run(tmp_path, program, "late")
    assert not psutil.pid_exists(int(pid.read_text()))


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert "cannot be started: No such file" in after_one_run(tmp_path, (str(tmp_path / "nothing"),))


# its grandchild has its own session, like the process that calls the driver
_LEAVES_ONE = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); open({!r}, 'w').write(str(p.pid))"
)


def test_what_a_run_leaves_behind_is_ended_and_reaped(tmp_path: Path) -> None:
    after_one_run(tmp_path, python(_LEAVES_ONE.format(str(tmp_path / "pid"))))
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_beside_a_process_that_cannot_be_killed_no_further_one_is_started(tmp_path: Path) -> None:
    line = after_one_run(tmp_path, python(_LEAVES_ONE.format(str(tmp_path / "pid"))), "unkillable", "twice")
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    assert f"process {pid} of an earlier run cannot be killed" in line
    assert line.startswith("UNKNOWN")


def test_a_warn_grows_a_row_a_pass_ends_it_and_no_verdict_leaves_it() -> None:
    uuid = WARNING.gpus[3].uuid or ""
    one = streaks_after((), WARNING)
    assert one == (FailureStreak("gpu.settings", "3", uuid, 1),)
    two = streaks_after(one, WARNING)
    assert [strike.in_row for strike in two] == [2]
    assert streaks_after(two, ERROR) == two
    assert [s.in_row for s in streaks_after(two, SILENT) if (s.check, s.gpu) == ("gpu.settings", "3")] in ([], [2])
    assert streaks_after(two, HEALTHY) == ()
    assert [strike.in_row for strike in streaks_after(streaks_after(one, HEALTHY), WARNING)] == [1]


def test_a_check_without_a_verdict_keeps_its_row() -> None:
    def with_status(status: Status) -> Report:
        changed = []
        for result in WARNING.checks:
            findings = tuple(
                msgspec.structs.replace(f, status=status) if f.status is Status.WARN else f for f in result.findings
            )
            changed.append(msgspec.structs.replace(result, findings=findings))
        return msgspec.structs.replace(WARNING, checks=tuple(changed))

    one = streaks_after((), WARNING)
    for silent in (Status.SKIP, Status.UNKNOWN):
        kept = streaks_after(one, with_status(silent))
        assert [strike.in_row for strike in kept] == [1]
        assert [strike.in_row for strike in streaks_after(kept, WARNING)] == [2]
    # another index at the next boot is still the same GPU
    moved = tuple(msgspec.structs.replace(strike, gpu="6") for strike in one)
    assert [strike.in_row for strike in streaks_after(moved, WARNING)] == [2]


def test_fail_and_unknown_are_alarms_at_once_and_a_warn_after_enough_strikes() -> None:
    strikes = streaks_after((), WARNING)
    assert alarms(WARNING, strikes, 2) == ()
    [alarm] = alarms(WARNING, streaks_after(strikes, WARNING), 2)
    assert (alarm.check, alarm.gpu, alarm.status) == ("gpu.settings", "3", Status.WARN)
    assert [(a.check, a.gpu, a.status) for a in alarms(FAILING, (), 3)] == [("pcie.link-width", "5", Status.FAIL)]
    assert {a.status for a in alarms(SILENT, (), 3)} & {Status.UNKNOWN, Status.FAIL}
    assert alarms(HEALTHY, (), 1) == ()


@pytest.mark.parametrize(
    ("report", "verdict", "healthy"),
    [(HEALTHY, "pass", True), (WARNING, "warn", True), (FAILING, "fail", False), (ERROR, "unknown", False)],
)
def test_only_a_fresh_pass_or_warn_is_healthy(report: Report, verdict: str, healthy: bool) -> None:
    last = Last(AT, AT, report)

    def at(moment: Moment) -> tuple[str, bool, bool]:
        found = status_at(last, moment, interval_s=600, deadline_s=60, strikes=3)
        return found.verdict, found.healthy, found.report is not None

    assert at(later(0)) == at(later(960)) == (verdict, healthy, True)
    stale = ("unknown", False, False)
    assert at(later(961)) == at(later(-1)) == stale
    assert at(msgspec.structs.replace(later(1), boot="the next one")) == stale


def test_no_step_of_the_wall_clock_makes_a_report_younger_or_older() -> None:
    last = Last(AT, AT, HEALTHY)
    for unix_s in (0.0, 4e9):
        moment = msgspec.structs.replace(later(42), unix_s=unix_s)
        assert status_at(last, moment, interval_s=600, deadline_s=60, strikes=3).age_s == 42
    assert now().age_s(now()) is not None


def test_runs_begin_an_interval_apart_and_what_was_missed_is_left_out() -> None:
    assert next_due_s(100, 101, 600) == 700
    assert next_due_s(100, 699, 600) == 700
    assert next_due_s(100, 701, 600) == 1300
    assert next_due_s(100, 5000, 600) == 5500
    # after a restart the rhythm continues; after a boot, or a long time off, it starts anew, spread by chance
    last = Last(AT, later(2), HEALTHY)
    assert first_due_s(last, later(10), 600, 33) == AT.since_boot_s + 600
    assert first_due_s(last, later(5000), 600, 33) == AT.since_boot_s + 5033
    assert first_due_s(last, Moment("next boot", 5, 0), 600, 33) == 38
    assert first_due_s(None, Moment("next boot", 5, 0), 20, 33) == 25


def test_where_the_state_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    assert default_directory({"STATE_DIRECTORY": "/var/lib/gpudoctor:/x"}) == Path("/var/lib/gpudoctor")
    assert default_directory({"XDG_STATE_HOME": "/s"}) == Path("/s/gpudoctor")
    assert default_directory({"XDG_STATE_HOME": "not/absolute"}) == Path("/home/user/.local/state/gpudoctor")
    with pytest.raises(UserError, match="cannot be written"):
        StateDirectory(tmp_path / "a\0b", WatchedSubject("x"))
    monkeypatch.setenv("HOME", ".")
    with pytest.raises(UserError, match="no home directory is known"):
        default_directory({"XDG_STATE_HOME": "not/absolute"})


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_state_that_other_users_could_forge_is_refused(tmp_path: Path, mode: int) -> None:
    """A login node: a user who can write to the folder clears the strikes of a node, or has it drained."""
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UserError, match=r"may write to .*/state \(chmod go-w takes that away\)"):
        StateDirectory(folder, WatchedSubject("x"))
    StateDirectory(folder / "own" / "state", WatchedSubject("x")).close()
    assert {oct(level.stat().st_mode)[-3:] for level in folder.rglob("*") if level.is_dir()} == {"700"}


@needs("root")
def test_a_state_of_a_stranger_is_refused_and_a_link_of_systemds_is_not(tmp_path: Path) -> None:
    folder, link = tmp_path / "private", tmp_path / "state"
    folder.mkdir(mode=0o755)
    link.symlink_to(folder)  # as systemd makes it for DynamicUser=
    StateDirectory(link, WatchedSubject("x")).close()
    os.chown(link, 12345, -1, follow_symlinks=False)
    with pytest.raises(UserError, match=r"state is a link that another user made \(uid 12345\)"):
        StateDirectory(link, WatchedSubject("x"))
    os.chown(folder, 12345, -1)
    with pytest.raises(UserError, match=r"private belongs to another user \(uid 12345\)"):
        StateDirectory(folder, WatchedSubject("x"))


@pytest.mark.parametrize(
    "broken", [b"", b"\xff\x00", b"[" * 100_000, b'{"schema": "gpudoctor.agent-state/9"}', b"null", "a pipe"]
)
def test_a_state_that_cannot_be_used_is_none_is_said_and_replaced(
    tmp_path: Path, broken: bytes | str, capsys: pytest.CaptureFixture[str]
) -> None:
    if broken == "a pipe":
        os.mkfifo(tmp_path / LOCK_FILE)
    with closing(StateDirectory(tmp_path, WatchedSubject("node7"))) as state:
        if isinstance(broken, bytes):
            assert state.load() is None
            assert capsys.readouterr().err == ""
            (tmp_path / STATE_FILE).write_bytes(broken)
        else:
            os.mkfifo(tmp_path / STATE_FILE)
        assert state.load() is None
        reason = "" if isinstance(broken, bytes) else ": not a regular file"
        assert f"is not used, and will be replaced{reason}" in capsys.readouterr().err
        last = Last(AT, later(1), WARNING, streaks_after((), WARNING))
        assert state.save(last)
        assert state.load() == last
    with closing(StateDirectory(tmp_path, WatchedSubject("node7", "hgx-h100-8", ("xid-79",)))) as with_fault:
        assert with_fault.load() is None


@pytest.mark.parametrize("name", node_names())
def test_no_series_comes_twice_and_a_metric_has_the_same_labels_throughout(name: str) -> None:
    for family in families(judge(load_node(name, {}))):
        assert len({tuple(labels) for labels, _ in family.samples}) == 1, family.name
        series = [tuple(labels.items()) for labels, _ in family.samples]
        assert len(set(series)) == len(series), family.name


def test_of_several_numbers_about_one_part_the_worst_is_told() -> None:
    shm = next(result for result in HEALTHY.checks if result.id == "host.shm")
    [finding] = shm.findings
    assert finding.found is not None
    bad = msgspec.structs.replace(finding, status=Status.FAIL, found=msgspec.structs.replace(finding.found, value=7))
    result = msgspec.structs.replace(shm, findings=(finding, bad))
    report = msgspec.structs.replace(HEALTHY, checks=(result,))
    [values] = [family for family in families(report) if family.name == "gpudoctor_check_value_bytes"]
    assert [value for _, value in values.samples] == [7 << 20]


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [(("--node", "hgx-h100-8"), 0, "SIMULATED PASS"), (FAULTY, 1, "SIMULATED FAIL pcie.link-width GPU 5")],
    ids=["healthy", "faulty"],
)
def test_once_runs_one_check_keeps_its_state_says_how_the_node_stands_and_ends(
    tmp_path: Path, options: tuple[str, ...], code: int, said: str
) -> None:
    done = completed(command("--once", *options), env=environ(tmp_path))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(said)
    assert done.stdout.count("\n") == 1
    kept = json.loads((tmp_path / "state" / "gpudoctor" / "tried" / "agent.json").read_text())
    assert kept["last"]["report"]["exit_code"] == code


def test_once_that_is_told_to_end_leaves_no_check_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--once", "--node", "hgx-h100-8", "--deadline", "60"),
        env=environ(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    it = psutil.Process(process.pid)
    children = wait_for(lambda: it.children(recursive=True), process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode in (143, 0)
    wait_for(lambda: not any(child.is_running() for child in children))
