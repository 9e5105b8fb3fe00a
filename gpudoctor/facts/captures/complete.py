"""Steps of the join: attach links and pairs to GPUs, add GPUs that only appear through their links, and fill gaps."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.captures import ABSENT, SourceError
from gpudoctor.facts.captures.host.lspci import PciTree
from gpudoctor.facts.captures.nvidia_smi.nvlink import LinkDump
from gpudoctor.facts.captures.nvidia_smi.topology import Pair, Topology
from gpudoctor.facts.model.gpu import Gpu, GpuPair, NvLink, P2pStatus
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.facts.model.node import Host

T = TypeVar("T")


def with_links(gpus: tuple[Gpu, ...], links: list[LinkDump], *, all_gpus: bool) -> tuple[Gpu, ...]:
    """Each GPU with its links, matched by UUID if it is unique, otherwise by index.

    `all_gpus`: `gpus` are all GPUs of the machine, so a remote address that is not a GPU and that several GPUs link to
    is a switch. Raise SourceError if the UUIDs belong to another machine.
    """
    if not links:
        return gpus
    uuids = [gpu.uuid for gpu in gpus]
    by_uuid = {link.uuid: link for link in links}
    by_index = {link.index: link for link in links}
    # redacted dumps may give all GPUs the same UUID, or none: then only the order is left to match by
    named = len({uuid for uuid in uuids if isinstance(uuid, str)}) == len(gpus) and len(by_uuid) == len(by_index)
    made: list[Gpu] = []
    for gpu in gpus:
        found = by_uuid.get(gpu.uuid) if isinstance(gpu.uuid, str) and uuids.count(gpu.uuid) == 1 else None
        if found is None:
            found = by_index.get(gpu.index)
            if found is not None and named:
                raise SourceError(
                    f"GPU {gpu.index} is {gpu.uuid} in nvidia-smi -q and {found.uuid} in nvidia-smi nvlink: "
                    "keep the dumps of one machine only"
                )
        made.append(msgspec.structs.replace(gpu, nvlinks=found.nvlinks) if found else gpu)
    return _with_remote_kinds(tuple(made), all_gpus)


def _with_remote_kinds(gpus: tuple[Gpu, ...], all_gpus: bool) -> tuple[Gpu, ...]:
    own = {gpu.bus_id for gpu in gpus}
    seen_from: dict[str, set[str]] = {}
    for gpu in gpus:
        for link in known(gpu.nvlinks) or ():
            if isinstance(link.remote_bus_id, str):
                seen_from.setdefault(link.remote_bus_id, set()).add(gpu.bus_id)

    def named(link: NvLink) -> NvLink:
        remote = link.remote_bus_id
        if not isinstance(remote, str):
            return link
        if remote in own:
            return msgspec.structs.replace(link, remote_kind="gpu")
        if all_gpus and len(seen_from[remote]) > 1:
            return msgspec.structs.replace(link, remote_kind="switch")
        return link

    return tuple(
        gpu
        if isinstance(gpu.nvlinks, Missing)
        else msgspec.structs.replace(gpu, nvlinks=tuple(named(link) for link in gpu.nvlinks))
        for gpu in gpus
    )


def pairs_of(topology: Topology | None, p2p: dict[str, dict[Pair, P2pStatus]]) -> tuple[GpuPair, ...] | Missing:
    """The pairs from `topo -m`, with the statuses from `topo -p2p` (keys: p2p_read, p2p_write) added."""
    if topology is None and not p2p:
        return ABSENT
    pairs = {(pair.a, pair.b): pair for pair in (topology.pairs if topology else ())}
    for direction, statuses in p2p.items():
        for a, b in statuses:
            pair = pairs.get((a, b)) or GpuPair(a, b)
            changed: dict[str, Any] = {direction: statuses[a, b]}
            pairs[a, b] = msgspec.structs.replace(pair, **changed)
    return tuple(pairs[key] for key in sorted(pairs))


def placeholder_gpus(
    tree: PciTree | None,
    links: list[LinkDump],
    topology: Topology | None,
    p2p: dict[str, dict[Pair, P2pStatus]],
) -> tuple[Gpu, ...]:
    """GPUs if there is no `nvidia-smi -q`: from lspci, nvlink and the matrices, joined by their order.

    A GPU whose address is in no dump gets the bus id "unknown-INDEX".
    """
    functions = tree.gpus if tree else []
    indices = {link.index for link in links} | set(topology.gpus if topology else ())
    indices |= {index for statuses in p2p.values() for pair in statuses for index in pair}
    if not indices:
        indices = set(range(len(functions)))
    same_count = len(functions) == len(indices)
    by_index = {link.index: link for link in links}
    gpus: list[Gpu] = []
    for order, index in enumerate(sorted(indices)):
        link = by_index.get(index)
        function = functions[order] if same_count else None
        name = link.name if link else function.name if function else ABSENT
        bus_id = function.bus_id if function else f"unknown-{index}"
        gpus.append(Gpu(index, bus_id, uuid=link.uuid if link else ABSENT, name=name))
    return tuple(gpus)


def with_failures(gpus: tuple[Gpu, ...], lost: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Each GPU with the error that nvidia-smi reported for its bus id; errors for unlisted GPUs stay driver errors."""
    errors = {gpu.bus_id: gpu.errors for gpu in lost}
    return tuple(
        msgspec.structs.replace(gpu, errors=errors[gpu.bus_id]) if gpu.bus_id in errors else gpu for gpu in gpus
    )


def without_gpu_memory(host: Host, gpus: tuple[Gpu, ...]) -> Host:
    """Hide the RAM size on Grace: it exposes GPU memory as NUMA nodes, which `free` counts as RAM."""
    if isinstance(host.ram_mib, Missing) or all(gpu.settings.addressing_mode != "ats" for gpu in gpus):
        return host
    hidden = Missing("free may count GPU memory as RAM on this machine", "absent")
    return msgspec.structs.replace(host, ram_mib=hidden, ram_available_mib=hidden)


def say_absent(value: T) -> T:
    """Replace every leaf that was not read with "not in this capture"."""
    made: Any = value
    if value == NOT_READ:
        made = ABSENT
    elif isinstance(value, tuple):
        made = tuple(say_absent(item) for item in value)
    elif isinstance(value, msgspec.Struct) and not isinstance(value, Missing):
        news = {field: say_absent(getattr(value, field)) for field in value.__struct_fields__}
        made = msgspec.structs.replace(value, **news)
    result: T = made
    return result
