"""The Debian package: what it holds, and that it can be installed, run and removed without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudoctor import __version__
from gpudoctor.cli.command_table import COMMANDS
from tests.needs import has, needs
from tests.packages.project_files import ROOT
from tests.subprocesses import completed, shell_program

pytestmark = needs("dpkg-deb")
CLEAN = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def run(*argv: str | Path, code: int = 0, env: dict[str, str] = CLEAN, cwd: Path | None = None) -> str:
    ended = completed(argv, env=env, cwd=cwd)
    assert ended.returncode == code, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def small_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package around a folder of packages that is all but empty: building it takes a second instead of a minute."""
    folder = tmp_path_factory.mktemp("deb")
    metadata = folder / "site" / "some_library-1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: some-library\nLicense-Expression: MIT\n\nLicense: of the description\n")
    (folder / "site" / "__pycache__").mkdir()
    (folder / "site" / "__pycache__" / "stale.pyc").touch()
    started = shell_program(folder / "bin" / "gpudoctor", f'exec {sys.executable} -m gpudoctor "$@"')
    packages = ROOT / "contrib" / "packages"
    run(sys.executable, packages / "man_pages.py", folder / "man", env=dict(os.environ))
    path = f"{started.parent}{os.pathsep}{os.environ['PATH']}"
    argv: list[str | Path] = [packages / "build_deb.sh", folder / "site", folder / "man", "1.2", "x86_64", folder]
    run(*argv, env={**os.environ, "PATH": path}, cwd=ROOT)
    return folder / "gpudoctor_1.2_amd64.deb"


@pytest.mark.wide
def test_the_package_holds_command_pages_completions_and_units(small_package: Path, tmp_path: Path) -> None:
    run("dpkg-deb", "--extract", small_package, tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {f"usr/share/man/man1/gpudoctor-{name}.1.gz" for name in COMMANDS} <= files
    assert {
        "usr/bin/gpudoctor",
        "usr/lib/gpudoctor/some_library-1.dist-info/METADATA",
        "usr/lib/systemd/system/gpudoctor-agent.service",
        "usr/share/bash-completion/completions/gpudoctor",
        "usr/share/doc/gpudoctor/examples/slurm/prolog.sh",
        "usr/share/fish/vendor_completions.d/gpudoctor.fish",
        "usr/share/zsh/vendor-completions/_gpudoctor",
    } <= files
    assert [name for name in files if name.endswith(".pyc") or name.startswith(("etc/", "opt/"))] == []
    assert "some_library-1: MIT\n" in (tmp_path / "usr/share/doc/gpudoctor/copyright").read_text()
    for unit in (tmp_path / "usr/lib/systemd/system").iterdir():
        assert "/opt/" not in unit.read_text(), unit.name
    owners = {line.split()[1] for line in run("dpkg-deb", "--contents", small_package).splitlines()}
    assert owners == {"root/root"}


@pytest.mark.wide
def test_the_package_says_what_it_needs(small_package: Path) -> None:
    fields = dict(
        line.split(": ", 1) for line in run("dpkg-deb", "--field", small_package).splitlines() if ": " in line
    )
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("gpudoctor", "1.2", "amd64")
    assert fields["Depends"].startswith("python3 (>= 3.10), python3 (<< 3.15)")


@pytest.fixture
def installed(built: Callable[[str], Path]) -> Iterator[None]:
    """The package on this machine, for as long as the test runs."""
    package = built("gpudoctor_{version}_{deb}.deb")
    state = completed(["dpkg-query", "--show", "gpudoctor"])
    if state.returncode == 0 or Path("/usr/lib/gpudoctor").exists():
        pytest.skip("gpudoctor is installed on this machine, and the test would replace it")
    try:
        run("dpkg", "--install", package, env={**CLEAN, "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
        yield
    finally:
        subprocess.run(["dpkg", "--purge", "gpudoctor"], check=True, capture_output=True)


def left_behind() -> list[Path]:
    folders = (Path("/usr/lib/gpudoctor"), Path("/usr/bin/gpudoctor"), Path("/usr/share/doc/gpudoctor"))
    return [path for path in folders if path.exists()]


@needs("root")
@pytest.mark.usefixtures("installed")
def test_the_installed_package_works_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the working directory is searched')\n")
    assert run("gpudoctor", "--version") == f"gpudoctor {__version__}\n"
    run("gpudoctor", "check", "--node", "hgx-h100-8", "--level", "quick", cwd=tmp_path)
    run("gpudoctor", "check", "--node", "hgx-h100-8", "--fault", "pcie-width-x8@5", "--level", "quick", code=1)
    if has("cc"):
        argv = ["fake-driver", "--node", "hgx-h100-8", "--fault", "gpu-lost@2", "--", "gpudoctor", "check", "--level"]
        home = {**CLEAN, "HOME": str(tmp_path)}
        assert "GPU 2" in run("gpudoctor", *argv, "quick", code=1, env=home, cwd=tmp_path)
    assert "SIMULATED" in run("gpudoctor", "agent", "--once", "--node", "hgx-h100-8", "--state", tmp_path)
    if has("man"):
        assert "--include-facts" in run("man", "gpudoctor-check", env={**CLEAN, "MANWIDTH": "200"})
        assert "which part is at fault" in run("man", "gpudoctor", env={**CLEAN, "MANWIDTH": "200"})
    script = "/usr/share/bash-completion/completions/gpudoctor"
    assert "_shtab_gpudoctor" in run("bash", "-c", f". {script}; complete -p gpudoctor")
    assert run("dpkg", "--verify", "gpudoctor") == ""  # every file is as it was packed
    run("dpkg", "--purge", "gpudoctor", env={**CLEAN, "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    assert left_behind() == []
