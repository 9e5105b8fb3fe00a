"""Load simulated nodes: from packaged YAML to the same `Node` that a real machine would have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from gpudoctor.errors import UserError
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, Node, Source
from gpudoctor.facts.simulated.wiring import Wired, wire
from gpudoctor.lazy_import import lazy_imports

with lazy_imports():
    from gpudoctor.facts.simulated import fault_kit
    from gpudoctor.facts.system import environment

if TYPE_CHECKING:
    from gpudoctor.facts.simulated.fault_kit import SimulatedFault

FOLDER = Path(__file__).parent / "nodes"
CALLER_PREFIXES = ("CUDA_", "FI_", "NCCL_", "SLURM_")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        raise UserError(
            f"no simulated node is called {name!r}{fault_kit.nearest(name, node_names(), 'gpudoctor nodes')}"
        )
    body = _read(name)
    body.pop("title")
    wired: Wired = wire(body.pop("gpus", []), body.pop("pairs", {}), name, _read)
    pci = body.setdefault("pci", {})
    pci["nvidia_devices"] = [*wired.pci_devices, *pci.get("nvidia_devices", [])]
    driver = body.setdefault("driver", {})
    driver.setdefault("device_count", len(wired.gpus))
    node = msgspec.convert(body, Node, strict=False)
    return msgspec.structs.replace(
        node,
        source=Source(kind="simulated", name=name, collected_at=Missing("simulated"), notes=node.source.notes),
        gpus=wired.gpus,
        pairs=wired.pairs,
        environment=_with_callers(node.environment, environ),
    )


# The fault kit is only imported if a fault is requested: a plain node must load fast.


def faults() -> tuple[SimulatedFault, ...]:
    """Every fault of the kit, in the order of its file."""
    return fault_kit.faults()


def fault_names() -> tuple[str, ...]:
    """Names of the faults, sorted."""
    return tuple(sorted(fault.name for fault in faults()))


def apply_faults(node: Node, specs: Iterable[str]) -> Node:
    """The node with every fault applied; see `fault_kit.apply_faults` for specs and errors."""
    specs = tuple(specs)
    if not specs:
        return node
    return fault_kit.apply_faults(node, specs)


def _with_callers(own: Environment, environ: Mapping[str, str] | None) -> Environment:
    taken = {key: value for key, value in (environ or {}).items() if key.startswith(CALLER_PREFIXES)}
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
