"""The contents of the wheel and the sdist."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import gpudoctor
from tests.packages.project_files import ROOT, files_of_the_project


def build(kind: str, source: Path, folder: Path) -> Path:
    """What hatchling builds from a tree, as in `make dist`."""
    argv = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    subprocess.run(argv, cwd=source, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {str(path.relative_to(ROOT)) for path in files_of_the_project("gpudoctor")}
    kinds = {Path(name).suffix for name in names}
    assert {".md", ".css", ".html", ".tcss", ".js", ".yaml", ".json", ".c", ".h", ".typed"} <= kinds


def test_the_wheel_tells_its_licence_and_addresses(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = message_from_bytes(archive.read(name))
    assert (told["License-Expression"], told.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert {url.partition(",")[0] for url in told.get_all("Project-URL", [])} >= {"Repository", "Changelog", "Issues"}
    assert told["Description-Content-Type"] == "text/markdown"
    assert "torch" not in {need.partition(">")[0] for need in told.get_all("Requires-Dist", []) if "extra" not in need}


@pytest.mark.wide
def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        # the argument `filter` is newer than Python 3.11.2
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    tree = tmp_path / f"gpudoctor_cli-{gpudoctor.__version__}"
    assert {"acceptance", "tests", "docs", "contrib", "Makefile", "LICENSE"} <= {path.name for path in tree.iterdir()}
    assert build("wheel", tree, tmp_path / "again").read_bytes() == wheel.read_bytes()
