"""`make` on a machine that lacks something: one line that says what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.subprocesses import shell_program

SCRIPT = ROOT / "contrib" / "packages" / "environment.sh"
# A Python that is too old, whose venv fails, or whose pip fails; `shift` leaves what it is to do
PYTHON = """\
case "$*" in
  *version_info*) exit {old} ;;
  *"sys.version.split"*) echo 3.9.2; exit 0 ;;
  *find_spec*) exit 1 ;;
esac
for last in "$@"; do :; done
case "$*" in *venv*) {venv}; mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; cp "$0" "$last/bin/pip"; exit 0 ;; esac
{pip}
"""
NO_SPACE = "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1"
NO_NETWORK = (
    "echo 'NewConnectionError: Failed to establish a new connection: [Errno 101] Network is unreachable'; exit 1"
)
NO_VENV = "echo 'The virtual environment was not created because ensurepip is not available'; exit 1"


def made(folder: Path, old: int = 0, venv: str = ":", pip: str = "exit 0", python: str = "") -> tuple[int, str]:
    """Exit code and output of the script with such a Python."""
    program = shell_program(folder / "python3", PYTHON.format(old=old, venv=venv, pip=pip))
    done = subprocess.run(
        [SCRIPT, folder / "env", "-e", "."],
        env={"PATH": "/usr/bin:/bin", "PYTHON": python or str(program)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=folder, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"old": 1}, "Python 3.10 or newer is needed, {python} is 3.9.2: make PYTHON=python3.12"),
        ({"python": "no-such-python"}, "no no-such-python here: apt-get install python3-venv"),
        ({"venv": NO_VENV}, "has no venv or pip: apt-get install python3-venv"),
        ({"venv": NO_SPACE}, "MB free): free some, or make clean"),
        ({"pip": NO_SPACE}, "MB free): free some, or make clean"),
        ({"pip": NO_NETWORK}, "no package index answers: connect this machine, or set PIP_INDEX_URL"),
    ],
)
def test_what_a_machine_lacks_is_one_line_with_the_way_out(
    lacking: dict[str, str | int], words: str, tmp_path: Path
) -> None:
    code, said = made(tmp_path, **lacking)  # type: ignore[arg-type]
    assert (code, said.count("\n")) == (1, 1), said
    assert said.startswith("gpudoctor: ")
    assert words.format(python=tmp_path / "python3") in said


def test_another_failure_of_pip_is_shown_as_it_is(tmp_path: Path) -> None:
    code, said = made(tmp_path, pip="echo 'ERROR: ResolutionImpossible'; exit 1")
    assert (code, said) == (1, "ERROR: ResolutionImpossible\ngpudoctor: pip install did not work: see above\n")


def test_with_all_there_it_says_nothing(tmp_path: Path) -> None:
    assert made(tmp_path) == (0, "")
