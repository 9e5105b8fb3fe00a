"""`gpudoctor status`: one line a GPU, and the verdict of the quick checks."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import Gpudoctor, read_terminal


def rows(text: str) -> dict[int, list[str]]:
    cells = [line.split() for line in text.splitlines()]
    return {int(row[0]): row for row in cells if row and row[0].isdecimal()}


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_one_line_a_gpu_with_the_fault_and_the_verdict_of_check(gpudoctor: Gpudoctor) -> None:
    source = ("--node", "hgx-h100-8", "--fault", "pcie-width-x8@5")
    status = gpudoctor("status", *source)
    assert status.code == gpudoctor("check", *source, "--level", "quick").code == 1
    assert status.out.startswith("SIMULATED node hgx-h100-8 with pcie-width-x8@5")
    gpus = rows(status.out)
    assert list(gpus) == list(range(8))
    assert gpus[5][:2] == ["5", "FAIL"]
    assert gpus[5][-3:] == ["5", "x8", "18/18"]
    assert {row[1] for index, row in gpus.items() if index != 5} == {"ok"}
    assert "GPU 5 (0000:ab:00.0): PCIe Gen5 x8 (pcie.link-width)" in status.out
    assert status.out.splitlines()[-2:] == ["FAIL  not fit to train on", "Next: gpudoctor explain pcie.link-width"]


def test_a_warning_has_its_values_and_long_lines_wrap(gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = gpudoctor("status", "--node", "hgx-h100-8", "--fault", "hot-gpu@2").out.splitlines()
    assert "  warn: GPU 2: 50 C, 20 C hotter than its peers at equal" in lines
    assert "    load (gpu.temperature)" in lines
    assert max(map(len, lines)) <= 60


def test_old_readings_of_a_lost_gpu_are_not_shown(gpudoctor: Gpudoctor) -> None:
    status = gpudoctor("status", "--node", "lifetime-counters", "--fault", "gpu-lost@3")
    gpus = rows(status.out)
    assert gpus[3] == ["3", "FAIL", *["-"] * 8]
    assert gpus[2][-2:] == ["90212", "(ada)"]
    assert "gpu.ecc" not in status.out  # explained by the lost GPU


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_fits_the_terminal_and_keeps_health_and_memory(
    width: int, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = gpudoctor("status", "--node", "lifetime-counters").out.splitlines()
    table = [line for line in lines if line[:3].strip().isdecimal() or line.startswith("GPU  ")]
    assert len(table) == 9
    assert max(map(len, lines)) <= width
    assert "health" in table[0]
    assert "72.5/80" in table[1]


def test_a_machine_without_gpus_and_a_wrong_source(gpudoctor: Gpudoctor) -> None:
    assert "no GPU shown" in gpudoctor("status", "--node", "cpu-only").out
    wrong = gpudoctor("status", "--node", "nonsuch", "--json")
    assert (wrong.code, wrong.json["exit_code"]) == (2, 2)
    assert "nonsuch" in wrong.json["error"]


def test_json_is_the_report_with_its_facts(gpudoctor: Gpudoctor) -> None:
    report = gpudoctor("status", "--node", "gh200-1", "--json").json
    assert report["run"]["level"] == "quick"
    assert len(report["facts"]["gpus"]) == len(report["gpus"]) == 1


# a session of its own, with the terminal in front
_IN_FRONT = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "gpudoctor", *sys.argv[1:]])
"""


@pytest.mark.parametrize("leave", ["signal", "key"])
def test_watch_looks_again_until_ctrl_c_or_q(leave: str) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-c", _IN_FRONT, "status", "--node", "gh200-1", "--watch", "0.5"]
    environ = {"PATH": "/usr/bin:/bin", "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=subprocess.PIPE, env=environ)
    os.close(child)
    output = read_terminal(parent, lambda seen: seen.count(b"no GPU was put under load") >= 2)
    if leave == "key":
        os.write(parent, b"q")
    else:
        process.send_signal(signal.SIGINT)
    read_terminal(parent)
    os.close(parent)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert output.count(b"\x1b[H\x1b[2J") >= 2
    assert output.count(b", every 0.5 s; q or Ctrl-C leaves") >= 2


def test_the_document_of_an_error_is_json(gpudoctor: Gpudoctor) -> None:
    assert json.loads(gpudoctor("status", "--fault", "gpu-lost@1", "--json").out)["verdict"] == "unknown"
