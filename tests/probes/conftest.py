"""How the tests of this room run probes, and how they see that nothing is left of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.run_collector import RunCollector
from tests.imported_torch import ForkedPython

# torch in the process of these tests: as in a rank, its threads would mostly wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Far more than a run needs, for the sake of a loaded machine; only runs that hang wait for a deadline.
DEADLINE_S = 120.0
# A rank that is ended exits within 2 s, or a multiple of that on a stalled machine. A leaked one stays forever.
GONE_WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the runs of this test make their private directories."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def measure(plan: ProbePlan, *, deadline_s: float = DEADLINE_S, probe_deadline_s: float = DEADLINE_S) -> Measurements:
    """Run the plan; no process and no open file of it may be left afterwards."""
    me = psutil.Process()
    before, files_before = set(me.children(recursive=True)), open_files()
    measurements = run_probes(plan, deadline_s=deadline_s, probe_deadline_s=probe_deadline_s)
    left = set(me.children(recursive=True)) - before
    assert not left, f"processes left behind: {left}"
    assert open_files() <= files_before, "pipes left open"
    return measurements


def collecting(plan: ProbePlan, folder: Path) -> RunCollector:
    """What collects the messages of a run that never takes place."""
    return RunCollector(plan, folder, ProgressBoard(folder / "board", plan.ranks), None)


FoundFirst = Callable[[str, str], None]


@pytest.fixture
def found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FoundFirst:
    """found_first(name, source): a file that every Python started from now on finds first when it imports."""

    def write(name: str, source: str) -> None:
        (tmp_path / name).write_text(source)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    return write


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """A function that raises this, whatever it is given."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise error

    return refuse


Played = Callable[..., Any]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """played(gpus=1, world_size=gpus, number=0, ...): a rank on GPUs that the CPU plays."""
    from tests.probes.fake_gpus import GpuRank, install

    def play(gpus: int = 1, world_size: int | None = None, number: int = 0, **options: Any) -> GpuRank:
        install(monkeypatch, gpus=gpus, **options)
        return GpuRank(tmp_path, world_size or gpus, number)

    return play


def goes_on(process: subprocess.Popen[Any]) -> None:
    """Assert that it has not ended, for a moment in which a loop that watches it leaves the processor to it."""
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)


def open_files() -> set[str]:
    """What this process holds open; what an earlier test left may be collected, and so closed, at any time."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this very listing
            found.add(f"{descriptor.name} {descriptor.readlink()}")
    return found


# Forked from one process that has imported what both need, as the starter of the ranks does
_TWO_RANKS = """
import os, sys
from gpudoctor.probes.strategies import run
from gpudoctor.process.die_with_parent import die_with_parent
code, folder = sys.argv[1:3]
parent, children = os.getpid(), []
for number in (0, 1):
    children.append(os.fork())
    if children[-1] == 0:
        die_with_parent(parent)
        os.dup2(os.open(f"{folder}/said-{number}", os.O_CREAT | os.O_WRONLY, 0o600), 1)
        sys.argv = ["", str(number), *sys.argv[2:]]
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
sys.exit(max(os.waitpid(child, 0)[1] for child in children) > 0)
"""


def two_ranks(
    forked_python: Callable[..., ForkedPython], code: str, folder: Path, *arguments: str, limit_s: float
) -> list[list[str]]:
    """Run `code` as two ranks without a launcher; its arguments are its number, `folder` and these. Their lines."""
    command = [sys.executable, "-c", _TWO_RANKS, code, str(folder), *arguments]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with forked_python(command, probes=["strategy"], env=alone, stderr=subprocess.PIPE) as both:
        try:
            _, said = both.communicate(timeout=limit_s)
        finally:
            both.kill()
    assert both.returncode == 0, said
    return [(folder / f"said-{number}").read_text().splitlines() for number in (0, 1)]
