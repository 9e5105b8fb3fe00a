"""GPUs on the PCI bus that the driver does not show this process: out of its scope, or gone."""

from __future__ import annotations

import msgspec

from gpudoctor.checks.core.scope import confined, shown_count, slurm_gave
from gpudoctor.checks.core.trust import hidden
from gpudoctor.checks.driver.loaded import pci_gpus
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, PciDevice


class Unseen(msgspec.Struct, frozen=True):
    """`outside`: how many are not this process's to see, and `why` in words. `gone`: these are a fault.

    `lacking` is how many GPUs the job should have besides: fewer than `gone` if only Slurm's number
    tells, and nothing which; more if one is not even on the bus.
    """

    outside: int = 0
    why: str | None = None
    gone: tuple[PciDevice, ...] = ()
    lacking: int = 0


def bus_gpus(node: Node) -> tuple[PciDevice, ...] | Missing:
    """The GPUs on the bus that this system may use: none that it handed to virtual machines."""
    gpus = pci_gpus(node)
    return gpus if isinstance(gpus, Missing) else tuple(d for d in gpus if not _handed_on(node, d))


def unseen(node: Node) -> Unseen:
    """What becomes of each GPU that is on the bus and that the driver does not show."""
    gpus, shown = known(bus_gpus(node)) or (), shown_count(node)
    told = {gpu.bus_id for gpu in node.gpus}
    missing = tuple(device for device in gpus if device.bus_id not in told)
    more = len(gpus) - shown
    if not missing or more <= 0:
        return Unseen()
    if why := hidden(node):
        return Unseen(more, why)
    why, denied, gave = confined(node), known(node.driver.denied_gpus), slurm_gave(node)
    if why and gave and gave.count == shown:
        return Unseen(more, why)
    if denied:
        gone = tuple(device for device in missing if device.bus_id not in denied)
        # those that are shown without a handle are judged by gpu.lost
        gone = gone if len(gone) > shown - len(node.gpus) else ()
        lacking = max(len(gone), gave.count - shown if gave else 0)
        return Unseen(len(missing) - len(gone) if gone else more, why, gone, lacking)
    lacking = gave.count - shown if gave and denied is None else more
    return Unseen(gone=missing, lacking=min(lacking, len(missing)))


def _handed_on(node: Node, device: PciDevice) -> bool:
    """Given to a virtual machine, or a virtual function of a GPU that hosts vGPUs: not missing."""
    if "vfio" in (known(device.driver) or ""):
        return True
    hosts = {g.bus_id.rpartition(":")[0] for g in node.gpus if known(g.settings.virtualization) == "host-vgpu"}
    shown = {g.bus_id for g in node.gpus}
    return device.bus_id not in shown and device.bus_id.rpartition(":")[0] in hosts
