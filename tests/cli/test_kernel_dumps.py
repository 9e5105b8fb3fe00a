"""Saved kernel logs, some with lines of an attacker: `gpudoctor check gpu.xid --node FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Gpudoctor, Outcome
from tests.facts.kernel_words import LOST, NONE, WITH_USERS_WORDS, message

BOOT = ("Linux version 6.8.0-48-generic", "Command line: BOOT_IMAGE=/vmlinuz", "NVRM: loading NVIDIA UNIX x86_64")
CRASH = "{comm}[4711]: segfault at 0 ip 000055d0 sp 00007ffc error 4 in {path}[55d0000+1000]"
ENDED = message(CRASH, LOST, LOST)  # a program with the driver's words as its name


@pytest.fixture
def judged(gpudoctor: Gpudoctor, tmp_path: Path) -> Any:
    """The outcome for a log of these messages, each behind a prefix."""

    def run(*messages: str, prefix: str = "[  123.456789] ", options: tuple[str, ...] = ("--json",)) -> Outcome:
        lines = [prefix + line for line in (*BOOT, *messages)]
        (tmp_path / "dmesg.txt").write_text("\n".join(lines) + "\n")
        return gpudoctor("check", "gpu.xid", "--node", str(tmp_path / "dmesg.txt"), *options)

    return run


def findings(outcome: Outcome) -> list[dict[str, Any]]:
    [check] = outcome.json["checks"]
    return list(check["findings"])


def test_a_program_that_is_called_like_an_xid_and_crashes_drains_no_node(judged: Any) -> None:
    for form in WITH_USERS_WORDS:
        outcome = judged(message(form, LOST, LOST))
        assert outcome.code != 1, form
        assert {f["status"] for f in findings(outcome)} == {"skip"}, form


def test_a_program_that_is_called_like_a_recovery_settles_no_xid(judged: Any) -> None:
    for form in WITH_USERS_WORDS:
        outcome = judged(LOST, message(form, NONE, NONE))
        assert outcome.code == 1, form
        assert outcome.json["reason"].startswith("FAIL gpu.xid"), form
    assert judged(LOST, NONE).code == 0, "the driver itself may settle it"


@pytest.mark.parametrize("prefix", ["[  123.456789] ", "Nov 14 07:00:14 node12 kernel: "])
def test_a_text_without_facilities_is_judged_and_says_that_it_could_be_forged(judged: Any, prefix: str) -> None:
    [finding] = findings(judged(LOST, prefix=prefix))
    assert finding["status"] == "fail"
    assert "could have forged" in finding["evidence"][-1]["value"]
    shown = judged(LOST, prefix=prefix, options=()).out
    assert "could have forged" in shown.replace("\n", " ")


@pytest.mark.parametrize("prefix", ["kern  :err   : [  123.456789] ", "<3>[  123.456789] ", "3,1377,123456789,-;"])
def test_a_text_with_facilities_is_judged_without_that_and_its_users_lines_are_not(judged: Any, prefix: str) -> None:
    [finding] = findings(judged(LOST, ENDED, prefix=prefix))
    assert finding["status"] == "fail"
    assert ["not judged" in evidence["value"] for evidence in finding["evidence"]] == [False, True]


def test_an_xid_behind_a_prefix_that_nobody_knows_is_unknown_and_shown(judged: Any) -> None:
    outcome = judged("node12 klogd/3 " + LOST)
    [finding] = findings(outcome)
    assert (outcome.code, finding["status"]) == (3, "unknown")
    assert "klogd/3" in finding["evidence"][0]["value"]
    assert finding["advice"][1]["command"] == "dmesg -x > dmesg.txt"


@pytest.mark.parametrize(
    "prefix",
    [
        "2024-11-15T12:02:03,491363+00:00 ",
        "[  +0.000316] ",
        "2024-01-02T03:04:05.123456789Z stderr F [  123.456789] ",
        "logger-1  | [  123.456789] ",
        "[pod/dmesg-x7k2p/reader] [Thu Nov 14 07:00:14 2024] ",
        "node12: [  123.456789] ",
    ],
)
def test_logs_of_other_tools_are_known_and_judged(judged: Any, prefix: str) -> None:
    outcome = judged(LOST, prefix=prefix)
    assert outcome.code == 1
    assert findings(outcome)[0]["subject"]["bus_id"] == "0000:3b:00.0"
