"""The fault kit: named faults that change a node's facts as the real fault would.

A fault in faults.yaml sets leaves by dotted path, adds log lines and variables, and applies patterns written in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from msgspec.structs import replace

from gpudoctor.errors import UserError, nearest_names
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import GT_S
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, HostEvent, KernelEvent, Node, Variable
from gpudoctor.facts.simulated import gpu_faults, node_faults  # noqa: F401 - they register their patterns
from gpudoctor.facts.simulated.conditions import why_not
from gpudoctor.facts.simulated.edits import PATTERNS, Target, each, each_pair, on_slot, put_all, put_on_gpu, target_gpu

FAULTS_FILE = Path(__file__).parent / "faults.yaml"


class SimulatedFault(msgspec.Struct, frozen=True):
    """A fault that can be injected into a node.

    `kind`: its target, a `gpu`, a `pair` of GPUs, a `link` of a GPU, or the `node`. `check` must return `status` if the
    fault is applied; `level` is the first one that runs that check. `needs`: conditions on the node and the target,
    by name (see `conditions.CONDITIONS`). `given`: configuration without which the fault is not detected; `expect-gpus`
    is the expected number of GPUs. `of`: what may follow a colon in the target.
    """

    name: str
    title: str
    kind: Literal["gpu", "pair", "link", "node"]
    check: str
    status: Literal["fail", "warn", "unknown", "pass"]
    level: Literal["quick", "standard"] = "quick"
    needs: tuple[str, ...] = ()
    given: Literal["expect-gpus"] | None = None
    of: Literal["seconds"] | None = None
    patch: Mapping[str, Any] = {}

    def happens_on(self, node: Node, spec: str | None = None) -> bool:
        """Whether it can occur on the node, at the target of `spec` or the default one."""
        try:
            return why_not(self.needs, node, _target(self, node, spec)) is None
        except UserError:
            return False


@lru_cache(maxsize=1)
def faults() -> tuple[SimulatedFault, ...]:
    """Every fault of the kit, in the order of the file."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: dict[str, dict[str, Any]] = yaml.load(FAULTS_FILE.read_bytes(), Loader=loader)
    made = []
    for name, row in rows.items():
        check, status = row.pop("trips").split()
        fault: dict[str, Any] = {"name": name, "check": check, "status": status}
        fault |= {key: row.pop(key) for key in ("title", "kind", "level", "needs", "given", "of") if key in row}
        made.append(msgspec.convert({**fault, "patch": row}, SimulatedFault))
    return tuple(made)


def apply_faults(node: Node, specs: Iterable[str]) -> Node:
    """The node with every fault applied in order; its source is "simulated" from then on.

    A spec is `NAME`, `NAME@GPU` with the NVML index, `NAME@A-B` for a pair, `NAME@GPU:LINK` for a link, or
    `NAME@GPU:SECONDS` for a fault with a duration. The default target is the last GPU, the last two GPUs, or link 0 of
    the last GPU; the source names the target that was taken. Raise UserError for an unknown fault, GPU, pair or link,
    and for a fault that cannot occur there.
    """
    struck = []
    for spec in specs:
        node, named = _applied(node, spec)
        struck.append(named)
    source = replace(node.source, kind="simulated", faults=(*node.source.faults, *struck))
    return replace(node, source=source)


def _applied(node: Node, spec: str) -> tuple[Node, str]:
    """The node with the fault, and the spec with its target."""
    name = spec.partition("@")[0]
    fault = next((fault for fault in faults() if fault.name == name), None)
    if fault is None:
        raise UserError(f"no fault is called {name!r}{nearest(name, tuple(f.name for f in faults()))}")
    target = _target(fault, node, spec)
    reason = why_not(fault.needs, node, target)
    if reason is not None:
        raise UserError(f"{fault.name} cannot happen on {node.source.name or 'this node'}: {reason}")
    return _patched(node, target, fault.patch), spec if "@" in spec else f"{spec}{_taken(target)}"


