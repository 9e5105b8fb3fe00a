"""Versions of torch, CUDA and NCCL, read from files alone."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.environment import read_software
from tests.conftest import ROOT
from tests.narrowed import missing
from tests.subprocesses import completed

CUDA_VERSION = (
    "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n"
    "__version__ = '2.5.1+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"
)


@pytest.fixture(autouse=True)
def _no_library_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


def install_torch(folder: Path, version: str = CUDA_VERSION) -> Path:
    torch = folder / "torch"
    torch.mkdir(parents=True)
    # importing it would break: it must only be read
    (torch / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    (torch / "version.py").write_text(version)
    return torch


def add_nccl(folder: Path, name: str = "libnccl.so.2") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"\x7fELF")
    return folder / name


def test_without_torch_every_leaf_says_so_and_is_absent(tmp_path: Path) -> None:
    software = read_software([str(tmp_path)])
    assert software.python == platform.python_version()
    missing = Missing("PyTorch is not installed: pip install 'torch>=2.4' 'numpy>=1.26'", "absent")
    assert (software.torch, software.torch_cuda, software.nccl, software.torch_location) == (missing,) * 4


def test_a_cuda_build_with_its_nccl_package(tmp_path: Path) -> None:
    torch = install_torch(tmp_path)
    (tmp_path / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir()
    library = add_nccl(tmp_path / "nvidia/nccl/lib")
    software = read_software([str(tmp_path / "nowhere"), str(tmp_path)])
    assert (software.torch, software.torch_cuda, software.nccl) == ("2.5.1+cu124", "12.4", "2.21.5")
    assert software.torch_location == str(torch)
    assert software.nccl_copies == (str(library),)


def test_a_cpu_build_has_neither_cuda_nor_nccl(tmp_path: Path) -> None:
    install_torch(tmp_path, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    software = read_software([str(tmp_path)])
    assert (software.torch, software.torch_cuda) == ("2.13.0+cpu", None)
    assert missing(software.nccl).kind == "absent"


def test_the_library_file_tells_the_version_where_there_is_no_package(tmp_path: Path) -> None:
    torch = install_torch(tmp_path)
    real = add_nccl(torch / "lib", "libnccl.so.2.19.3")
    (torch / "lib/libnccl.so.2").symlink_to(real)
    software = read_software([str(tmp_path)])
    assert software.nccl == "2.19.3"
    assert len(software.nccl_copies) == 1


def test_a_second_copy_on_the_library_path_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_torch(tmp_path)
    own, other = add_nccl(tmp_path / "nvidia/nccl/lib"), add_nccl(tmp_path / "opt/nccl")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{other.parent}:{tmp_path / 'gone'}")
    assert read_software([str(tmp_path)]).nccl_copies == (str(own), str(other))


def test_folders_that_cannot_be_looked_into_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_torch(tmp_path)
    own = add_nccl(tmp_path / "nvidia/nccl/lib")
    (tmp_path / "loop").mkdir()
    loop = tmp_path / "loop/libnccl.so.2"
    loop.symlink_to(loop)
    bad = tmp_path / ("x" * 300)  # as root, which tests may run as, no folder is closed
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{bad}:{loop.parent}")
    software = read_software([str(bad), str(tmp_path)])
    assert software.torch == "2.5.1+cu124"
    assert software.nccl_copies == (str(own),)


def test_an_nccl_without_a_version_in_sight_is_missing_with_the_reason(tmp_path: Path) -> None:
    install_torch(tmp_path)
    linked_in = read_software([str(tmp_path)]).nccl
    add_nccl(tmp_path / "nvidia/nccl/lib")
    assert missing(linked_in).reason != missing(read_software([str(tmp_path)]).nccl).reason


def test_a_broken_installation_is_a_failure_not_an_absence(tmp_path: Path) -> None:
    torch = install_torch(tmp_path)
    (torch / "version.py").unlink()
    software = read_software([str(tmp_path)])
    assert (missing(software.torch).kind, missing(software.torch_cuda).kind) == ("failed", "failed")


def test_this_interpreters_torch_is_found_without_being_imported() -> None:
    code = (
        "import sys; from gpudoctor.facts.system.environment import read_software\n"
        "print(read_software().torch); assert 'torch' not in sys.modules"
    )
    done = completed([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert done.stdout.strip()
