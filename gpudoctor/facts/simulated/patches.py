"""How a fault changes facts: leaves set by dotted path, log lines, variables, and a few worked patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, HostEvent, KernelEvent, Node, Variable
from gpudoctor.facts.simulated.edits import Target, each, each_pair, on_slot
from gpudoctor.facts.simulated.gpu_faults import GPU_PATTERNS
from gpudoctor.facts.simulated.host_faults import HOST_PATTERNS, STORAGE_PATTERNS
from gpudoctor.facts.simulated.link_faults import LINK_PATTERNS
from gpudoctor.facts.simulated.wiring import put

PATTERNS = {**GPU_PATTERNS, **HOST_PATTERNS, **LINK_PATTERNS, **STORAGE_PATTERNS}


def patched(node: Node, target: Target, patch: Mapping[str, Any]) -> Node:
    """Apply one patch.

    `node`, `gpu`, `gpu_if_told` (only where the GPU tells that leaf), `all` (every GPU), `pair`: dotted leaf -> value.
    `slot`: leaf -> value on the bridge right above the GPU, and on the GPU's own hop. `env`: name -> value.
    `apply`: names of worked patterns. `log`: kernel lines, in which {bus}, {pci} and {gpu} stand for the target.
    `host_log`: kernel lines of the machine around the GPUs, ten minutes old.
    """
    for leaf, value in patch.get("node", {}).items():
        node = put(node, leaf, value)
    struck = {target.gpu, target.other} - {None}
    chosen = {"gpu": lambda g: g.index in struck, "all": lambda g: True}
    for part, is_chosen in chosen.items():
        for leaf, value in patch.get(part, {}).items():
            node = each(node, lambda g, leaf=leaf, value=value, c=is_chosen: put(g, leaf, value) if c(g) else g)  # type: ignore[misc]
    for leaf, value in patch.get("gpu_if_told", {}).items():
        node = each(node, lambda g, leaf=leaf, value=value: _put_if_told(g, leaf, value) if g.index in struck else g)  # type: ignore[misc]
    if "slot" in patch:
        node = each(node, lambda g: on_slot(g, patch["slot"]) if g.index in struck else g)
    for leaf, value in patch.get("pair", {}).items():
        node = each_pair(node, lambda p, leaf=leaf, value=value: put(p, leaf, value) if {p.a, p.b} == struck else p)  # type: ignore[misc]
    if "env" in patch:
        node = _with_variables(node, patch["env"])
    events = patch.get("log", ())  # a GPU that a pattern takes away still has its bus id here
    node = _with_log(node, target, events)
    node = _with_host_log(node, patch.get("host_log", ()))
    for name in patch.get("apply", ()):
        node = PATTERNS[name](node, target)
    return node


def _put_if_told(gpu: Gpu, leaf: str, value: Any) -> Gpu:
    held: Any = gpu
    for name in leaf.split("."):
        held = getattr(held, name)
    return gpu if isinstance(held, Missing) else put(gpu, leaf, value)


def _with_variables(node: Node, values: Mapping[str, Any]) -> Node:
    held = node.environment.variables
    variables = {} if isinstance(held, Missing) else {variable.name: variable for variable in held}
    for name, value in values.items():
        # a value with a path in it comes as {value, path_exists}
        given = value if isinstance(value, dict) else {"value": str(value)}
        variables[name] = Variable(name, **given)
    return replace(node, environment=Environment(tuple(variables[name] for name in sorted(variables))))


def _with_log(node: Node, target: Target, rows: list[dict[str, Any]]) -> Node:
    held = node.kernel_log.events
    if not rows or (isinstance(held, Missing) and held.kind == "denied"):
        return node
    bus_id = next((gpu.bus_id for gpu in node.gpus if gpu.index == target.gpu), None)
    words = {"bus": bus_id or "", "pci": (bus_id or "").rpartition(".")[0], "gpu": target.gpu}
    up = known(node.host.uptime_s) or 3600.0
    events = [
        KernelEvent(
            kind=row["kind"],
            code=row.get("code"),
            bus_id=row.get("bus_id", bus_id),
            fatal=row.get("fatal"),
            time_s=round(up * 0.9 + place, 6),
            text=row["text"].format(**words),
        )
        for place, row in enumerate(rows)
    ]
    log = replace(node.kernel_log, events=(*(() if isinstance(held, Missing) else held), *events))
    if isinstance(log.source, Missing):
        log = replace(log, source="simulated")
    return replace(node, kernel_log=log)


def _with_host_log(node: Node, rows: Iterable[dict[str, Any]]) -> Node:
    held = node.kernel_log.host_events
    if not rows or (isinstance(held, Missing) and held.kind == "denied"):
        return node
    last_s = max(0.0, (known(node.host.uptime_s) or 3600.0) - 600.0)
    events = tuple(HostEvent(**row, first_s=last_s, last_s=last_s) for row in rows)
    log = replace(node.kernel_log, host_events=(*(() if isinstance(held, Missing) else held), *events))
    return replace(node, kernel_log=log if not isinstance(log.source, Missing) else replace(log, source="simulated"))
