"""The acceptance run as an operator starts it, before the fake driver and a fake nvidia-smi."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.fake_driver.conftest import COMMAND, cache, environ
from tests.subprocesses import shell_program

__all__ = ["cache", "environ"]  # fixtures

PROGRAM = (sys.executable, "-m", "acceptance")


class Ran(msgspec.Struct):
    """One acceptance run: its output, archive and temporary files, and the settings made through nvidia-smi."""

    code: int
    out: str
    err: str
    archive: Path
    temporary: Path
    log: Path

    @property
    def set_to(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []


# Python only for what it answers: the run asks it for more than that
_SMI = """\
case " $*" in *" nvlink "* | *" -q"* | *" -pl "* | *" -lgc "* | *" -rgc"*) ;; *) [ "$FAKE_SMI_STRAY" ] || exit 0 ;; esac
exec "{python}" -m tests.acceptance.fake_smi "$@"
"""

Accept = Callable[..., Ran]
Begin = Callable[..., "tuple[subprocess.Popen[str], Ran]"]


@pytest.fixture
def begin(environ: dict[str, str], tmp_path: Path) -> Begin:
    """begin(*options, node, faults, smi, env): start it; return the process and its future result."""

    def start(
        *options: str,
        node: str = "hgx-h100-8",
        faults: tuple[str, ...] = (),
        smi: bool = True,
        env: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
    ) -> tuple[subprocess.Popen[str], Ran]:
        ran = Ran(-1, "", "", tmp_path / "acceptance.tar.gz", tmp_path / "tmp", tmp_path / "set.log")
        ran.temporary.mkdir(exist_ok=True)
        changes = {"TMPDIR": str(ran.temporary), "FAKE_SMI_LOG": str(ran.log), **(env or {})}
        if smi:
            changes["PATH"] = f"{_smi(tmp_path)}:{environ['PATH']}"
        asked = [word for fault in faults for word in ("--fault", fault)]
        process = subprocess.Popen(
            [*COMMAND, "--node", node, *asked, "--", *before, *PROGRAM, "-o", str(ran.archive), *options],
            env={**environ, **changes},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return process, ran

    return start


@pytest.fixture
def accept(begin: Begin) -> Accept:
    """accept(*options, ...): the whole run."""

    def run(*options: str, **given: object) -> Ran:
        process, ran = begin(*options, **given)
        ran.out, ran.err = process.communicate(timeout=180)
        ran.code = process.returncode
        return ran

    return run


def _smi(folder: Path) -> Path:
    """A folder with an nvidia-smi in it."""
    return shell_program(folder / "bin" / "nvidia-smi", _SMI.format(python=sys.executable)).parent
