"""What a newcomer types first: no command, a wrong word, a word that gpudoctor printed."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gpudoctor.cli.command_table import COMMANDS, GROUPS
from gpudoctor.cli.main import main
from tests.cli.conftest import Gpudoctor, assert_refused, read_terminal


def test_without_a_command_it_shows_them_by_what_they_are_for(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    alone, asked = gpudoctor(), gpudoctor("help")
    assert alone.out == asked.out == gpudoctor("--help").out
    # in a script, a command that got lost must not look like a healthy node
    assert (alone.code, asked.code) == (2, 0)
    assert all(f" {name} " in asked.out for name in COMMANDS)
    assert [line.split()[0] for line in asked.out.splitlines() if line[:1].isupper()][: len(GROUPS)] == list(GROUPS)
    assert max(map(len, asked.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("chek",), "no command is called 'chek'; did you mean check?; see: gpudoctor --help"),
        (("check", "--level", "medium"), "--level: 'medium' is none of quick, standard, full, burn; see: gpudoctor"),
        (("diagnose", "--example"), "--example: expected one argument: hang, exception, sigkill, early-exit, "),
        (("check", "--lvel", "quick"), "unrecognized arguments: --lvel; did you mean --level?"),
        (("schema", "fact"), "did you mean facts?"),
        (("cluster", "reprt", "x"), "did you mean report?; see: gpudoctor cluster --help"),
        (("explain", "pcei"), "nothing is called 'pcei'; did you mean pcie?"),
        (("explain", "nvidia-smi has failed because"), "what a machine prints: gpudoctor check --node -;"),
        (("explain", "2"), "nothing is called '2'; NVIDIA's catalogue has no Xid of this number"),
        (("explain", "rank_hng"), "nothing is called 'rank_hng'; did you mean rank_hung?"),
        (
            ("nodes", "no-such-thing"),
            "no simulated node, fault, injection or example job has no-such-thing in its name or title",
        ),
        (("list", "--level", "burn", "pcie"), "no check at level burn has pcie in its id or title"),
    ],
)
def test_a_wrong_word_is_one_line_with_the_nearest_match(
    argv: tuple[str, ...], message: str, gpudoctor: Gpudoctor
) -> None:
    assert_refused(gpudoctor(*argv), message)


def test_help_of_a_command_is_that_command_s(gpudoctor: Gpudoctor) -> None:
    helped = gpudoctor("help", "check")
    assert helped.code == 0
    assert "how deep:" in helped.out
    assert "nvidia-smi -q | gpudoctor check --node -" in helped.out
    assert gpudoctor("help", "chek").code == 2
    assert gpudoctor("version").out == gpudoctor("--version").out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rank_hung", "a rank hangs while the others wait for it"),
        ("diagnose.nccl-timeout", "A collective timed out"),
        ("gpu-lost@2", "gpu.lost must say fail"),
        ("Xid 79", "the node needs work by hand"),
        ("48", "Xid 48: double-bit ECC error"),
        ("Xid 31", "no fault of the node: a program did it"),
        ("xid 154", "Node Reboot Required: Drain the node and reboot it."),
        ("retimer", "pcie.upstream: Every link above the GPUs"),
        ("shm", "shm_too_small"),
        ("lora", "the frozen weights take 2 bytes a parameter"),
        ("pcie", "pcie.link-width: Every GPU uses all of its PCIe lanes"),
        ("exit codes", "0: no failure"),
        ("exit 3", "128 + n: ended by signal n"),
        ("exit code 137", "137, SIGKILL: the OOM killer only if"),
        ("signal 9", "137, SIGKILL: the OOM killer only if"),
        ("exitcode: -9", "137, SIGKILL: the OOM killer only if"),
        ("137", "As an exit code: `gpudoctor explain exit code 137`"),
        ("nccl timeouts", "diagnose.nccl-timeout: A collective timed out"),
        ("nccl slow", "env.nccl: No NCCL or launcher setting slows training down"),
        ("cuda out of memory", "cuda_oom: GPU memory ran out"),
    ],
)
def test_whatever_gpudoctor_prints_can_be_looked_up(name: str, expected: str, gpudoctor: Gpudoctor) -> None:
    page = gpudoctor("explain", *name.split())
    assert page.code == 0
    assert expected in " ".join(page.out.split())


def test_a_search_takes_whole_words_and_titles_come_first(gpudoctor: Gpudoctor) -> None:
    ecc = gpudoctor("explain", "ecc").out.splitlines()
    assert ecc[2].lstrip(" •").startswith("gpu.ecc: ")
    hang = gpudoctor("explain", "hang").out
    assert "rank_hung: " in hang
    assert "gpu.identical" not in hang  # "change" has the same letters
    assert gpudoctor("explain", "Watchdog caught collective operation timeout").out.startswith(
        "diagnose.nccl-timeout: "
    )
    assert gpudoctor("explain", "CUDA out of memory. Tried to allocate 2.00 GiB").out.startswith("cuda_oom: ")
    assert " diagnose.nccl-timeout: A collective timed out\n" in gpudoctor("explain", "nccl watchdog timeout").out
    assert "nvlink.links: " in gpudoctor("explain", "no nvlink").out
    assert gpudoctor("explain", "kernel panic").out.startswith("host.kernel: ")
    assert "0x8" not in gpudoctor("explain", "x8").out
    assert len(gpudoctor("explain", "pcie").out.splitlines()) < 15


def test_a_page_is_text_not_markdown(gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, columns in itertools.product(("pcie.link-width", "diagnose.nccl-timeout", "gpu.xid"), (80, 40)):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = gpudoctor("explain", name).out.splitlines()
        assert max(map(len, lines)) <= columns
        assert not any(line.startswith(("#", "|", "```")) for line in lines)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_command_in_a_page_is_not_broken_and_without_colour_in_backticks(
    columns: int, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name, command in (("rank_hung", "gpudoctor check gpu.xid"), ("pcie.acs", "gpudoctor check pcie.acs")):
        assert f"`{command}`" in gpudoctor("explain", name).out
        colored = gpudoctor("explain", name, "--color", "always").out
        assert (command in colored, "`" in colored) == (True, False)


def test_a_page_on_a_narrow_screen_puts_last_columns_below_and_tables_in_blocks(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert "    missing_rank\n        the others wait at the start for\n" in gpudoctor("explain", "missing_rank").out
    ecc = gpudoctor("explain", "gpu.ecc").out
    assert "SRAM threshold flag\n    value: not set\n    status: fail\n    source: the GPU itself" in ecc


def test_what_is_piped_into_a_pager_has_the_width_of_its_terminal() -> None:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    command = [sys.executable, "-m", "gpudoctor", "list"]
    try:
        piped = subprocess.run(command, stdout=subprocess.PIPE, stderr=child, env={"PATH": "/usr/bin:/bin"}, check=True)
        alone = subprocess.run(command, capture_output=True, env={}, check=True)
    finally:
        os.close(child)
        os.close(parent)
    assert 50 < max(map(len, piped.stdout.decode().splitlines())) <= 60
    assert 80 < max(map(len, alone.stdout.decode().splitlines())) <= 100


def test_a_long_page_goes_through_the_pager_of_a_terminal() -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "gpudoctor", "explain", "pcie.link-width"]
    environ = {"PATH": "/usr/bin:/bin", "TERM": "xterm", "PAGER": "sed s/^/paged:/", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environ)
    os.close(child)
    output = read_terminal(parent)
    os.close(parent)
    assert process.wait() == 0
    assert b"paged:" in output
    assert b"Every GPU uses all of its PCIe lanes" in output


@pytest.mark.parametrize(
    ("command", "given", "code", "said"),
    [
        ("check --level quick --node -", b"GPU 3 has fallen off the bus\n\x04", 1, b"reported.failures"),
        ("diagnose -", b"Traceback (most recent call last):\nKeyError: 'x'\n\x04", 1, b"user_exception"),
        ("cluster report -", b"{}\n\x04", 2, b"no report there"),
        ("check --level quick --node -", signal.SIGINT, 130, b"interrupted by SIGINT"),
        ("check --node -", signal.SIGINT, 130, b"interrupted by SIGINT"),
        ("check --level quick --node -", None, 2, b"there is nothing in it"),
    ],
    ids=["a text", "a log", "a report", "Ctrl-C", "Ctrl-C before a load", "the terminal is closed"],
)
def test_who_types_is_asked_for_it_and_ends_it_once(
    command: str, given: bytes | signal.Signals | None, code: int, said: bytes
) -> None:
    parent, child = pty.openpty()
    argv = [sys.executable, "-m", "gpudoctor", *command.split()]
    with subprocess.Popen(argv, stdin=child, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"paste" in process.stderr.readline()
        if isinstance(given, bytes):
            os.write(parent, given)
        elif given is not None:
            process.send_signal(given)
        else:
            os.close(parent)
        out, err = process.communicate(timeout=60)
    os.close(child)
    if given is not None:
        os.close(parent)
    assert process.returncode == code
    assert said in out + err
    if code > 2:  # nothing was read: there is no report
        assert (out, err.count(b"\n")) == (b"", 1)


def test_lists_can_be_searched_and_read_by_programs(gpudoctor: Gpudoctor) -> None:
    assert [row["id"] for row in gpudoctor("list", "lanes", "--json").json] == ["pcie.link-width", "pcie.balance"]
    assert {row["level"] for row in gpudoctor("list", "--level", "full", "--json").json} == {"full"}
    found = json.loads(gpudoctor("nodes", "shm", "--json").out)
    assert [fault["name"] for fault in found["faults"]] == ["shm-64m", "shm-small", "nccl-shm-disable"]
    assert found["nodes"] == []
    assert "hgx-h100-8" not in gpudoctor("nodes", "GH200").out


@pytest.mark.parametrize(
    ("example", "expected", "code"),
    [
        ("hang", "CAUSE  rank_hung", 1),
        ("exception", "CAUSE  user_exception", 1),
        ("sigkill", "CAUSE  killed_sigkill", 1),
        ("early-exit", "CAUSE  early_exit", 1),
        ("mismatch", "CAUSE  collective_mismatch", 1),
        ("healthy", "NOTHING FOUND", 0),
    ],
)
def test_diagnose_can_be_tried_on_a_job_that_comes_with_it(
    example: str, expected: str, code: int, gpudoctor: Gpudoctor
) -> None:
    diagnosed = gpudoctor("diagnose", "--example", example)
    assert (diagnosed.code, diagnosed.out[: len(expected)]) == (code, expected)
    assert code == 0 or "where        rank 1" in diagnosed.out
    assert f"example job {example}: " in diagnosed.err
    assert f"  {example} " in gpudoctor("nodes", example).out


def test_an_example_goes_without_files_and_nothing_is_an_error(gpudoctor: Gpudoctor) -> None:
    assert "--example hang" in gpudoctor("diagnose").err
    assert gpudoctor("diagnose", "--example", "hang", "x.log").code == 2
    assert "did you mean hang?" in gpudoctor("diagnose", "--example", "hung").err


_NOT_UNDERSTOOD = (
    "After two epochs the program froze, and I can no longer see the GPU status.",
    "Power Supply Status : PASS\nEvery job on this box dies since noon",
    "ibstat failed: not installed",
    "Has GPU 3 fallen off the bus?",
    "GPUが1枚見えません",
    "nvidia-smi takes 40 seconds",
    "# lspci\n# no card in slot three is shown here\n# ipmitool sel list\na gpu riser has no power signal at all\n# ls",
)


@pytest.mark.parametrize("text", _NOT_UNDERSTOOD)
def test_a_short_text_about_a_node_that_nothing_understands_is_unknown_and_quoted(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paste = tmp_path / "paste.txt"
    paste.write_text(f"{text}\n", encoding="utf-8")
    assert main(["check", "--node", str(paste), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    (finding,) = [f for check in report["checks"] for f in check["findings"] if f["status"] == "unknown"]
    assert " ".join(text.replace("\n", " / ").split()) in finding["reason"]
    assert "gpudoctor diagnose FILE" in finding["reason"]


@pytest.mark.parametrize(
    "argv",
    [["check", "--redact"], ["check", "gpu"], ["facts"], ["status"], ["plan", "7b"], ["check", "--fault", "xid-79@0"]],
)
def test_elsewhere_such_a_text_is_refused(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paste = tmp_path / "paste.txt"
    paste.write_text(f"{_NOT_UNDERSTOOD[0]}\n")
    assert main([*argv, "--node", str(paste)]) == 2
    assert "paste what the machine prints" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "## On GPUs\n\nIf a GPU is slow, look at its clocks.\n" * 5,
        "It is slow.\n",
        '{"gpus": [1}\n',
        "<html>NVIDIA</html>\n",
    ],
)
def test_a_page_and_another_format_are_not_quoted(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paste = tmp_path / "paste.txt"
    paste.write_text(text)
    assert main(["check", "--node", str(paste)]) == 2
    assert str(paste) in capsys.readouterr().err
