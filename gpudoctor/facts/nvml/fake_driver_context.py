"""Detects that this process runs under `gpudoctor fake-driver`: then the node is SIMULATED.

The fake library answers NVML calls. What a driver shows elsewhere (its kernel module in /sys, the
GPUs on the PCI bus, the kernel log) and the rest of the machine come from the same facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, from_json, to_json
from gpudoctor.facts.system.sysfs import ROOT, AnyPath, SysPath

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "GPUDOCTOR_FAKE_DRIVER"
_NODE, _ROOT = "node.json", "root"
# the fields of a node that do not come from its driver
AROUND = ("pci", "host", "environment", "software", "network", "fabric_manager", "storage", "kernel_log")
_NOTE = "read through the library of gpudoctor fake-driver"


class FakeDriverContext(msgspec.Struct, frozen=True):
    """The node whose driver is simulated, and the folder used as / to look for its kernel module."""

    node: Node
    root: AnyPath

    def around(self) -> dict[str, Any]:
        """The facts that do not come from the driver, by field name of `Node`."""
        return {name: getattr(self.node, name) for name in AROUND}

    def placed(self, read: Node) -> Node:
        """The node that was read, with the facts about its GPUs that NVML does not have, marked as simulated."""
        by_bus_id = {gpu.bus_id: gpu for gpu in self.node.gpus}
        gpus = tuple(_completed(gpu, by_bus_id.get(gpu.bus_id)) for gpu in read.gpus)
        own = self.node.source
        notes = (*read.source.notes, *own.notes, _NOTE)
        source = replace(read.source, kind="simulated", name=own.name, faults=own.faults, notes=notes)
        hidden = {name: getattr(self.node.driver, name) for name in ("denied_gpus", "drained_gpus", "excluded_gpus")}
        driver = replace(read.driver, **hidden)
        return replace(read, driver=driver, gpus=gpus, source=source)


def _completed(gpu: Gpu, simulated: Gpu | None) -> Gpu:
    """Add the PCIe path, and names and users of the processes, which do not run on this machine."""
    if simulated is None:
        return gpu
    slot = replace(gpu.pcie, path=simulated.pcie.path, host_generation_max=simulated.pcie.host_generation_max)
    if isinstance(gpu.processes, Missing):
        return replace(gpu, pcie=slot)
    by_pid = {process.pid: process for process in known(simulated.processes) or ()}
    named = ((process, by_pid.get(process.pid, process)) for process in gpu.processes)
    processes = tuple(replace(process, name=one.name, user=one.user) for process, one in named)
    return replace(gpu, pcie=slot, processes=processes)


def root_of(environ: Mapping[str, str]) -> AnyPath:
    """The root below which to look for the driver's kernel module; usable before the context is read."""
    name = environ.get(VARIABLE)
    return ROOT if name is None else SysPath(name or ".") / _ROOT


def read_fake_driver_context(environ: Mapping[str, str]) -> FakeDriverContext | None:
    """The context of the fake driver; None if the driver is this machine's own.

    Raise UserError if the variable names a folder that cannot be read: falling back to this
    machine would report it in place of the simulated one.
    """
    name = environ.get(VARIABLE)
    if name is None:
        return None
    try:
        with open(SysPath(name or ".") / _NODE, "rb") as file:
            node = from_json(file.read())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{VARIABLE}={name}: no fake driver is there ({why}); it is set by gpudoctor fake-driver, and only while "
            "that runs: unset it to read this machine"
        ) from None
    return FakeDriverContext(node, root_of(environ))


def write_fake_driver_context(folder: Path, node: Node) -> None:
    """Write into an empty folder what `read_fake_driver_context` reads. Raise OSError."""
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
    if version := known(node.driver.module_version):
        (modules / "nvidia" / "version").write_text(f"{version}\n", encoding="utf-8", errors="replace")
