"""Which GPUs of a node are judged: the requested ones, those of the job, or all that this process may see."""

from __future__ import annotations

import msgspec

from gpudoctor.checks.core.cuda_device_list import resolve
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, PciDevice, short_bus_id

# the step first: its GPUs are a subset of the job's
SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def scope_of(node: Node, requested: str | None) -> tuple[tuple[int, ...] | None, str | None]:
    """The NVML indices to judge and the reason as text; (None, None) for all GPUs.

    The first that applies: `requested` (--gpu: indices, ranges, UUIDs or unique prefixes, bus ids); a valid
    CUDA_VISIBLE_DEVICES that hides some of the GPUs; without that variable, as in a Slurm prolog, the job's
    GPUs. A broken CUDA_VISIBLE_DEVICES never narrows the scope, since it does not show which GPUs are meant.
    Raise UserError for a --gpu that matches no GPU.
    """
    if requested is not None:
        return _wanted(node, requested), f"--gpu {requested.strip()}"
    value = node.environment.get("CUDA_VISIBLE_DEVICES")
    if value is not None:
        seen = resolve(value, node.gpus, node.environment.get("CUDA_DEVICE_ORDER"))
        broken = seen.unresolved or seen.problems or seen.order_uncertain
        if broken or not seen.visible or not seen.hidden:
            return None, None
        return _sorted(node, set(seen.visible)), f"CUDA_VISIBLE_DEVICES={value}"
    for name in SLURM_GPUS:
        listed = indices(node.environment.get(name))
        # in a job confined to its GPUs, NVML shows only those, numbered from 0
        if listed is not None and len(node.gpus) > len(listed) and not known(node.driver.denied_gpus):
            chosen = _sorted(node, {gpu.index for gpu in node.gpus} & listed)
            if chosen:
                return chosen, f"{name}={node.environment.get(name)}"
    return None, None


def pci_gpus(node: Node) -> tuple[PciDevice, ...] | Missing:
    """NVIDIA functions on the bus that are GPUs: PCI classes 0x0300 (VGA) and 0x0302 (3D)."""
    devices = node.pci.nvidia_devices
    if isinstance(devices, Missing):
        return devices
    return tuple(d for d in devices if d.pci_class.lower().removeprefix("0x")[:4] in ("0300", "0302"))


def why_confined(node: Node) -> str | None:
    """Text for what keeps GPUs of the machine from this process (device files, a Slurm job); None if nothing does."""
    slurm, shown = slurm_allocation(node), shown_count(node)
    if known(node.driver.denied_gpus):
        of_job = f"; {slurm.variable}" if slurm and slurm.count == shown else ""
        return f"their device files may not be opened here (device cgroup or file mode{of_job})"
    # if all device files may be opened, nothing is confined, whatever the job was given
    if slurm is None or slurm.count != shown or known(node.driver.denied_gpus) is not None:
        return None
    on_bus = known(pci_gpus(node))
    whole = on_bus is not None and len(on_bus) <= shown
    return None if whole else f"the job was given {slurm.count} GPUs by {slurm.variable}"


def shown_count(node: Node) -> int:
    """The number of GPUs the driver reports to this process, including those without a handle."""
    count = known(node.driver.device_count)
    return len(node.gpus) if count is None else count


class SlurmAllocation(msgspec.Struct, frozen=True):
    """The number of GPUs Slurm gave this process on this node, and the variable that contains it."""

    count: int
    variable: str


def slurm_allocation(node: Node) -> SlurmAllocation | None:
    """The smallest number of GPUs in Slurm's variables that is at least what the driver shows.

    A task may be confined to fewer GPUs than its step, and a step to fewer than its job. None if Slurm's variables
    are unset or all name fewer than the driver shows (a prolog, a job that is not confined), and on nodes with
    MIG, since Slurm may count instances.
    """
    if not node.gpus or any(known(gpu.settings.mig_enabled) for gpu in node.gpus):
        return None
    shown = shown_count(node)
    counts: list[tuple[int, str]] = []
    for name in (*SLURM_GPUS, "CUDA_VISIBLE_DEVICES"):
        listed = indices(node.environment.get(name))
        counts += [(len(listed), name)] if listed else []
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_TASK"):
        number = (node.environment.get(name) or "").rpartition(":")[2]
        counts += [(int(number), name)] if _is_index(number) else []
    given = [(count, name) for count, name in counts if count >= shown]
    if not given or not any(name.startswith("SLURM") for _, name in counts):
        return None
    count, name = min(given, key=lambda item: item[0])
    return SlurmAllocation(count, f"{name}={node.environment.get(name)}")


def indices(text: str | None) -> set[int] | None:
    """Parse a list like "0,2,4-7"; None if it is unset, empty or not such a list.

    >>> sorted(indices("0,2,4-6") or ())
    [0, 2, 4, 5, 6]
    >>> indices("GPU-1234") is None
    True
    """
    if not text or not text.strip():
        return None
    chosen: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        last = last if dash else first
        if not (_is_index(first) and _is_index(last)):
            return None
        chosen.update(range(int(first), int(last) + 1))
    return chosen


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _wanted(node: Node, expected: str) -> tuple[int, ...]:
    chosen: set[int] = set()
    for item in (part.strip() for part in expected.split(",")):
        if not item:
            raise UserError(f"--gpu {expected!r}: an empty entry; give indices, UUIDs or bus ids, as in --gpu 0,3")
        chosen |= _named(node, item)
    return _sorted(node, chosen)


def _named(node: Node, item: str) -> set[int]:
    listed = indices(item)
    if listed is not None:
        missing = sorted(listed - {gpu.index for gpu in node.gpus})
        if missing or not listed:
            raise UserError(f"--gpu {item}: there is no GPU {missing[0] if missing else item} here; {_existing(node)}")
        return listed
    fitting = [gpu for gpu in node.gpus if _is_called(gpu, item)]
    if not fitting:
        raise UserError(f"--gpu {item}: no GPU here has this index, UUID or bus id; {_existing(node)}")
    if len(fitting) > 1:
        raise UserError(f"--gpu {item}: fits GPU {' and '.join(str(g.index) for g in fitting)}; give more of the UUID")
    return {fitting[0].index}


def _is_called(gpu: Gpu, item: str) -> bool:
    word = item.lower()
    if word.startswith("gpu-"):
        return len(word) > 4 and (known(gpu.uuid) or "").lower().startswith(word)
    return ":" in word and short_bus_id(word) == gpu.bus_id.lower()


def _existing(node: Node) -> str:
    if not node.gpus:
        return "this node shows no GPU"
    return "it has " + ", ".join(gpu.label for gpu in node.gpus)


def _sorted(node: Node, chosen: set[int]) -> tuple[int, ...]:
    return tuple(gpu.index for gpu in node.gpus if gpu.index in chosen)
