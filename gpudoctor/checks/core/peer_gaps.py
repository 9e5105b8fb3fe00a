"""Values that one GPU lacks and its peers show: a driver that has half lost a GPU answers so, and it is no pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, GpuPair, NvLink, PcieHop
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing, known
from gpudoctor.facts.model.node import Node, RdmaPort
from gpudoctor.text.grouped import grouped

F = TypeVar("F", bound=Fact)
# What must be the same for two things to be peers; None, what is not known, may be anything
Kind = tuple[object, ...]

# Another board, or a setting that hides values, explains that a GPU shows less than one of the same name
_KIND = attrgetter(
    *("name", "pci_device_id", "vbios", "ecc.enabled", "settings.mig_enabled", "settings.virtualization"),
    *("settings.confidential_compute", "settings.display_attached", "settings.display_active"),
)
_PORT_KIND = attrgetter("driver", "adapter", "link_layer", "virtual_function")
_NO_GPU: Kind = ("",) * len(_KIND(Gpu(0, "")))
_ANY_GPU: Kind = (None,) * len(_NO_GPU)
_READINGS = ("memory_total_mib", "memory_used_mib", "thermal.", "power.", "clocks.", "utilization.")
# texts mention these only if they are so
_TOLD_IF_TRUE = ("inforom_corrupted", "memory_repair.unrepairable")
# hardware that all boards of a model have: a list without any shows nothing
_OF_THE_BOARD = ("nvlinks", "pcie.path")
_TEMPLATES: tuple[Fact, ...] = (Gpu(0, ""), NvLink(0), PcieHop(""), GpuPair(0, 0), RdmaPort("", 0))


class LackingValue(Missing, frozen=True):
    """A value that this GPU, link, bridge or pair lacks although its peers show it."""


class RefusedValue(LackingValue, frozen=True):
    """One that somebody asked for: the reason is the answer, in place of the value that its peers show."""


_LACKING = (LackingValue, RefusedValue)
_GAPS = (Missing, *_LACKING)


def _leaf_names(fact: Fact, prefix: str = "") -> Iterator[str]:
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if isinstance(value, Fact):
            yield from _leaf_names(value, f"{prefix}{name}.")
        elif value == NOT_READ:
            yield prefix + name


# by type, the names of the leaves that are compared, and what reads them all
_LEAVES: dict[type[Fact], tuple[str, ...]] = {type(fact): tuple(_leaf_names(fact)) for fact in _TEMPLATES}
_READ = {kind: attrgetter(*names) for kind, names in _LEAVES.items()}


def gaps_marked(node: Node) -> Node:
    """The node, with every value that a GPU lacks, or that was not read of it, as failed if its peers show it.

    Peers are GPUs of one model between which nothing explains a difference, see `_KIND`; and their NVLinks, bridges and
    pairs likewise. Nothing explains a GPU without any reading: it is a peer of all. Values that all peers lack stay as
    they are, and so do `denied` ones and what gpudoctor did not ask for. RDMA ports are peers if driver, adapter and
    link layer are the same. Return the same object if nothing is lacking.
    """
    kinds = [tuple(known(value) for value in _KIND(gpu)) if _shows_readings(gpu) else _ANY_GPU for gpu in node.gpus]
    # one of the texts may be about a few GPUs only; readers mark what is lacking within a text
    gpus = _marked(node.gpus, kinds, most=node.source.may_be_part)
    gpus = _lists_marked(gpus, kinds)
    pairs = node.pairs if isinstance(node.pairs, Missing) else _pairs_marked(node.pairs, node.gpus, kinds)
    network, ports = node.network, node.network.rdma_ports
    if not isinstance(ports, Missing):
        port_kinds = [tuple(known(value) for value in _PORT_KIND(port)) for port in ports]
        network = replace(network, rdma_ports=_marked(ports, port_kinds, most=node.source.may_be_part))
    marked = replace(node, gpus=gpus, pairs=pairs, network=network)
    return node if marked == node else marked


def _shows_readings(gpu: Gpu) -> bool:
    values = zip(_LEAVES[Gpu], _READ[Gpu](gpu), strict=True)
    return any(name.startswith(_READINGS) and not isinstance(value, Missing) for name, value in values)


def _marked(facts: Sequence[F], kinds: Sequence[Kind], *, most: bool = False) -> tuple[F, ...]:
    """The facts, each with the values that others of its kind show and it lacks as `failed`. Linear in their number.

    `most`: only values that more than half of them show.
    """
    if len(facts) < 2:
        return tuple(facts)
    kind_of_fact = type(facts[0])
    read = zip(*map(_READ[kind_of_fact], facts), strict=True)
    columns = dict(zip(_LEAVES[kind_of_fact], read, strict=True))
    shown = {name: _shown(name, column) for name, column in columns.items()}
    mixed = {name: flags for name, flags in shown.items() if 0 < sum(flags) < len(facts)}
    if not mixed:
        return tuple(facts)
    counts: dict[Kind, list[int]] = {}
    for kind, flags in zip(kinds, zip(*mixed.values(), strict=True), strict=True):
        _add(counts, kind, [*map(int, flags)])
    of_kind, number = _of_peers(counts), Counter(kinds)
    made = []
    for position, (fact, kind) in enumerate(zip(facts, kinds, strict=True)):
        needed = number[kind] // 2 if most else 0
        lacking = {
            name: _unlike_peers(value, count)
            for name, count in zip(mixed, of_kind[kind], strict=True)
            if count > needed and _is_gap(name, value := columns[name][position])
        }
        made.append(_with(fact, lacking) if lacking else fact)
    return tuple(made)


def _shown(name: str, values: Sequence[object]) -> list[bool]:
    """Which of these values show something."""
    if name in _TOLD_IF_TRUE:
        values = [NOT_READ if value is True else value for value in values]
    elif name in _OF_THE_BOARD:
        values = [NOT_READ if value == () else value for value in values]
    # 300,000 values of 1,000 GPUs: isinstance() takes four times as long
    kinds = set(map(type, values))
    if kinds.isdisjoint(_GAPS):
        return [True] * len(values)
    return [type(value) not in _GAPS for value in values]


def _of_peers(shown: dict[Kind, list[int]]) -> dict[Kind, list[int]]:
    """For each kind, the sums of the counts of all kinds that may be the same: equal in what is known of both.

    Kinds of which the same is known are compared as a whole, as a file may list 1,000 GPUs of as many kinds.
    """
    by_known = grouped(
        (tuple(position for position, one in enumerate(kind) if one is not None), kind) for kind in shown
    )
    found: dict[Kind, list[int]] = {}
    for known_positions, kinds in by_known.items():
        for other_positions, others in by_known.items():
            both = [position for position in known_positions if position in other_positions]
            sums: dict[Kind, list[int]] = {}
            for other in others:
                _add(sums, tuple(other[position] for position in both), shown[other])
            for kind in kinds:
                if (counts := sums.get(tuple(kind[position] for position in both))) is not None:
                    _add(found, kind, counts)
    return found


def _add(sums: dict[Kind, list[int]], kind: Kind, counts: list[int]) -> None:
    old = sums.get(kind)
    sums[kind] = counts if old is None else [one + other for one, other in zip(old, counts, strict=True)]


def lacking_values(gpu: Gpu) -> tuple[str, ...]:
    """The names of the values that `gaps_marked` marked in this GPU, its links and its bridges."""
    own = list(_lacking(gpu))
    lists = (("nvlinks", known(gpu.nvlinks)), ("pcie.path", known(gpu.pcie.path)))
    inner = [f"{where}.{name}" for where, facts in lists for fact in facts or () for name in _lacking(fact)]
    return tuple(dict.fromkeys((*own, *inner)))


def refused_values(gpu: Gpu) -> dict[str, str]:
    """Those of the GPU's own values among them that were asked for, each with what was answered."""
    return {name: value.reason for name, value in _lacking(gpu).items() if isinstance(value, RefusedValue)}


