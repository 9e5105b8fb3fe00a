"""The GPUs that a plan may use, and their links: facts and measurements reduced to a few numbers."""

from __future__ import annotations

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.plan import rates
from gpudoctor.plan.rates import Rate
from gpudoctor.plan.tensor_bytes import Precision
from gpudoctor.profiles.load import profile_for
from gpudoctor.profiles.profile import Profile, compute_gpus
from gpudoctor.text.units import MIB, option_ranges


class Machine(msgspec.Struct, frozen=True):
    """`nodes` equal nodes. A rate that is not known is a str with the reason.

    `collective` is the all_reduce bus bandwidth inside the node, `gather` that of all_gather and reduce_scatter,
    `nvlink` that of GPUs joined by NVLink; `network`: all adapters of a node together; `host`: one GPU's link to
    RAM. `nvlinked`: how many GPUs reach each other over NVLink, taken from the kind of node unless
    `topology_read`. `memory_bytes`: of the smallest GPU, without what the driver reserves.
    """

    gpus: tuple[Gpu, ...]
    nodes: int
    memory_bytes: float
    nvlinked: int
    topology_read: bool
    collective: Rate | str
    gather: Rate | str
    nvlink: Rate | str
    network: Rate | str
    host: Rate | str
    compute: Rate | str
    ram_bytes: float | None
    profile: Profile

    @property
    def gpus_per_node(self) -> int:
        return len(self.gpus)

    @property
    def world(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def gpu_names(self) -> str:
        """ "8 x NVIDIA H100 80GB HBM3"."""
        names = [known(gpu.name) or "unnamed GPU" for gpu in self.gpus]
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def usable_gpus(node: Node, scope: tuple[int, ...] | None, unfit: dict[int, str]) -> tuple[Gpu, ...]:
    """The GPUs in scope that can train. Raises UserError, with the nearest request that works, if there is none."""
    if not node.gpus:
        why = "the driver shows no GPU"
        if known(node.driver.init_code) not in (0, None):
            why = f"the driver does not answer ({known(node.driver.init_error) or 'gpudoctor check driver'})"
        raise UserError(f"{_name(node)}: {why}: nothing to plan on. Plan for another node: --node hgx-h100-8")
    gpus = compute_gpus(tuple(g for g in node.gpus if scope is None or g.index in scope))
    cut = [gpu.index for gpu in gpus if known(gpu.settings.mig_enabled) is True]
    if cut:
        whole = [gpu.index for gpu in gpus if gpu.index not in cut]
        rest = f", or leave GPU {option_ranges(cut)} out: --gpu {option_ranges(whole)}" if whole else ""
        raise UserError(
            f"{_name(node)}: MIG is on, and MIG instances cannot be joined for one training: switch it off "
            f"(nvidia-smi -mig 0){rest}"
        )
    fit = tuple(gpu for gpu in gpus if gpu.index not in unfit)
    if not fit:
        reasons = "; ".join(f"GPU {index}: {why}" for index, why in sorted(unfit.items()))
        raise UserError(f"{_name(node)}: no GPU is fit to train on ({reasons}). Look: gpudoctor check")
    return fit


def machine_of(
    node: Node, gpus: tuple[Gpu, ...], nodes: int, precision: Precision, measurements: Measurements | None
) -> Machine:
    """The machine of `nodes` nodes with these GPUs. Raises UserError if a GPU's memory is not known.

    `measurements` must be of GPUs, not of CPU ranks.
    """
    profile = profile_for(node)
    collective = rates.collective_rate(node, gpus, profile, measurements)
    return Machine(
        gpus=gpus,
        nodes=nodes,
        memory_bytes=min(_memory_bytes(node, gpu) for gpu in gpus),
        nvlinked=rates.nvlinked(node, gpus, profile),
        topology_read=not isinstance(node.pairs, Missing),
        collective=collective,
        gather=rates.gather_rate(gpus, profile, measurements, collective),
        nvlink=rates.nvlink_rate(gpus, profile),
        network=rates.network_rate(node),
        host=rates.host_rate(gpus, measurements),
        compute=rates.compute_rate(gpus, profile, precision, measurements),
        ram_bytes=ram_bytes(node),
        profile=profile,
    )


def compute_capability(gpus: tuple[Gpu, ...], profile: Profile) -> float | None:
    """The lowest of these GPUs; if the source lacks it, as dumps do, that of the GPU model."""
    of_model = profile.gpu.compute_capability if profile.gpu else None
    found = [known(gpu.compute_capability) or of_model for gpu in gpus]
    return min((float(each) for each in found if each), default=None)


def _memory_bytes(node: Node, gpu: Gpu) -> float:
    total = gpu.memory_total_mib
    if isinstance(total, Missing):
        raise UserError(
            f"{_name(node)}: the memory of GPU {gpu.index} is not known ({total.reason}), and without it nothing can "
            "be planned: give a dump that has it (nvidia-smi -q -x), or plan on another node, as --node hgx-h100-8"
        )
    return (total - (known(gpu.memory_reserved_mib) or 0)) * float(MIB)


def ram_bytes(node: Node) -> float | None:
    """Free RAM, or all of it if that is not known, but no more than the cgroup's limit."""
    free = known(node.host.ram_available_mib) or known(node.host.ram_mib)
    limit = known(node.host.memory_limit_mib)
    amounts = [mib for mib in (free, limit) if mib]
    return min(amounts) * float(MIB) if amounts else None


def _name(node: Node) -> str:
    return f"node {node.source.name}" if node.source.name else "this node"
