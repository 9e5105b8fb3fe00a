"""Load simulated nodes: from packaged YAML to the same `Node` that a real machine would have.

The YAML is compact. A group of GPUs shares a template; values that differ are in columns, one value per GPU. PCIe
paths, NVLinks and pairs are derived. Leaves that are not in the YAML are "not supported", as in a live collection that
reads everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import msgspec
import yaml
from msgspec.structs import replace

from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu, GpuPair, NvLink, P2pStatus, PathKind, PcieHop
from gpudoctor.facts.model.links import GT_S
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, fill, known
from gpudoctor.facts.model.node import Environment, Node, Source
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.facts.simulated import fault_kit
    from gpudoctor.facts.system import environment

if TYPE_CHECKING:
    from gpudoctor.facts.simulated.fault_kit import SimulatedFault

FOLDER = Path(__file__).parent / "nodes"
MOST_NAMED = 5
CALLER_PREFIXES = ("CUDA_", "FI_", "NCCL_", "SLURM_")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NOT_SIMULATED = Missing("not simulated")
_NOT_A_BRIDGE = Missing("not a bridge", "unsupported")
S = TypeVar("S", bound=msgspec.Struct)
Row = dict[str, Any]


def node_names() -> tuple[str, ...]:
    """Names of the packaged nodes; files that start with `_` are shared parts."""
    return tuple(sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")))


def node_titles() -> dict[str, str]:
    """Name -> one-line description, for `gpudoctor nodes`.

    Reads only the first line of each file, which is always `title:`.
    """
    titles = {}
    for name in node_names():
        with (FOLDER / f"{name}.yaml").open(encoding="utf-8") as file:
            titles[name] = str(yaml.load(file.readline(), Loader=_Loader)["title"])
    return titles


def load_node(name: str, environ: Mapping[str, str] | None = None) -> Node:
    """Load the packaged node of that name. Raise UserError for an unknown name.

    `environ` is the caller's environment: its CUDA_*, FI_*, NCCL_* and SLURM_* variables override the node's, so that a
    setting can be tried on it.
    """
    if name not in node_names():
        raise UserError(f"no simulated node is called {name!r}{fault_kit.nearest(name, node_names())}")
    body = _read(name)
    body.pop("title")
    gpus, pairs, devices = _wired(body.pop("gpus", []), body.pop("pairs", {}), name)
    pci = body.setdefault("pci", {})
    pci["nvidia_devices"] = [*devices, *pci.get("nvidia_devices", [])]
    driver = body.setdefault("driver", {})
    driver.setdefault("device_count", len(gpus))
    node = msgspec.convert(body, Node, strict=False)
    taken = {key: value for key, value in (environ or {}).items() if key.startswith(CALLER_PREFIXES)}
    tried = ", ".join(sorted(taken)[:MOST_NAMED]) + (", ..." if len(taken) > MOST_NAMED else "")
    notes = (*node.source.notes, *([f"tried on it, from this shell: {tried}"] if taken else []))
    return replace(
        fill(node, _NOT_SIMULATED),
        source=Source(kind="simulated", name=name, collected_at=Missing("simulated"), notes=notes),
        gpus=gpus,
        pairs=pairs,
        environment=_with_callers(node.environment, taken),
    )


# The fault kit is only imported if a fault is requested: a plain node must load fast.


def faults() -> tuple[SimulatedFault, ...]:
    return fault_kit.faults()


def fault_names() -> tuple[str, ...]:
    return tuple(sorted(fault.name for fault in faults()))


def apply_faults(node: Node, specs: Iterable[str]) -> Node:
    """The node with every fault applied; see `fault_kit.apply_faults` for specs and errors."""
    specs = tuple(specs)
    if not specs:
        return node
    return fault_kit.apply_faults(node, specs)


def _with_callers(own: Environment, taken: Mapping[str, str]) -> Environment:
    read = environment.read_environment(taken, Path("/")) if taken else Environment()
    both = (*(known(own.variables) or ()), *(known(read.variables) or ()))
    variables = {variable.name: variable for variable in both}
    return Environment(variables=tuple(variables[name] for name in sorted(variables)))


def _read(name: str) -> dict[str, Any]:
    """The YAML of a node or a shared part, merged over the parts that it `extends`."""
    body: dict[str, Any] = msgspec.json.decode(_as_json(name))  # each caller's own copy
    merged: dict[str, Any] = {}
    for part in body.pop("extends", []):
        merged = _laid_over(merged, _read(part))
    return _laid_over(merged, body)


@cache
def _as_json(name: str) -> bytes:
    """Kept, because YAML takes many times as long to read as JSON, and nodes share parts."""
    return msgspec.json.encode(yaml.load((FOLDER / f"{name}.yaml").read_bytes(), Loader=_Loader))


def _laid_over(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in over.items():
        below = under.get(key)
        # a Missing in YAML is a complete value, never merged into what it replaces
        mergeable = isinstance(value, dict) and isinstance(below, dict) and "missing" not in value
        under[key] = _laid_over(below, value) if mergeable else value  # type: ignore[arg-type]
    return under


def _wired(
    groups: list[Row], pairs: Row, name: str
) -> tuple[tuple[Gpu, ...], tuple[GpuPair, ...] | Missing, list[Row]]:
    """The GPUs of every group, in NVML order; their pairs; and what the PCI bus shows of them."""
    gpus: list[Gpu] = []
    devices: list[Row] = []
    links: Row = {}
    for group in groups:
        template = _read(group["template"])
        pci_class = template.pop("pci_class")
        links = {**template.pop("nvlinks", {}), **group.get("nvlinks", {})}
        has_serial = template.pop("has_serial", False)
        model = msgspec.convert({"index": 0, "bus_id": "", **template}, Gpu, strict=False)
        model = fill(model, UNSUPPORTED)
        for place, bus_id in enumerate(group["each"]["bus_id"]):
            gpu = _identified(model, len(gpus), bus_id, name, has_serial)
            for leaf, column in group["each"].items():
                gpu = put(gpu, leaf, column[place] if isinstance(column, list) else column)
            if unlinked := group.get("unlinked"):  # a card with an NVLink connector but without a bridge
                open_links = (NvLink(link, "inactive", links["version"], UNSUPPORTED) for link in range(unlinked))
                gpu = replace(gpu, nvlinks=tuple(open_links))
            gpus.append(_with_path(gpu, group.get("path"), place, pci_class))
            if group.get("on_bus", True):  # a WSL2 guest sees no NVIDIA device on its PCI bus
                devices.append(_pci_device(gpus[-1], pci_class))
    matrix = _matrix(pairs.get("nvlinks", 0), len(gpus))
    wired_gpus = tuple(_with_links(gpu, links, matrix[gpu.index], gpus) for gpu in gpus)
    if "missing" in pairs:
        return wired_gpus, msgspec.convert(pairs, Missing), devices
    made = tuple(_pair(a, b, matrix[a.index][b.index], pairs) for a in gpus for b in gpus if a.index < b.index)
    return wired_gpus, made, devices


def put(struct: S, path: str, value: Any) -> S:
    """A copy with the leaf at a dotted path set; the value is converted to the leaf's type.

    Raise AttributeError if there is no such leaf, and msgspec.ValidationError if the value has the wrong type.
    """
    head, _, rest = path.partition(".")
    if rest:
        return replace(struct, **{head: put(getattr(struct, head), rest, value)})
    if isinstance(value, (dict, list)):
        types = {field.name: field.type for field in msgspec.structs.fields(struct)}
        value = msgspec.convert(value, types[head])
    getattr(struct, head)
    return replace(struct, **{head: value})


def _identified(model: Gpu, index: int, bus_id: str, name: str, has_serial: bool) -> Gpu:
    # "fa4e" and a hash of the node's name: unique, usable with UUID prefixes, and not mistaken for a real UUID
    uuid = f"GPU-{index:02x}fa4e00-{crc32(name.encode()) & 0xFFFF:04x}-4000-8000-{index:012x}"
    serial = f"{index + 1:013d}" if has_serial else UNSUPPORTED
    return replace(model, index=index, bus_id=bus_id, uuid=uuid, serial=serial, minor_number=index)


def _with_path(gpu: Gpu, rows: list[Row] | None, place: int, pci_class: str) -> Gpu:
    """Add the PCIe hops; a row of `path` is one bridge per GPU, with the GPU's link values unless it overrides them."""
    if rows is None:
        return gpu
    pcie = gpu.pcie
    now, most = known(pcie.generation) or 1, known(pcie.generation_max) or 1
    width, max_width = known(pcie.width) or 1, known(pcie.width_max) or 1
    counters: Row = {"aer_correctable": 0, "aer_nonfatal": 0, "aer_fatal": 0}
    link = {"speed_gt_s": GT_S[now], "max_speed_gt_s": GT_S[most], "width": width, "max_width": max_width, **counters}
    device_most = known(pcie.device_generation_max) or most
    own: Row = {"vendor_id": "0x10de", "device_id": _device_id(gpu), "pci_class": pci_class, **link}
    hops = [PcieHop(gpu.bus_id, acs_redirect=_NOT_A_BRIDGE, **{**own, "max_speed_gt_s": GT_S[device_most]})]
    for row in rows:
        bus_id = row["bus_id"][place] if isinstance(row["bus_id"], list) else row["bus_id"]
        hop = {"pci_class": "0x060400", "acs_redirect": False, **link, **row, "bus_id": bus_id}
        hops.append(msgspec.convert(hop, PcieHop))
    return put(gpu, "pcie.path", tuple(hops))


