"""NCCL's network plugins, as the dynamic loader would find them."""

from __future__ import annotations

import os
from pathlib import Path

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.environment import read_nccl_net_plugins
from tests.narrowed import missing, present
from tests.needs import needs
from tests.sysfs_tree import write

OFI = "/opt/amazon/ofi-nccl/lib/libnccl-net.so"


def cache(root: Path, *paths: str) -> None:
    """A cache as ldconfig writes it: a table of offsets, then names and paths that end in NUL."""
    strings = b"".join(f"{path.rpartition('/')[2]}\0{path}\0".encode() for path in paths)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1" + bytes(range(64)) + strings)


def paths(root: Path, **environment: str) -> list[str]:
    found = present(read_nccl_net_plugins(root, environment))
    return [plugin.path for plugin in found]


def test_a_plugin_is_found_through_the_loaders_cache(tmp_path: Path) -> None:
    write(tmp_path, {OFI: "", "/usr/lib/libnccl.so.2": ""})
    cache(tmp_path, "/usr/lib/libnccl.so.2", OFI, "/gone/libnccl-net-ofi.so")
    assert paths(tmp_path) == [OFI]


def test_the_librarys_path_comes_first_and_each_file_once(tmp_path: Path) -> None:
    mine, system = "/home/me/lib/libnccl-net-mine.so.1", "/usr/lib64/libnccl-net.so"
    others = ("/home/me/lib/libnccl-tuner.so", "/home/me/lib/libnccl-net")
    write(tmp_path, dict.fromkeys((mine, OFI, system, *others), ""))
    cache(tmp_path, OFI, system)
    assert paths(tmp_path, LD_LIBRARY_PATH="relative::/none:/home/me/lib/") == [mine, OFI, system]
    assert paths(tmp_path, NCCL_NET_PLUGIN=OFI) == [OFI, system]
    assert paths(tmp_path, NCCL_NET_PLUGIN="/gone/libnccl-net.so") == [OFI, system]


def test_the_plugin_for_libfabric_is_told_by_its_strings(tmp_path: Path) -> None:
    other, pipe, gone = "/usr/lib/libnccl-net.so", "/usr/lib/libnccl-net-pipe.so", "/usr/lib/libnccl-net-gone.so"
    write(tmp_path, {OFI: "", other: "\x7fELF NCCL RDMA SHARP plugin"})
    (tmp_path / OFI[1:]).write_bytes(b"\x7fELF\0NET/OFI Initializing aws-ofi-nccl 1.17.1\0")
    os.mkfifo(tmp_path / pipe[1:])
    (tmp_path / gone[1:]).symlink_to("/nowhere")
    found = present(read_nccl_net_plugins(tmp_path, {"LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib"}))
    told = {plugin.path: plugin.libfabric for plugin in found}
    assert (told[OFI], told[other], told[pipe]) == (True, False, False)
    assert isinstance(told[gone], Missing)


def test_without_a_plugin_there_is_none_with_a_cache_or_without(tmp_path: Path) -> None:
    write(tmp_path, {OFI: ""})  # installed, and the loader does not look there
    assert read_nccl_net_plugins(tmp_path, {}) == ()
    cache(tmp_path, "/usr/lib/libnccl.so.2")
    assert read_nccl_net_plugins(tmp_path, {}) == ()


@needs("a user other than root")
def test_a_cache_that_may_not_be_read_is_not_taken_for_one_without_plugins(tmp_path: Path) -> None:
    cache(tmp_path, OFI)
    (tmp_path / "etc/ld.so.cache").chmod(0)
    _is_missing(tmp_path, "denied")


def test_a_cache_that_cannot_be_read_is_not_taken_for_one_without_plugins(tmp_path: Path) -> None:
    (tmp_path / "etc/ld.so.cache").mkdir(parents=True)
    _is_missing(tmp_path, "failed")


def _is_missing(root: Path, kind: str) -> None:
    assert missing(read_nccl_net_plugins(root, {})).kind == kind


def test_this_machines_own_cache_is_read() -> None:
    assert not isinstance(read_nccl_net_plugins(Path("/"), {}), Missing)
