"""Facts -> fake driver -> our own reader -> the same facts; what no driver reports is listed here, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.model.gpu import GpuPair
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Driver, Node
from gpudoctor.facts.nvml.read_node import read_nvml, version_numbers
from gpudoctor.facts.simulated.load import node_names
from gpudoctor.testing import FakeNvml, load
from tests.facts.nvml_nodes import Heard, make_root

# in the facts, and Missing when they come back
NOT_TOLD = {
    "gpu.pcie.path": "the bridges above a GPU stand in /sys",
    "gpu.pcie.host_generation_max": "what the slot can do stands in /sys",
    "gpu.processes.name": "NVML tells the pid; the name stands in /proc",
    "gpu.processes.user": "NVML tells the pid; the owner stands in /proc",
    "gpu.nvlinks.remote_bus_id": "where all links lead to switches, our reader asks for no address",
    "gpu.throttle_times.hw_thermal_us": "before driver 575 one counter stands for all thermal slowdowns",
    "gpu.throttle_times.hw_power_brake_us": "counted since driver 575",
    "gpu.inforom_corrupted": "not read beside a job: it reads flash",
    "gpu.utilization.gpu_pct": "one call tells both rates or none, and GB10 has no memory rate",
}
# Missing in the facts, and present when they come back: a capture may leave out what a driver always reports
ALWAYS_TOLD = {
    "driver.init_code": "without a kernel module our reader knows nvmlInit's answer (9) and does not ask",
    "pair.nvlinks": "counted from the links of both GPUs",
    "driver.device_count": "the GPUs of the facts are all there are",
    "gpu.pci_device_id": "part of one answer with the bus id; 0 where the facts do not hold it",
    "gpu.pci_subsystem_id": "part of one answer with the bus id; 0 where the facts do not hold it",
}
ABSENT, DENIED = ("missing", "unsupported"), ("missing", "denied")


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted path and value of every leaf. Of a Missing the kind counts; a driver has only "unsupported"."""
    if isinstance(value, Missing):
        yield path, ("missing", "unsupported" if value.kind in ("absent", "not_asked") else value.kind)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from leaves(f"{path}.{name}", getattr(value, name))
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct) and path != "gpu.pcie.path":
        for place, one in enumerate(value):
            yield from ((f"{path}[{place}]{rest.removeprefix(path)}", leaf) for rest, leaf in leaves(path, one))
    else:
        yield path, value


def through_the_driver(node: Node, root: Path) -> tuple[Node, set[str]]:
    """The NVML part of the node as our reader reads it from the fake, and what the fake did not know."""
    heard, nvml = Heard(), FakeNvml(node)
    driver = read_nvml(heard.take, nvml, root)
    back = Node(
        driver=driver,
        gpus=tuple(heard.gpus[index] for index in sorted(heard.gpus)),
        pairs=tuple(heard.pairs_by_name[key] for key in sorted(heard.pairs_by_name)),
    )
    return back, nvml.unknown


def nvml_part(node: Node) -> dict[str, Any]:
    driver = Driver(
        init_code=node.driver.init_code,
        library_version=node.driver.library_version,
        cuda_version=node.driver.cuda_version,
        device_count=node.driver.device_count,
    )
    told = {(pair.a, pair.b): pair for pair in known(node.pairs) or ()}
    indices = sorted(gpu.index for gpu in node.gpus)
    pairs = {(a, b): told.get((a, b), GpuPair(a, b)) for a in indices for b in indices if a < b}
    found = dict(leaves("driver", driver))
    for gpu in node.gpus:
        # what nvidia-smi printed for a field is no answer of a call
        errors = tuple(error for error in gpu.errors if error.call.startswith("nvml"))
        gpu = msgspec.structs.replace(gpu, errors=errors)
        found |= {f"{gpu.index} {path}": value for path, value in leaves("gpu", gpu)}
    for (a, b), pair in pairs.items():
        found |= {f"{a}-{b} {path}": value for path, value in leaves("pair", pair)}
    return found


