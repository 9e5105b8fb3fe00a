"""Has `gpudoctor fake-driver` put a driver library of its own before this process? Then the node is SIMULATED.

The library answers NVML's calls. What a driver shows outside of it (its kernel module in /sys, the
GPUs on the PCI bus, the kernel log) and the machine around it come from the same facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, from_json, to_json

VARIABLE = "GPUDOCTOR_FAKE_DRIVER"
_NODE, _ROOT = "node.json", "root"
# what a node has around its driver
AROUND = ("pci", "host", "environment", "software", "network", "fabric_manager", "storage", "kernel_log")
_NOTE = "read through the library of gpudoctor fake-driver"


class FakeDriverContext(msgspec.Struct, frozen=True):
    """The node whose driver is played, and the folder that stands for / to those who look for its kernel module."""

    node: Node
    root: Path

    def around(self) -> dict[str, Any]:
        """What is not the driver's to tell, by the names that `Node` has for it."""
        return {name: getattr(self.node, name) for name in AROUND}

    def placed(self, read: Node) -> Node:
        """The node as it was read, with what the driver does not tell of its GPUs, and the truth about its source."""
        told = {gpu.bus_id: gpu for gpu in self.node.gpus}
        gpus = tuple(_completed(gpu, told.get(gpu.bus_id)) for gpu in read.gpus)
        played = self.node.source
        notes = (*read.source.notes, *played.notes, _NOTE)
        source = replace(read.source, kind="simulated", name=played.name, faults=played.faults, notes=notes)
        hidden = self.node.driver
        driver = replace(read.driver, denied_gpus=hidden.denied_gpus, drained_gpus=hidden.drained_gpus)
        return replace(read, driver=driver, gpus=gpus, source=source)


def _completed(gpu: Gpu, told: Gpu | None) -> Gpu:
    """With the way on the PCI bus, and whose the processes are: they do not run on this machine."""
    if told is None:
        return gpu
    slot = replace(gpu.pcie, path=told.pcie.path, host_generation_max=told.pcie.host_generation_max)
    if isinstance(gpu.processes, Missing):
        return replace(gpu, pcie=slot)
    by_pid = {process.pid: process for process in known(told.processes) or ()}
    processes = []
    for process in gpu.processes:
        known_as = by_pid.get(process.pid)
        if known_as is not None:
            process = replace(process, name=known_as.name, user=known_as.user)
        processes.append(process)
    return replace(gpu, pcie=slot, processes=tuple(processes))


def root_of(environ: Mapping[str, str]) -> Path:
    """Where the driver's kernel module is to be looked for, before `stand_in` has read what is played."""
    name = environ.get(VARIABLE)
    return Path("/") if name is None else Path(name) / _ROOT


def stand_in(environ: Mapping[str, str]) -> FakeDriverContext | None:
    """None where the driver is this machine's own.

    Raise UserError where the variable names a folder that cannot be read: falling back to this
    machine would report it in the place of another.
    """
    name = environ.get(VARIABLE)
    if name is None:
        return None
    folder = Path(name)
    try:
        node = from_json((folder / _NODE).read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{VARIABLE}={name}: no fake driver is there ({why}); it is set by gpudoctor fake-driver, and only while "
            "that runs: unset it to read this machine"
        ) from None
    return FakeDriverContext(node, root_of(environ))


def write_stand_in(folder: Path, node: Node) -> None:
    """Lay down in an empty folder what `stand_in` reads. Raise OSError."""
    (folder / _NODE).write_bytes(to_json(node))
    root = folder / _ROOT
    (root / "proc").mkdir(parents=True)
    nouveau = node.driver.nouveau_loaded
    if not isinstance(nouveau, Missing):
        (root / "proc" / "modules").write_text("nouveau 1 0 - Live 0x0\n" if nouveau else "", encoding="utf-8")
    modules = root / "sys" / "module"
    modules.mkdir(parents=True)
    if node.driver.module_loaded is False or (isinstance(node.driver.module_loaded, Missing) and not node.gpus):
        return
    if isinstance(node.driver.module_loaded, Missing) and "WSL" in (known(node.host.kernel) or ""):
        # the driver runs in Windows, behind this device
        (root / "dev").mkdir()
        (root / "dev" / "dxg").touch()
        return
    (modules / "nvidia").mkdir()
    (modules / "nvidia" / "initstate").write_text("live\n", encoding="utf-8")
    if isinstance(node.driver.module_version, str):
        (modules / "nvidia" / "version").write_text(
            f"{node.driver.module_version}\n", encoding="utf-8", errors="replace"
        )
