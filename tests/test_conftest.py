"""Rules for every test: none waits forever, not even in teardown, and none leaves changed signal handlers behind."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT, SLOWEST
from tests.testing.user_project import project, run_pytest

CONFTEST = """
from tests import conftest
from tests.conftest import own_signals, pytest_runtest_protocol, pytest_runtest_teardown

conftest.TEARDOWN_LIMIT_S = 2.0
"""
WAITING = """
import threading
import pytest

never = threading.Event()


@pytest.fixture
def waits():
    yield
    never.wait()


def test_waits_and_waits_again():
    try:
        never.wait()
    finally:
        never.wait()


def test_fails_and_its_fixture_waits(waits):
    raise AssertionError


def test_passes_and_its_fixture_waits(waits):
    pass


def test_runs_after_them():
    pass
"""
CHANGING = """
import signal


def test_is_an_own_process():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def test_begins_as_new():
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""

WIDE_CONFTEST = "from tests.conftest import (pytest_collection_modifyitems, pytest_configure, pytest_terminal_summary)"
WIDE = """
import pytest


@pytest.mark.wide
def test_whole():
    pass


@pytest.mark.wide(but=["b"])
@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_of_three_cases(case):
    pass


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("case", range(3))
def test_of_each_second(case):
    pass


def test_ordinary():
    pass
"""


def _ran(folder: Path, tests: str) -> tuple[int, str]:
    (project(folder, tests) / "conftest.py").write_text(CONFTEST)
    return run_pytest(folder, "-o", "timeout=1")


def test_a_test_or_a_fixture_that_waits_for_ever_fails_and_says_where(tmp_path: Path) -> None:
    _, said = _ran(tmp_path, WAITING)
    assert "2 failed, 2 passed, 2 errors" in said
    assert said.count("its teardown took more than 2 s") >= 2


def test_what_a_test_did_to_the_signals_is_undone(tmp_path: Path) -> None:
    code, said = _ran(tmp_path, CHANGING)
    assert code == 0, said


@pytest.mark.parametrize(
    ("arguments", "wide", "expected"),
    [
        ((), "", "4 passed, 4 deselected"),
        (("test_it.py::test_whole",), "", "1 passed"),
        (("-m", "wide"), "1", "4 passed, 4 deselected"),
        ((), "1", "8 passed"),
    ],
    ids=["make test", "named", "make test-wide", "all"],
)
def test_what_is_wide_is_left_out_but_for_its_representatives(
    arguments: tuple[str, ...], wide: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUDOCTOR_WIDE", wide)
    (project(tmp_path, WIDE) / "conftest.py").write_text(WIDE_CONFTEST)
    code, output = run_pytest(tmp_path, *arguments)
    assert (code, f"{expected} in" in output) == (0, True), output
    assert ("4 wide tests left out: make test-wide runs them" in output) is (arguments == () and not wide)


def test_a_representative_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (project(tmp_path, WIDE.replace('but=["b"]', 'but=["d"]')) / "conftest.py").write_text(WIDE_CONFTEST)
    code, output = run_pytest(tmp_path)
    assert (code, "test_of_three_cases: wide(but=...) names no case: ['d']" in output) == (4, True), output


def test_no_thread_of_a_test_keeps_its_process_from_ending() -> None:
    """Python waits for those that are no daemons after the last test, beyond every limit."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}": "daemon=True" in ast.unparse(node)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "Thread(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread")
    }
    assert len(found) > 10
    assert [place for place, daemon in found.items() if not daemon] == []


def test_the_slowest_files_are_there() -> None:
    assert [name for name in SLOWEST if not (ROOT / "tests" / f"{name}.py").is_file()] == []
