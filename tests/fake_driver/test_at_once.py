"""Several checks at once: a machine that is busy with them convicts no driver and acquits none."""

from __future__ import annotations

import pytest

from benchmarks import at_once
from tests.fake_driver.conftest import ROOT


@pytest.fixture(autouse=True)
def _users_environment(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.wide
def test_eight_checks_at_once_are_all_right_and_leave_nothing() -> None:
    answers, wrong = at_once.at_once("hgx-h100-8", 8)
    assert wrong == []
    assert len(answers) == 8


def test_a_verdict_that_is_not_the_expected_one_is_told() -> None:
    right = at_once.Job(False, "gpu-lost@2", "fail", 1, "gpu.lost", 2)
    report = {"verdict": "pass", "reason": "PASS", "faults": [], "checks": [{"id": "gpu.lost", "status": "pass"}]}
    assert at_once.problems(at_once.Answer(right, 0, report, 0.1, "")) == [
        "exit code 0 and pass, not 1 and fail",
        "its faults are []: PASS",
    ]
    assert at_once.problems(at_once.Answer(right, 2, None, 0.1, "no such node")) == [
        "exit code 2 and no report: no such node"
    ]
    healthy = at_once.Job(True, None, "pass", 0)
    unread = {**report, "checks": [{"id": "driver.responsive", "status": "unknown"}]}
    assert at_once.problems(at_once.Answer(healthy, 0, unread, 0.1, "")) == ["driver.responsive is unknown"]
