"""GPUs on the PCI bus that the driver does not show to this process: outside its scope, or faulty."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.checks.core.scope import pci_gpus, shown_count, slurm_allocation, why_confined
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, PciDevice

# in the names of drivers that hold a device for a virtual machine: vfio-pci and its variants, and those before it
_FOR_GUESTS = ("vfio", "pci-stub", "pciback")
REFUSED = "the driver denies this process some GPUs (device cgroup or permissions)"


def why_narrowed(node: Node) -> str | None:
    """Why this process may see fewer GPUs than the node has, as text; None if it sees all.

    Reasons are a container, NVIDIA_VISIBLE_DEVICES with a list, or a job confined to its GPUs: fewer GPUs are then
    the scope, not a fault. A denied handle excuses only its own GPU: see `refused_handles`.
    """
    return why_hidden(node) or why_confined(node)


def why_hidden(node: Node) -> str | None:
    """Why GPUs may be hidden without any trace of which (a container or a list), as text; None if they are not."""
    engine = known(node.host.container)
    if engine or known(node.host.virtualization) == "container":
        return f"inside a container ({engine or 'unknown engine'})"
    visible = node.environment.get("NVIDIA_VISIBLE_DEVICES")
    if visible not in (None, "", "all", "void", "none"):
        return f"NVIDIA_VISIBLE_DEVICES={visible}"
    return None


def refused_handles(node: Node) -> int:
    """The number of GPUs whose handle the driver denied this process."""
    return sum(denied(text) for text in node.driver.handle_errors)


def denied(handle_error: str) -> bool:
    """Whether a GPU's handle was refused for lack of permission (NVML 4, or 17 from a device cgroup)."""
    text = handle_error.lower()
    return any(sign in text for sign in ("permission", "operating system", "(4)", "(17)", "code 4", "code 17"))


class HiddenGpus(msgspec.Struct, frozen=True):
    """GPUs on the bus that the driver does not show.

    `outside`: how many of them this process is not meant to see, and `why` as text. `missing`: those that are faulty.
    `lacking`: how many GPUs are missing; less than `missing` if only Slurm's number shows that some are missing and
    not which; more if one is not even on the bus.
    """

    outside: int = 0
    why: str | None = None
    missing: tuple[PciDevice, ...] = ()
    lacking: int = 0


def bus_gpus(node: Node) -> tuple[PciDevice, ...] | Missing:
    """The GPUs on the bus that this system may use: not those handed to virtual machines, drained or excluded.

    Nor other functions of a GPU that hosts vGPUs.
    """
    gpus, taken = pci_gpus(node), (*drained_gpus(node), *excluded_gpus(node))
    if isinstance(gpus, Missing):
        return gpus
    hosts = {g.bus_id.rpartition(":")[0] for g in node.gpus if known(g.settings.virtualization) == "host-vgpu"}
    of_hosts = {d.bus_id for d in gpus if d.bus_id.rpartition(":")[0] in hosts} - {g.bus_id for g in node.gpus}
    return tuple(d for d in gpus if not (_handed_on(d) or d.bus_id in of_hosts or d.bus_id in taken))


def drained_gpus(node: Node) -> tuple[str, ...]:
    """Bus ids of the GPUs that an operator drained, and that the driver does not show for that reason."""
    return _hidden_of(node, node.driver.drained_gpus)


def excluded_gpus(node: Node) -> tuple[str, ...]:
    """Bus ids of the GPUs that an option of the kernel module keeps from use, and that the driver does not show."""
    return _hidden_of(node, node.driver.excluded_gpus)


def _hidden_of(node: Node, bus_ids: tuple[str, ...] | Missing) -> tuple[str, ...]:
    shown = {gpu.bus_id for gpu in node.gpus}
    return tuple(bus_id for bus_id in known(bus_ids) or () if bus_id not in shown)


def hidden_gpus(node: Node) -> HiddenGpus:
    """Classify the GPUs that are on the bus but not shown by the driver."""
    gpus, shown = known(bus_gpus(node)) or (), shown_count(node)
    bus_ids = {gpu.bus_id for gpu in node.gpus}
    missing = tuple(device for device in gpus if device.bus_id not in bus_ids)
    more = len(gpus) - shown
    if not missing or more <= 0:
        return HiddenGpus()
    if why := why_hidden(node):
        return HiddenGpus(more, why)
    # without permission there is no handle, so the GPU is outside; the driver may or may not count it
    refused = max(0, min(more, len(node.gpus) + refused_handles(node) - shown))
    if refused == more:
        return HiddenGpus(more, REFUSED)
    why, denied, slurm = why_confined(node), known(node.driver.denied_gpus), slurm_allocation(node)
    if why and slurm and slurm.count == shown:
        return HiddenGpus(more, why)
    if denied:
        ended = tuple(device for device in missing if device.bus_id not in denied)
        # GPUs that are counted but have no handle are judged by gpu.lost
        ended = ended if len(ended) > shown - len(node.gpus) else ()
        lacking = max(len(ended), slurm.count - shown if slurm else 0)
        return HiddenGpus(len(missing) - len(ended) if ended else more, why, ended, lacking)
    lacking = slurm.count - shown if slurm and denied is None else more - refused
    return HiddenGpus(refused, REFUSED if refused else None, missing, min(lacking, len(missing)))


class HiddenGpu(msgspec.Struct, frozen=True):
    """The state of a GPU that the driver does not show: `outside` the scope, `missing`, or `open` (it may be either).

    `why` is the reason why it is outside, or why the state is open.
    """

    kind: Literal["outside", "missing", "open"]
    why: str | None = None


def state_of_hidden(node: Node, bus_id: str) -> HiddenGpu:
    """The state of the GPU with this bus id, which must not be in `node.gpus`."""
    if why := why_hidden(node):
        return HiddenGpu("outside", why)
    if bus_id in drained_gpus(node):
        return HiddenGpu("outside", "an operator drained it")
    if bus_id in excluded_gpus(node):
        return HiddenGpu("outside", "the driver's options exclude it")
    if bus_id in (known(node.driver.denied_gpus) or ()):
        return HiddenGpu("outside", "its device file may not be opened here")
    hidden = hidden_gpus(node)
    if any(device.bus_id == bus_id for device in hidden.missing):
        if len(hidden.missing) <= hidden.lacking:
            return HiddenGpu("missing")
        return HiddenGpu(
            "open", f"{len(hidden.missing)} GPUs are not shown here, and {hidden.lacking} of them should be"
        )
    slurm, shown = slurm_allocation(node), shown_count(node)
    if slurm and slurm.count > shown and not known(node.driver.denied_gpus):
        return HiddenGpu("open", f"Slurm gave this job {slurm.count} GPUs, and the driver shows {shown}")
    if why := why_confined(node):
        return HiddenGpu("outside", why)
    if refused_handles(node) and not hidden.missing:
        return HiddenGpu("outside", REFUSED)
    return HiddenGpu("missing")


def _handed_on(device: PciDevice) -> bool:
    """Whether the device is given to a virtual machine, or is a virtual function."""
    return bool(device.virtual_function) or any(word in (known(device.driver) or "") for word in _FOR_GUESTS)