def _lacking(fact: Fact) -> dict[str, LackingValue]:
    values = _READ[type(fact)](fact)
    if set(_LACKING).isdisjoint(map(type, values)):
        return {}
    named = zip(_LEAVES[type(fact)], values, strict=True)
    return {name: value for name, value in named if isinstance(value, LackingValue)}


def _is_gap(name: str, value: object) -> bool:
    if isinstance(value, Missing):
        return value.kind in ("absent", "unsupported", "failed")
    return value == () and name in _OF_THE_BOARD


def _unlike_peers(value: object, shown: int) -> Missing:
    if isinstance(value, Missing) and value.kind == "failed":
        return RefusedValue(value.reason, "failed")
    reason = value.reason if isinstance(value, Missing) else "none"
    return LackingValue(f"{reason}, and {shown} of its kind show{'s' * (shown == 1)} it", "failed")


def _with(fact: F, leaves: dict[str, Missing]) -> F:
    """A copy with these leaves, by dotted name."""
    changed: dict[str, Any] = {}
    for name, value in leaves.items():
        section, dot, leaf = name.partition(".")
        changed[section] = _with(changed.get(section, getattr(fact, section)), {leaf: value}) if dot else value
    return replace(fact, **changed)


def _lists_marked(gpus: tuple[Gpu, ...], kinds: list[Kind]) -> tuple[Gpu, ...]:
    """The GPUs, with their NVLinks and bridges marked: links in the same state, bridges of one model at one hop."""
    links = [known(gpu.nvlinks) or () for gpu in gpus]
    paths = [known(gpu.pcie.path) or () for gpu in gpus]
    link_kinds = [
        (*kind, None if isinstance(link.state, Missing) else link.is_up)
        for own, kind in zip(links, kinds, strict=True)
        for link in own
    ]
    hop_kinds = [
        (*kind, position, known(hop.vendor_id), known(hop.device_id))
        for path, kind in zip(paths, kinds, strict=True)
        for position, hop in enumerate(path)
    ]
    marked_links = iter(_marked([link for own in links for link in own], link_kinds))
    marked_hops = iter(_marked([hop for path in paths for hop in path], hop_kinds))
    made = []
    for gpu, own, path in zip(gpus, links, paths, strict=True):
        if (new_links := tuple(next(marked_links) for _ in own)) != own:
            gpu = replace(gpu, nvlinks=new_links)
        if (new_path := tuple(next(marked_hops) for _ in path)) != path:
            gpu = replace(gpu, pcie=replace(gpu.pcie, path=new_path))
        made.append(gpu)
    return tuple(made)


