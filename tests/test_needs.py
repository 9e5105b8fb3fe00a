"""The marker for what a test needs that not every machine has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import needs
from tests.conftest import ROOT
from tests.testing.user_project import project, run_pytest

CONFTEST = """
import pytest
from tests import needs
from tests.needs import fixture_needs

needs.PACKAGES["no-such-engine"] = needs.PACKAGES["another"] = "some-package"


def pytest_configure(config):
    config.pluginmanager.register(needs)


@pytest.fixture
@fixture_needs("another")
def engine(tmp_path_factory):
    tmp_path_factory.mktemp("left-behind")
"""
TESTS = """
from tests import conftest
from tests.needs import missing, module, needs


@needs("bash", "no-such-engine")
def test_of_an_engine(tmp_path):
    raise AssertionError


def test_of_a_fixture(engine):
    raise AssertionError


def test_that_finds_out():
    missing("mounts", "Operation not permitted")


@needs("bash")
def test_of_what_is_here():
    pass


def test_of_nothing():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = project(tmp_path / "tests", TESTS.replace("from tests import conftest\n", ""))
    (made / "conftest.py").write_text(CONFTEST)
    return made


def test_what_is_missing_is_skipped_before_fixtures_and_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    code, said = run_pytest(folder, "--basetemp", str(tmp_path / "base"), "-rs")
    assert code == 0, said
    assert "2 passed, 3 skipped" in said
    [line] = [line for line in said.splitlines() if line.startswith("skipped for want of")]
    assert line == (
        "skipped for want of no-such-engine (1), another (1): apt-get install some-package; "
        "mounts (1): as root, in a container with --privileged"
    )
    assert "needs mounts: as root, in a container with --privileged (Operation not permitted)" in said
    assert not list((tmp_path / "base").glob("*left-behind*"))


@pytest.mark.parametrize(("absent", "code"), [("", 1), ("other some-package", 0)])
def test_of_engines_that_must_be_there_a_missing_one_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, absent: str, code: int
) -> None:
    monkeypatch.setenv("GPUDOCTOR_ENGINES", absent)
    ended, said = run_pytest(folder)
    assert (ended, "2 skipped, 3 deselected" in said) == (code, True), said


def test_a_name_that_nobody_knows_how_to_get_is_refused() -> None:
    with pytest.raises(KeyError):
        needs.needs("no-such-program")
    assert [name for name in needs.PACKAGES if not needs.how_to_get(name).startswith("apt-get install ")] == []


def test_no_test_skips_by_hand_for_want_of_a_program_or_a_right() -> None:
    by_hand = re.compile(r"mark\.skipif\(.*(which|geteuid|find_spec)|importorskip\(|if .*which\(.*:\n\s+pytest\.skip")
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in ("needs.py", "test_needs.py")]
    assert [str(path) for path in files if by_hand.search(path.read_text(encoding="utf-8"))] == []