def _device_id(gpu: Gpu) -> str:
    """The device id as in sysfs: 0x2330 for NVML's packed 0x233010de."""
    packed = known(gpu.pci_device_id)
    return packed[:6].lower() if packed else "0x0000"


def _pci_device(gpu: Gpu, pci_class: str) -> Row:
    numa = msgspec.to_builtins(gpu.numa_node)
    names = {"bus_id": gpu.bus_id, "pci_class": pci_class, "device_id": _device_id(gpu)}
    return {**names, "driver": "nvidia", "numa_node": numa}


def _matrix(given: int | str, count: int) -> list[list[int]]:
    """The number of NVLinks between each pair of GPUs, from one number for all or a matrix as text."""
    if isinstance(given, int):
        return [[0 if a == b else given for b in range(count)] for a in range(count)]
    return [[int(cell) if cell.isdigit() else 0 for cell in line.split()] for line in given.strip().splitlines()]


def _with_links(gpu: Gpu, spec: Row, row: list[int], gpus: list[Gpu]) -> Gpu:
    """Add the NVLinks: from `remotes`, a list of [bus id or null, count] per switch, or from the matrix."""
    if not spec.get("remote_kind") or not (any(row) or "remotes" in spec):
        return gpu
    if "remotes" in spec:
        ends = [remote for remote, count in spec["remotes"] for _ in range(count)]
    else:
        ends = [gpus[peer].bus_id for peer, count in enumerate(row) for _ in range(count)]
    errors = {"crc_errors": 0, "replay_errors": 0, "recovery_errors": 0, **spec.get("errors", {})}
    state, version, speed, kind = spec.get("state", "active"), spec["version"], spec["speed_gb_s"], spec["remote_kind"]
    made = (NvLink(link, state, version, speed, kind, end, **errors) for link, end in enumerate(ends))
    return replace(gpu, nvlinks=tuple(made))


def _pair(a: Gpu, b: Gpu, nvlinks: int, spec: Row) -> GpuPair:
    """Build a pair. `path` applies within a NUMA node; if `p2p_unlinked` is set, `p2p` applies to linked pairs only."""
    p2p: P2pStatus = spec["p2p"]
    if not nvlinks and "p2p_unlinked" in spec:
        p2p = spec["p2p_unlinked"]
    return GpuPair(a.index, b.index, _path_kind(a, b, spec["path"]), nvlinks, p2p, p2p)


def _path_kind(a: Gpu, b: Gpu, same_numa: PathKind) -> PathKind:
    above, above_b = ((known(gpu.pcie.path) or ())[1:] for gpu in (a, b))
    if {hop.bus_id for hop in above} & {hop.bus_id for hop in above_b}:
        return "PIX" if len(above) <= 3 else "PXB"
    return same_numa if a.numa_node == b.numa_node else "SYS"