def _pairs_marked(pairs: tuple[GpuPair, ...], gpus: tuple[Gpu, ...], kinds: list[Kind]) -> tuple[GpuPair, ...]:
    """The pairs, and one more for each GPU that the matrix shows with only some of the others."""
    if not pairs:
        return pairs
    kind_of = {gpu.index: kind for gpu, kind in zip(gpus, kinds, strict=True)}
    partners: dict[int, set[int]] = {index: {index} for index in kind_of}
    for pair in pairs:
        partners.setdefault(pair.a, set()).add(pair.b)
        partners.setdefault(pair.b, set()).add(pair.a)
    alone = [index for index in kind_of if not partners[index] >= kind_of.keys()]
    lacking = [_not_in_matrix(index, next(i for i in kind_of if i not in partners[index])) for index in alone]
    joined = [None if isinstance(pair.nvlinks, Missing) else pair.nvlinks > 0 for pair in pairs]
    pair_kinds = [
        (*kind_of.get(pair.a, _NO_GPU), *kind_of.get(pair.b, _NO_GPU), by_nvlink)
        for pair, by_nvlink in zip(pairs, joined, strict=True)
    ]
    return (*_marked(pairs, pair_kinds), *dict.fromkeys(lacking))


def _not_in_matrix(one: int, other: int) -> GpuPair:
    absent = Missing("not in the matrix that shows other pairs", "failed")
    return GpuPair(min(one, other), max(one, other), absent, absent, absent, absent)
