"""The wheel and the single file in environments in which nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor import __version__
from tests.needs import has, needs
from tests.packages.project_files import ROOT
from tests.subprocesses import completed

QUICK = ("check", "--node", "hgx-h100-8", "--level", "quick")
FAULT = ("--fault", "pcie-width-x8@5")
NOBODY = 65534


def test_the_wheel_works_in_a_clean_environment(built: Callable[[str], Path], tmp_path: Path) -> None:
    wheel = built("gpudoctor_cli-{version}-py3-none-any.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "w"], check=True)
    subprocess.run([tmp_path / "w/bin/pip", "install", "--quiet", wheel], check=True)
    gpudoctor = tmp_path / "w/bin/gpudoctor"
    for more, code in (((), 0), (FAULT, 1)):
        ended = completed([gpudoctor, *QUICK, *more], env={}, cwd=tmp_path)
        assert ended.returncode == code, ended.stderr
        assert "SIMULATED" in ended.stdout  # a Python that crashes ends with 1 too
    assert "_shtab_gpudoctor" in subprocess.check_output([gpudoctor, "completion", "bash"], env={}, text=True)


def test_the_lines_for_nodes_without_internet_work_without_it(tmp_path: Path) -> None:
    if os.environ.get("GPUDOCTOR_PACKAGES") != "1":
        pytest.skip("takes half a minute: make test-packages")
    page = (ROOT / "docs" / "install.md").read_text().split("## Nodes without internet")[1]
    lines = [line.removeprefix("$ ") for line in page.split("```")[1].splitlines()[1:]]
    assert len(lines) == 4
    there, node = tmp_path / "there", tmp_path / "node"
    node.mkdir()
    (there / "gpudoctor").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, there)
    shutil.copytree(ROOT / "gpudoctor", there / "gpudoctor", dirs_exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    env = {**os.environ, "PATH": f"{tmp_path / 'tools/bin'}{os.pathsep}{os.environ['PATH']}"}
    for line in lines[:2]:
        subprocess.run(["sh", "-c", line], cwd=there, env=env, check=True)
    shutil.move(there / "wheelhouse.tar", node)
    offline = {**env, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    for line in lines[2:]:
        subprocess.run(["sh", "-c", line.replace("/opt/gpudoctor", str(node / "v"))], cwd=node, env=offline, check=True)
    ended = completed([node / "v/bin/gpudoctor", *QUICK, *FAULT], env={})
    assert (ended.returncode, "GPU 5" in ended.stdout) == (1, True), ended.stderr


class SingleFile:
    """The single file, copied to a place readable by all users, run in an almost empty environment."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file = Path(shutil.copy(file, folder / "gpudoctor"))
        self.home = folder / "home"
        self.home.mkdir()
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        # modules of others, which no Python of ours must find
        (self.elsewhere / "json.py").write_text("raise SystemExit('the working directory is searched')\n")

    def run(self, *argv: str, user: int | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.home), **environ}
        return completed([self.file, *argv], env=env, cwd=self.elsewhere, user=user)


@pytest.fixture(scope="module")
def single_file(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> SingleFile:
    """One for all tests: it unpacks itself only once."""
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(sys.version_info >= (3, 10))"], capture_output=True
    )
    if version.stdout != b"True\n":
        pytest.skip("this machine's own Python is older than 3.10")
    return SingleFile(built("gpudoctor-{version}-linux-{machine}.pex"), tmp_path_factory.mktemp("single"))


def test_the_single_file_judges_a_node(single_file: SingleFile) -> None:
    assert single_file.run("--version").stdout == f"gpudoctor {__version__}\n"
    good = single_file.run(*QUICK)
    assert (good.returncode, good.stderr) == (0, "")
    assert single_file.run(*QUICK, *FAULT).returncode == 1
    assert single_file.run("explain", "pcie.link-width").returncode == 0
    assert single_file.run("completion", "zsh").stdout.startswith("#compdef gpudoctor")


def test_the_single_file_starts_pythons_of_its_own(single_file: SingleFile) -> None:
    """The collector that reads the driver, and the ranks: without torch they say so, and nothing passes."""
    facts = single_file.run("facts")
    assert (facts.returncode, json.loads(facts.stdout)["source"]["kind"]) == (0, "live")
    if has("cc"):
        argv = ("fake-driver", "--node", "hgx-h100-8", "--fault", "gpu-lost@2", "--", str(single_file.file))
        lost = single_file.run(*argv, "check", "--level", "quick")
        assert lost.returncode == 1
        assert "GPU 2" in lost.stdout
    ranks = single_file.run("check", "collective", "--backend", "gloo", "--ranks", "2")
    assert ranks.returncode == 3
    assert "PyTorch is not installed" in ranks.stdout


@needs("torch")
def test_the_single_file_runs_in_the_python_that_starts_it_and_finds_its_torch(single_file: SingleFile) -> None:
    assert single_file.run(*QUICK).returncode == 0  # in the system's Python, which unpacks it
    env = {"PATH": "/usr/bin:/bin", "HOME": str(single_file.home)}
    asks = "import sys, gpudoctor; print(sys.executable); print(gpudoctor.__file__)"
    argv: list[str | Path] = [sys.executable, single_file.file, "-c", asks]
    told = subprocess.check_output(argv, env={**env, "PEX_INTERPRETER": "1"}, cwd=single_file.home, text=True)
    python, package = told.splitlines()
    assert python == sys.executable
    assert package.startswith(str(single_file.home))
    check = ("check", "collective.correct", "--backend", "gloo", "--ranks", "2", "--json")
    argv = [sys.executable, single_file.file, *check]
    ended = completed(argv, env=env, cwd=single_file.elsewhere)
    measured = json.loads(ended.stdout)["measurements"]["collectives"]
    assert (ended.returncode, bool(measured)) == (0, True), ended.stdout + ended.stderr


@needs("root")
def test_the_single_file_needs_no_home(single_file: SingleFile) -> None:
    """Not below pytest's own folder, which every pytest run closes to other users again."""
    with tempfile.TemporaryDirectory(prefix="gpudoctor-") as name:
        folder, temporary = Path(name), Path(name) / "temporary"
        folder.chmod(0o755)
        temporary.mkdir()
        temporary.chmod(0o777)
        ended = SingleFile(single_file.file, folder).run(
            *QUICK, *FAULT, user=NOBODY, HOME="/proc/nowhere", TMPDIR=str(temporary)
        )
        assert ended.returncode == 1, ended.stderr
        assert "GPU 5" in ended.stdout, ended.stderr  # a Python that crashes ends with 1 too
        assert list(temporary.iterdir()) == []