def changed(node: Node, root: Path) -> set[str]:
    """The kinds of leaves that do not come back as they were; each must be listed above, and as Missing as listed."""
    back, unknown = through_the_driver(node, root)
    assert unknown == set()
    before, after = nvml_part(node), nvml_part(back)
    assert before.keys() == after.keys()
    paths = set()
    for name in before:
        if before[name] != after[name]:
            path = re.sub(r"\[\d+\]", "", name).rpartition(" ")[2]
            gone = after[name] == ABSENT if path in NOT_TOLD else path in ALWAYS_TOLD and before[name] == ABSENT
            # unread links must not come back as those of a GPU that has none
            unread = path == "gpu.nvlinks" and (before[name], after[name]) == (ABSENT, DENIED)
            assert gone or unread, f"{name}: {before[name]} came back as {after[name]}"
            paths |= set() if unread else {path}
    # unreported leaves depend on more than the leaf's name
    if version_numbers(node.driver.library_version) >= (575,):
        assert not any("throttle_times" in path for path in paths)
    for gpu, read in zip(sorted(node.gpus, key=lambda gpu: gpu.index), back.gpus, strict=True):
        for link, link_back in zip(known(gpu.nvlinks) or (), known(read.nvlinks) or (), strict=True):
            assert (
                link.remote_kind == "switch" or link_back.remote_bus_id == link.remote_bus_id or link.state != "active"
            )
    # and what has come through the driver once comes through unchanged, reasons and all
    again, _ = through_the_driver(back, root)
    assert again.gpus == back.gpus
    assert again.pairs == back.pairs
    return paths


def root_of(node: Node, folder: Path) -> Path:
    folder.mkdir()
    if node.driver.module_loaded is not False:
        return make_root(folder)
    (folder / "proc").mkdir()
    (folder / "proc/modules").write_text("ext4 1 0 - Live 0x0\n")
    return folder


@pytest.mark.wide
def test_every_simulated_node_comes_back_through_the_driver(tmp_path: Path) -> None:
    paths: set[str] = set()
    for name in node_names():
        node = load(name)
        paths |= changed(node, root_of(node, tmp_path / name))
    listed = NOT_TOLD.keys() | {"pair.nvlinks", "driver.init_code"}
    assert paths == listed, "a leaf that is listed as not told came back: take it off the list"


@pytest.mark.wide
def test_every_capture_comes_back_through_the_driver(tmp_path: Path, captures: Path) -> None:
    paths: set[str] = set()
    count = 0
    for source in sorted(captures.iterdir()):
        try:
            node = load(source)
        except SourceError:
            continue  # a README
        count += 1
        paths |= changed(node, root_of(node, tmp_path / source.name))
    assert count >= 5
    assert paths <= NOT_TOLD.keys() | ALWAYS_TOLD.keys()


@pytest.mark.parametrize(
    ("name", "faults", "leaf", "value"),
    [
        ("hgx-h100-8", ["pcie-width-x8@3"], "3 gpu.pcie.width", 8),
        ("hgx-h100-8", ["row-remap-pending@1"], "1 gpu.memory_repair.remap_pending", True),
        ("hgx-h100-8", ["nvlink-link-down@2:4"], "2 gpu.nvlinks[4].state", "inactive"),
        ("hgx-h100-8", ["gpu-reset-required@5"], "5 gpu.recovery_action", "gpu-reset"),
        ("hgx-h100-8", ["gpu-lost@2"], "2 gpu.thermal.gpu_c", ("missing", "failed")),
        ("rtx3090-nvlink-2", ["p2p-off@0-1"], "0-1 pair.p2p_read", "CNS"),
    ],
)
def test_a_fault_comes_through_the_driver(name: str, faults: list[str], leaf: str, value: Any, tmp_path: Path) -> None:
    node = load(name, faults)
    back, _ = through_the_driver(node, make_root(tmp_path))
    assert nvml_part(back)[leaf] == nvml_part(node)[leaf]
    assert nvml_part(back)[leaf] == value
    assert nvml_part(load(name))[leaf] != value


def test_a_lost_gpu_is_lost_in_the_drivers_own_words(tmp_path: Path) -> None:
    back, _ = through_the_driver(load("hgx-h100-8", ["gpu-lost@2"]), make_root(tmp_path))
    assert {error.code for error in back.gpus[2].errors} == {15}
    assert [gpu.index for gpu in back.gpus if gpu.errors] == [2]
