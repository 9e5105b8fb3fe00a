"""NCCL's network plugins: which of them the dynamic loader would find."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import NcclNetPlugin
from gpudoctor.facts.system.sysfs import list_names, missing_from, present

# NCCL user guide, NCCL_NET_PLUGIN: libnccl-net.so, or libnccl-net-NAME.so
_FILE = re.compile(r"libnccl-net(?:-[\w.-]+)?\.so(?:\.\d+)*")
_CACHED = re.compile(rb"(/[^\0]{1,4000}/libnccl-net(?:-[\w.-]+)?\.so(?:\.\d+)*)\0")
_CACHE = "etc/ld.so.cache"
_CACHE_BYTES = 16 << 20
# what aws-ofi-nccl begins each of its messages with (its nccl_ofi_log.h)
_LIBFABRIC = b"NET/OFI "
_LIBRARY_BYTES = 64 << 20
# ld.so(8): what is searched without a cache
_DEFAULT_FOLDERS = (
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)


def read_nccl_net_plugins(root: Path, environment: Mapping[str, str]) -> tuple[NcclNetPlugin, ...] | Missing:
    """The plugins in the loader's own order: LD_LIBRARY_PATH, its cache, its default folders; each once.

    A path in NCCL_NET_PLUGIN comes first. No library is loaded: which one is for libfabric is told by its strings.
    Missing (failed, denied) if the cache is there and cannot be read: a plugin may be in it.
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
    names = list_names(root / folder.lstrip("/"))
    if isinstance(names, Missing):
        return []
    return [f"{folder.rstrip('/')}/{name}" for name in sorted(names) if _FILE.fullmatch(name)]


def _in_cache(root: Path) -> list[str] | Missing:
    """The paths that end in such a name, among the strings of the cache that ldconfig wrote."""
    try:
        with (root / _CACHE).open("rb") as file:
            text = file.read(_CACHE_BYTES)
    except FileNotFoundError:
        return []  # musl, and images that were never given one
    except OSError as error:
        return missing_from(error, f"/{_CACHE}")
    paths = [match[1].decode("utf-8", "replace") for match in _CACHED.finditer(text)]
    return [path for path in paths if present(root / path.lstrip("/"))]


def _is_for_libfabric(path: Path) -> bool | Missing:
    try:
        # without waiting for the writer of a FIFO of that name
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return plain and _LIBFABRIC in file.read(_LIBRARY_BYTES)
    except OSError as error:
        return missing_from(error, str(path))
