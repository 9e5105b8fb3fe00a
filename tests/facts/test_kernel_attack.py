"""The whole way from /dev/kmsg of a live machine to the verdict, with an attacker on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from tests.facts.kernel_words import LOST, NONE, WITH_USERS_WORDS, kmsg, message
from tests.facts.live_nodes import collect
from tests.facts.nvml_nodes import make_node, make_root
from tests.sysfs_tree import write

pytestmark = pytest.mark.usefixtures("no_process_stays")
BEGIN = "6,0,0,-;Linux version 6.8.0\n"


def report_on(root: Path, log: str) -> Report:
    write(make_root(root), {"/dev/kmsg": log.encode()})
    return judge(collect(root, make_node(2)))


def verdict(report: Report) -> str:
    return next(check.status.value for check in report.checks if check.id == "gpu.xid")


def test_programs_of_any_name_drain_no_node(tmp_path: Path) -> None:
    crashes = "".join(kmsg(message(form, LOST, LOST)) for form in WITH_USERS_WORDS)
    assert verdict(report_on(tmp_path / "root", BEGIN + crashes)) == "pass"


def test_programs_of_any_name_clear_no_error(tmp_path: Path) -> None:
    crashes = "".join(kmsg(message(form, NONE, NONE)) for form in WITH_USERS_WORDS)
    assert verdict(report_on(tmp_path / "root", BEGIN + kmsg(LOST) + crashes)) == "fail"


def test_a_node_whose_ring_buffer_was_overwritten_is_not_passed(tmp_path: Path) -> None:
    report = report_on(tmp_path / "root", "6,5123,864000000000,-;eth0: link up\n")
    assert verdict(report) == "unknown"
    [finding] = [f for check in report.checks if check.id == "gpu.xid" for f in check.findings]
    assert "864000 s of log missing, and there is no journal" in (finding.reason or "")
