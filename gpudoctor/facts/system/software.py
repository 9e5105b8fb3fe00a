"""Versions of Python, torch, its CUDA and NCCL, read from files: importing torch takes seconds."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Software

_NOT_INSTALLED = Missing("PyTorch is not installed")
_MAX_BYTES = 1 << 20


def read_software(search_path: Sequence[str] | None = None) -> Software:
    """What `import torch` would find on the search path (default: this interpreter's).

    `torch_cuda` is None for a CPU-only build. NCCL comes from the nvidia-nccl package, else from
    the name of the library file; every copy of libnccl is listed in `nccl_copies`, since two of
    them in one process make NCCL fail in odd ways.
    """
    folders = [Path(entry or ".") for entry in (sys.path if search_path is None else search_path)]
    python = ".".join(str(part) for part in sys.version_info[:3])
    torch = next((folder / "torch" for folder in folders if (folder / "torch/__init__.py").is_file()), None)
    if torch is None:
        return Software(
            python=python,
            torch=_NOT_INSTALLED,
            torch_cuda=_NOT_INSTALLED,
            torch_location=_NOT_INSTALLED,
            nccl=_NOT_INSTALLED,
        )
    text = _read(torch / "version.py")
    version = _assigned(text, "__version__")
    cuda = _assigned(text, "cuda")
    copies = _nccl_copies(torch, folders)
    return Software(
        python=python,
        torch=version or Missing(f"{torch / 'version.py'} tells no version", "failed"),
        torch_cuda=cuda if text else Missing(f"{torch / 'version.py'} cannot be read", "failed"),
        torch_location=str(torch),
        nccl=_nccl_version(folders, copies, cuda),
        nccl_copies=tuple(str(copy) for copy in copies),
    )


def _assigned(text: str, name: str) -> str | None:
    """The text that a line assigns: name = '1.2', name: Optional[str] = '1.2'; None where it is None or not there."""
    found = re.search(rf"^{name}\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def _nccl_version(folders: list[Path], copies: list[Path], cuda: str | None) -> str | Missing:
    for folder in folders:
        for entry in sorted(folder.glob("nvidia_nccl_cu*.dist-info")):
            found = re.fullmatch(r"nvidia_nccl_cu\d+-(.+)\.dist-info", entry.name)
            if found:
                return found.group(1)
    for copy in copies:
        found = re.search(r"\.so\.(\d+\.\d+.*)$", copy.resolve().name)
        if found:
            return found.group(1)
    if cuda is None:
        return Missing("a CPU-only build of PyTorch has no NCCL")
    if copies:
        return Missing(f"{copies[0].name} does not tell its version")
    # older builds and NVIDIA's own link NCCL into torch
    return Missing("no NCCL library beside PyTorch: it may be linked into it")


def _nccl_copies(torch: Path, folders: list[Path]) -> list[Path]:
    """libnccl beside torch, in the nvidia packages, and where LD_LIBRARY_PATH leads; each file once."""
    places = [torch / "lib", *(folder / "nvidia/nccl/lib" for folder in folders)]
    places += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    found: dict[Path, Path] = {}
    for place in places:
        for file in sorted(place.glob("libnccl.so.*")):
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
