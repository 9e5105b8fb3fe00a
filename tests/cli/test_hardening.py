"""What a saboteur found: exit codes must not lie, whatever happens to the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Gpudoctor, assert_refused

QUICK = ("check", "--level", "quick", "--node", "hgx-h100-8")
GPUDOCTOR = f"{sys.executable} -m gpudoctor"


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=60, check=False)


def test_a_required_check_is_run_even_where_others_were_asked_for(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "pcie", "--level", "quick", "--node", "hgx-h100-8", "--require", "gpu.ecc", "--json")
    assert outcome.code == 0
    assert "gpu.ecc" in [check["id"] for check in outcome.json["checks"]]
    broken = gpudoctor("check", "pcie", *QUICK[1:], "--require", "gpu.ecc", "--fault", "ecc-uncorrected@1")
    assert broken.code == 1


def test_what_is_required_beside_it_takes_no_level_from_what_was_asked_for(gpudoctor: Gpudoctor) -> None:
    asked = ("check", "strategy.3d", "--node", "hgx-h100-8", "--json")
    assert gpudoctor(*asked).json["run"]["level"] == "full"
    assert gpudoctor(*asked, "--require", "gpu.count").json["run"]["level"] == "full"


@pytest.mark.parametrize("form", ["text", "json", "nagios"])
def test_a_required_check_without_a_verdict_is_told_in_every_format(form: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor(*QUICK, "--require", "train.sync", "--format", form)
    assert outcome.code == 3
    assert "train.sync" in outcome.out
    assert "PASS  " not in outcome.out.splitlines()[-1]
    if form == "json":
        assert outcome.json["verdict"] == "unknown"
        assert outcome.json["reason"] == "UNKNOWN required but without a verdict: train.sync"


@pytest.mark.wide(every=5)
@pytest.mark.parametrize("buffered", ["env -u PYTHONUNBUFFERED", "env PYTHONUNBUFFERED=1"])
@pytest.mark.parametrize(
    "command",
    [
        *("check no-such-check 2>&-", "check no-such-check >&- 2>&-", "check no-such-check 2>/dev/full"),
        *("check --no-such-option 2>/dev/full", "--help >/dev/full", "--version >/dev/full 2>/dev/full"),
    ],
)
def test_a_stream_that_takes_nothing_turns_no_error_into_another_exit_code(command: str, buffered: str) -> None:
    done = shell(f"{buffered} {GPUDOCTOR} {command}")
    assert done.returncode == 2
    assert b"Exception ignored" not in done.stderr


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("option", ["--node", "--gpu", "--profile", "--config"])
def test_an_argument_that_is_not_utf8_is_an_error_with_a_document(option: str) -> None:
    raw = os.fsencode("/tmp/") + b"\xff.xml"
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", *QUICK, "--json", option, raw], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"internal error" not in done.stderr
    assert json.loads(done.stdout)["exit_code"] == 2


def test_a_file_gets_colour_only_on_demand(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    gpudoctor(*QUICK, "-o", "plain.txt")
    gpudoctor(*QUICK, "-o", "colored.txt", "--color", "always")
    assert "\x1b[" not in Path("plain.txt").read_text()
    assert "\x1b[" in Path("colored.txt").read_text()


def test_diagnose_colours_its_answer_as_the_other_commands_do(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "job.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n")
    assert "\x1b[" not in gpudoctor("diagnose", str(log)).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in gpudoctor("diagnose", str(log)).out


@pytest.mark.parametrize("form", ["text", "json", "prometheus"])
def test_no_old_report_is_left_where_this_run_could_not_judge(form: str, gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("PASS  all is well\n")
    assert gpudoctor("check", "--node", "nothing-such", "--format", form, "-o", str(path)).code == 2
    assert "PASS" not in path.read_text()
    assert "gpudoctor_faults" not in path.read_text()


@pytest.mark.parametrize("command", ["check --level quick --node -", "diagnose -", "diagnose --follow --stall 1 -"])
def test_stdin_that_is_closed_is_named(command: str) -> None:
    done = shell(f"{GPUDOCTOR} {command} <&-")
    assert done.returncode == 2
    assert b"internal error" not in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("option", ["--node=--", "--gpu=--", "--config=--", "--fault=--", "--skip=--"])
def test_two_dashes_are_no_value(option: str, gpudoctor: Gpudoctor) -> None:
    assert_refused(gpudoctor(*QUICK, option))


def test_what_to_run_next_is_about_the_same_node(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor(*QUICK, "--fault", "pcie-width-x8@6")
    last = " ".join(outcome.out[outcome.out.index("Next:") :].split())
    assert last.endswith("gpudoctor check pcie -v --level quick --node hgx-h100-8 --fault pcie-width-x8@6")
    # stdin was read: the command to run next would wait for more of it
    for option in ("--node -", "--node=-"):
        pasted = shell(f"echo 'NVRM: Xid (PCI:0000:5d:00): 79, fallen off the bus' | {GPUDOCTOR} check {option}")
        assert pasted.stdout.decode().rstrip().endswith(f"check gpu -v {option[:-1]}FILE")


STARTUP = """
import os, signal, sys
import gpudoctor.process.signals as signals
real = signals.catch_signals
def caught():
    real()
    os.kill(os.getpid(), signal.{name})
signals.catch_signals = caught
import gpudoctor.cli.main
gpudoctor.cli.main.catch_signals = caught
sys.exit(gpudoctor.cli.main.main({argv!r}))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_at_the_very_start_is_no_traceback_and_no_verdict(name: str, code: int) -> None:
    script = STARTUP.format(name=name, argv=[*QUICK, "--json"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


JUDGING = """
import os, signal, sys
import gpudoctor.cli.main, gpudoctor.{within} as within
real = within.{at}
def interrupted(*args, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*args, **options)
within.{at} = interrupted
sys.exit(gpudoctor.cli.main.main({argv!r}))
"""


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("within", "at"),
    [
        ("api.node_check", "all_checks"),
        ("api.node_check", "load_config"),
        ("api.node_check", "read_source"),
        ("report.judge", "judge"),
    ],
)
def test_a_signal_at_any_later_point_gives_one_whole_document_that_says_so(within: str, at: str) -> None:
    script = JUDGING.format(within=within, at=at, argv=[*QUICK, "--json"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    document = json.loads(done.stdout)
    assert document["exit_code"] == 143
    assert document["run"]["interrupted"] == "SIGTERM" or "SIGTERM" in document["error"]
    assert b"Traceback" not in done.stderr
