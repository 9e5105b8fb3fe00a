"""GPUs on the PCI bus that the driver does not show this process: out of its scope, or gone."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.checks.core.scope import confined, shown_count, slurm_gave
from gpudoctor.checks.core.trust import REFUSED, hidden, refused_handles
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
    """The GPUs on the bus that this system may use: none that it handed to virtual machines, or that are drained."""
    gpus, drained = pci_gpus(node), drained_gpus(node)
    if isinstance(gpus, Missing):
        return gpus
    return tuple(d for d in gpus if not _handed_on(node, d) and d.bus_id not in drained)


def drained_gpus(node: Node) -> tuple[str, ...]:
    """Bus ids of the GPUs that an operator took from use, and that the driver does not show for that."""
    shown = {gpu.bus_id for gpu in node.gpus}
    return tuple(bus_id for bus_id in known(node.driver.drained_gpus) or () if bus_id not in shown)


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
    # a GPU without a handle for lack of permission is this process's not to see; the driver may count it, or not
    refused = max(0, min(more, len(node.gpus) + refused_handles(node) - shown))
    if refused == more:
        return Unseen(more, REFUSED)
    why, denied, gave = confined(node), known(node.driver.denied_gpus), slurm_gave(node)
    if why and gave and gave.count == shown:
        return Unseen(more, why)
    if denied:
        gone = tuple(device for device in missing if device.bus_id not in denied)
        # those that are shown without a handle are judged by gpu.lost
        gone = gone if len(gone) > shown - len(node.gpus) else ()
        lacking = max(len(gone), gave.count - shown if gave else 0)
        return Unseen(len(missing) - len(gone) if gone else more, why, gone, lacking)
    lacking = gave.count - shown if gave and denied is None else more - refused
    return Unseen(refused, REFUSED if refused else None, missing, min(lacking, len(missing)))


class NotShown(msgspec.Struct, frozen=True):
    """What a GPU that the driver does not show is: `outside` of what is judged, `gone`, or `open`: one of several.

    `why` says why it is outside, or what nobody can tell.
    """

    kind: Literal["outside", "gone", "open"]
    why: str | None = None


def not_shown(node: Node, bus_id: str) -> NotShown:
    """What becomes of a GPU of this bus id, which is none of `node.gpus`."""
    if why := hidden(node):
        return NotShown("outside", why)
    if bus_id in drained_gpus(node):
        return NotShown("outside", "an operator drained it")
    if bus_id in (known(node.driver.denied_gpus) or ()):
        return NotShown("outside", "its device file may not be opened here")
    away = unseen(node)
    if any(device.bus_id == bus_id for device in away.gone):
        if len(away.gone) <= away.lacking:
            return NotShown("gone")
        return NotShown("open", f"{len(away.gone)} GPUs are not shown here, and {away.lacking} of them should be")
    gave, shown = slurm_gave(node), shown_count(node)
    if gave and gave.count > shown and not known(node.driver.denied_gpus):
        return NotShown("open", f"Slurm gave this job {gave.count} GPUs, and the driver shows {shown}")
    if why := confined(node):
        return NotShown("outside", why)
    if refused_handles(node) and not away.gone:
        return NotShown("outside", REFUSED)
    return NotShown("gone")


def _handed_on(node: Node, device: PciDevice) -> bool:
    """Given to a virtual machine, or a virtual function of a GPU that hosts vGPUs: not missing."""
    if "vfio" in (known(device.driver) or ""):
        return True
    hosts = {g.bus_id.rpartition(":")[0] for g in node.gpus if known(g.settings.virtualization) == "host-vgpu"}
    shown = {g.bus_id for g in node.gpus}
    return device.bus_id not in shown and device.bus_id.rpartition(":")[0] in hosts
