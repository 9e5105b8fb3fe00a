"""Apply a fault's patch: leaves by dotted path, log lines, variables, and patterns written in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, HostEvent, KernelEvent, Node, Variable
from gpudoctor.facts.simulated.edits import Target, each, each_pair, on_slot, put_all
from gpudoctor.facts.simulated.gpu_faults import GPU_PATTERNS
from gpudoctor.facts.simulated.host_faults import HOST_PATTERNS, STORAGE_PATTERNS
from gpudoctor.facts.simulated.link_faults import LINK_PATTERNS

PATTERNS = {**GPU_PATTERNS, **HOST_PATTERNS, **LINK_PATTERNS, **STORAGE_PATTERNS}


def patched(node: Node, target: Target, patch: Mapping[str, Any]) -> Node:
    """Apply one patch from faults.yaml.

    `node`, `gpu`, `gpu_if_told` (only if that leaf is known), `all` (every GPU), `pair`: dotted leaf -> value.
    `slot`: leaf -> value for the bridge directly above the GPU and for the GPU's hop. `env`: name -> value.
    `apply`: names in `PATTERNS`. `log`: kernel lines, in which {bus}, {pci} and {gpu} stand for the target.
    `host_log`: kernel lines about the host, ten minutes old.
    """
    node = put_all(node, patch.get("node", {}))
    struck = {target.gpu, target.other} - {None}

    def struck_gpu(gpu: Gpu) -> Gpu:
        if gpu.index not in struck:
            return gpu
        told = {leaf: value for leaf, value in patch.get("gpu_if_told", {}).items() if _is_told(gpu, leaf)}
        return on_slot(put_all(gpu, {**patch.get("gpu", {}), **told}), patch.get("slot", {}))

    node = each(each(node, lambda gpu: put_all(gpu, patch.get("all", {}))), struck_gpu)
    node = each_pair(node, lambda pair: put_all(pair, patch.get("pair", {})) if {pair.a, pair.b} == struck else pair)
    if "env" in patch:
        node = _with_variables(node, patch["env"])
    events = patch.get("log", ())  # before the patterns, which may remove the GPU and its bus id
    node = _with_log(node, target, events)
    node = _with_host_log(node, patch.get("host_log", ()))
    for name in patch.get("apply", ()):
        node = PATTERNS[name](node, target)
    return node


def _is_told(gpu: Gpu, leaf: str) -> bool:
    return not isinstance(attrgetter(leaf)(gpu), Missing)


def _with_variables(node: Node, values: Mapping[str, Any]) -> Node:
    held = node.environment.variables
    variables = {} if isinstance(held, Missing) else {variable.name: variable for variable in held}
    for name, value in values.items():
        # a value that contains a path is written as {value, path_exists}
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
    return _with_events(node, events=(*(known(held) or ()), *events))


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