def _taken(target: Target) -> str:
    if target.gpu is None:
        return ""
    link = f":{target.link}" if target.link is not None else ""
    return f"@{target.gpu}-{target.other}" if target.other is not None else f"@{target.gpu}{link}"


def _target(fault: SimulatedFault, node: Node, spec: str | None) -> Target:
    _, at, where = (spec or "").partition("@")
    if at and not where:
        raise UserError(f"no GPU stands after the @ of {spec!r}")
    if fault.kind == "node":
        if where:
            raise UserError(f"{fault.name} strikes the whole node: write it without @{where}")
        return Target()
    indices = sorted(gpu.index for gpu in node.gpus)
    if len(indices) < (2 if fault.kind == "pair" and not where else 1):
        shown = "it has one GPU" if indices else "it shows no GPU"
        raise UserError(f"{fault.name} cannot happen on {node.source.name or 'this node'}: {shown}")
    if fault.kind == "pair":
        return _pair(fault, node, spec, where) if where else Target(gpu=indices[-2], other=indices[-1])
    word, colon, detail = where.partition(":")
    index = _gpu(node, word, spec) if where else indices[-1]
    if fault.of == "seconds":
        return Target(gpu=index, seconds=_seconds(spec, detail) if colon else None)
    if fault.kind != "link":
        if colon:
            raise UserError(f"{spec}: there is no link to strike: write {fault.name}@{index}")
        return Target(gpu=index)
    return Target(gpu=index, link=_link(node, index, spec, detail) if colon else 0)


def _pair(fault: SimulatedFault, node: Node, spec: str | None, where: str) -> Target:
    a, dash, b = where.partition("-")
    if not dash:
        raise UserError(f"{fault.name} strikes two GPUs: write {fault.name}@A-B, for example {fault.name}@0-1")
    first, second = sorted((_gpu(node, a, spec), _gpu(node, b, spec)))
    if first == second:
        raise UserError(f"{fault.name} strikes two GPUs, not GPU {first} twice")
    return Target(gpu=first, other=second)


def _link(node: Node, index: int, spec: str | None, detail: str) -> int:
    links = known(target_gpu(node, Target(index)).nvlinks) or ()
    last = max(len(links), 1) - 1
    if not detail.isdecimal() or int(detail) > last:
        raise UserError(f"{spec}: GPU {index} has the links 0 to {last}, not {detail!r}")
    return int(detail)


def _gpu(node: Node, word: str, spec: str | None) -> int:
    indices = sorted(gpu.index for gpu in node.gpus)
    found = next((index for index in indices if word == str(index)), None)
    if found is None:
        shown = ", ".join(map(str, indices))
        several = "; one fault for each GPU: give --fault again" if "," in word else ""
        raise UserError(f"{spec}: there is no GPU {word!r}; this node has GPU {shown}{several}")
    return found


def _seconds(spec: str | None, word: str) -> float:
    found = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)s?", word, re.ASCII)
    if found is None or float(found[1]) <= 0:
        raise UserError(f"{spec}: behind the colon stand seconds, as in driver-stall@3:2.6s, not {word!r}")
    return float(found[1])


def nearest(word: str, names: tuple[str, ...]) -> str:
    """The end of a message about an unknown name: similar names, or where to find all of them."""
    close = nearest_names(word, names, 3, 0.5) or [n for n in names if word and word in n][:3]
    return f"; did you mean {' or '.join(close)}?" if close else "; see: gpudoctor nodes"


