"""Versions of Python, torch, its CUDA and NCCL, and NCCL's plugins, from files: importing torch takes seconds."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import NcclNetPlugin, Software
from gpudoctor.facts.system.sysfs import list_names, missing_from, present, read_text

_NOT_INSTALLED = Missing("PyTorch is not installed")


def read_software(search_path: Sequence[str] | None = None) -> Software:
    """The torch that `import torch` would find on the search path (default: this interpreter's).

    `torch_cuda` is None for a CPU-only build. The version of NCCL comes from the nvidia-nccl package, else from
    the name of the library file; every copy of libnccl is listed in `nccl_copies`, since two of
    them in one process make NCCL fail in unpredictable ways.
    """
    search_path = sys.path if search_path is None else search_path
    folders = [Path(entry or ".") for entry in search_path if _is_folder(entry or ".")]
    python = ".".join(str(part) for part in sys.version_info[:3])
    torch = next((folder / "torch" for folder in folders if (folder / "torch/__init__.py").is_file()), None)
    if torch is None:
        return Software(python, _NOT_INSTALLED, _NOT_INSTALLED, _NOT_INSTALLED, _NOT_INSTALLED)
    text = known(read_text(torch / "version.py")) or ""
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
    """The string assigned to a name: name = '1.2', name: Optional[str] = '1.2'; None for anything else."""
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
    # older builds and NVIDIA's containers link NCCL statically into torch
    return Missing("no NCCL library beside PyTorch: it may be linked into it")


def _nccl_copies(torch: Path, folders: list[Path]) -> list[Path]:
    """libnccl in torch's folder, in the nvidia packages, and in LD_LIBRARY_PATH; each file once."""
    places = [torch / "lib", *(folder / "nvidia/nccl/lib" for folder in folders)]
    places += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    found: dict[Path, Path] = {}
    for place in places:
        for file in sorted(place.glob("libnccl.so.*")) if _is_folder(place) else ():
            if os.path.exists(file):  # noqa: PTH110 - a link that leads nowhere is no copy
                found.setdefault(file.resolve(), file)
    return list(found.values())


def _is_folder(path: str | Path) -> bool:
    # Path.is_dir and glob raise if a parent folder may not be entered or the name is too long
    return os.path.isdir(path)  # noqa: PTH112


# NCCL's network plugins

# NCCL user guide, NCCL_NET_PLUGIN: libnccl-net.so, or libnccl-net-NAME.so
_FILE = re.compile(r"libnccl-net(?:-[\w.-]+)?\.so(?:\.\d+)*")
_CACHED = re.compile(rb"(/[^\0]{1,4000}/libnccl-net(?:-[\w.-]+)?\.so(?:\.\d+)*)\0")
_CACHE = "etc/ld.so.cache"
_CACHE_BYTES = 16 << 20
# the prefix of each log message of aws-ofi-nccl (nccl_ofi_log.h)
_LIBFABRIC = b"NET/OFI "
_LIBRARY_BYTES = 64 << 20
# ld.so(8): searched without a cache
_DEFAULT_FOLDERS = (
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)


def read_nccl_net_plugins(root: Path, environment: Mapping[str, str]) -> tuple[NcclNetPlugin, ...] | Missing:
    """The plugins in the loader's order: LD_LIBRARY_PATH, its cache, its default folders; each once.

    A path in NCCL_NET_PLUGIN comes first. No library is loaded: the one for libfabric is recognised by its strings.
    Missing (failed, denied) if the cache exists but cannot be read: a plugin may be in it.
    """
    named = environment.get("NCCL_NET_PLUGIN", "")
    found = [named] if named.startswith("/") and present(root / named.lstrip("/")) else []
    folders = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    found += [path for folder in folders for path in _in_folder(root, folder)]
    cached = _in_cache(root)
    if isinstance(cached, Missing):
        return cached
    found += cached
    found += [path for folder in _DEFAULT_FOLDERS for path in _in_folder(root, folder)]
    return tuple(NcclNetPlugin(path, _is_for_libfabric(root / path.lstrip("/"))) for path in dict.fromkeys(found))


def _in_folder(root: Path, folder: str) -> list[str]:
    names = known(list_names(root / folder.lstrip("/"))) or ()
    return [f"{folder.rstrip('/')}/{name}" for name in names if _FILE.fullmatch(name)]


def _in_cache(root: Path) -> list[str] | Missing:
    """Existing paths of plugins among the strings of the loader's cache (ldconfig(8))."""
    try:
        with (root / _CACHE).open("rb") as file:
            text = file.read(_CACHE_BYTES)
    except FileNotFoundError:
        return []  # musl, and images without a cache
    except OSError as error:
        return missing_from(error, f"/{_CACHE}")
    paths = [match[1].decode("utf-8", "replace") for match in _CACHED.finditer(text)]
    return [path for path in paths if present(root / path.lstrip("/"))]


def _is_for_libfabric(path: Path) -> bool | Missing:
    try:
        # O_NONBLOCK: a FIFO of that name would wait for its writer
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return plain and _LIBFABRIC in file.read(_LIBRARY_BYTES)
    except OSError as error:
        return missing_from(error, str(path))