def _patched(node: Node, target: Target, patch: Mapping[str, Any]) -> Node:
    """Apply one patch from faults.yaml.

    `node`, `gpu`, `gpu_if_told` (only if that leaf is known), `all` (every GPU), `pair`: dotted leaf -> value.
    `slot`: leaf -> value for the bridge directly above the GPU and for the GPU's hop. `env`: name -> value.
    `apply`: names in `edits.PATTERNS`. `log`: kernel lines, in which {bus}, {pci} and {gpu} stand for the target, and
    {gt_s}, {x16_gbit_s}, ... for its PCIe link.
    `host_log`: kernel lines about the host, ten minutes old.
    """
    node = put_all(node, patch.get("node", {}))
    struck = {target.gpu, target.other} - {None}

    def patched(gpu: Gpu) -> Gpu:
        gpu = put_all(gpu, patch.get("all", {}))
        if gpu.index not in struck:
            return gpu
        if_told = patch.get("gpu_if_told", {})
        reported = {leaf: value for leaf, value in if_told.items() if not isinstance(attrgetter(leaf)(gpu), Missing)}
        return on_slot(put_on_gpu(gpu, {**patch.get("gpu", {}), **reported}), patch.get("slot", {}))

    node = each(node, patched)
    node = each_pair(node, lambda pair: put_all(pair, patch.get("pair", {})) if {pair.a, pair.b} == struck else pair)
    if "env" in patch:
        node = _with_variables(node, patch["env"])
    # before the patterns, which may remove the GPU and its bus id
    node = _with_log(node, target, patch.get("log", ()))
    node = _with_host_log(node, patch.get("host_log", ()))
    for name in patch.get("apply", ()):
        node = PATTERNS[name](node, target)
    return node


def _with_variables(node: Node, values: Mapping[str, Any]) -> Node:
    variables = {variable.name: variable for variable in known(node.environment.variables) or ()}
    for name, value in values.items():
        # a value that contains a path is written as {value, path_exists}
        given = value if isinstance(value, dict) else {"value": str(value)}
        variables[name] = Variable(name, **given)
    return replace(node, environment=Environment(tuple(variables[name] for name in sorted(variables))))


def _with_log(node: Node, target: Target, rows: list[dict[str, Any]]) -> Node:
    held = node.kernel_log.events
    if not rows or (isinstance(held, Missing) and held.kind == "denied"):
        return node
    gpu = next((gpu for gpu in node.gpus if gpu.index == target.gpu), None)
    bus_id = gpu.bus_id if gpu is not None else None
    parts = {"bus": bus_id or "", "pci": (bus_id or "").rpartition(".")[0], "gpu": target.gpu, **_link_words(gpu)}
    up = known(node.host.uptime_s) or 3600.0
    events = [
        KernelEvent(
            kind=row["kind"],
            code=row.get("code"),
            bus_id=row.get("bus_id", bus_id),
            fatal=row.get("fatal"),
            time_s=round(up * 0.9 + place, 6),
            text=row["text"].format(**parts),
        )
        for place, row in enumerate(rows)
    ]
    return _with_events(node, events=(*(known(held) or ()), *events))


def _link_words(gpu: Gpu | None) -> dict[str, str]:
    """The link's speed, and the rates that the kernel computes for it (drivers/pci/pci.h, PCIE_SPEED2MBS_ENC)."""
    generation = (known(gpu.pcie.generation_max) if gpu is not None else None) or 4
    gt_s = GT_S[generation]
    lane_mbit_s = int(gt_s * 1000 * (128 / 130 if generation > 2 else 0.8))
    return {"gt_s": f"{gt_s:.1f}", **{f"x{lanes}_gbit_s": f"{lanes * lane_mbit_s / 1000:.3f}" for lanes in (4, 8, 16)}}


def _with_host_log(node: Node, rows: Iterable[dict[str, Any]]) -> Node:
    held = node.kernel_log.host_events
    if not rows or (isinstance(held, Missing) and held.kind == "denied"):
        return node
    last_s = max(0.0, (known(node.host.uptime_s) or 3600.0) - 600.0)
    events = tuple(HostEvent(**row, first_s=last_s, last_s=last_s) for row in rows)
    return _with_events(node, host_events=(*(known(held) or ()), *events))


def _with_events(node: Node, **events: Any) -> Node:
    log = replace(node.kernel_log, **events)
    return replace(node, kernel_log=replace(log, source=known(log.source) or "simulated"))
