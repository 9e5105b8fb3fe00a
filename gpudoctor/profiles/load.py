"""Finds the profile that a node is judged against: a packaged one, matched by the GPUs, or the user's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache

import msgspec

from gpudoctor.errors import UserError, nearest_names
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports
from gpudoctor.profiles.profile import NO_PROFILE, GpuModel, NodeProfile, Profile, compute_gpus, has_name, majority

with lazy_imports():
    from gpudoctor.text import yaml_file

# The packaged profiles are read from one JSON document, which a test generates from the YAML files that people edit
# (make accept): importing a YAML parser takes longer than judging a node.

FOLDER = os.path.dirname(__file__)
DOCUMENT = os.path.join(FOLDER, "packaged.json")


class IndexEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of names.yaml: NVML names of a GPU model, and the node kind for each number of GPUs."""

    names: tuple[str, ...]
    nodes: dict[int, str] = {}


class Packaged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All packaged profiles: the index by GPU model, and each model and node kind as JSON by its key."""

    index: Mapping[str, IndexEntry]
    models: Mapping[str, msgspec.Raw]
    nodes: Mapping[str, msgspec.Raw]

    def model(self, key: str) -> GpuModel:
        """Raise KeyError if it is not packaged."""
        return msgspec.json.decode(self.models[key], type=GpuModel)

    def node(self, name: str) -> NodeProfile:
        """Raise KeyError if it is not packaged."""
        return msgspec.json.decode(self.nodes[name], type=NodeProfile)


@cache
def packaged() -> Packaged:
    """The content of DOCUMENT."""
    with open(DOCUMENT, "rb") as file:
        return msgspec.json.decode(file.read(), type=Packaged)


def profile_for(node: Node, name: str | None = None) -> Profile:
    """The profile to judge `node` against.

    `name` is a packaged name (a node kind or a GPU model), the path of a YAML file, or None
    or "auto": then the GPU's name determines the model, and model and count the kind of node. A node
    kind is not used if anything contradicts it (MIG, no bridge, links hidden by a VM):
    a profile must not make an unusual node look broken. Raise UserError for a name or file that
    cannot be used.
    """
    if name is None or name == "auto":
        return _matched(node)
    if name.endswith((".yaml", ".yml")) or "/" in name or os.path.isfile(name):
        return _from_file(name)
    return _packaged(name)


def profile_names() -> tuple[str, ...]:
    """Every packaged name that `--profile` takes: node kinds first, then GPU models."""
    return (*sorted(packaged().nodes), *sorted(packaged().models))


def gpu_models() -> dict[str, GpuModel]:
    return {key: _model(key) for key in packaged().models}


@cache
def model_key(product_name: str, memory_mib: int | None = None) -> str | None:
    """The key of the GPU model with this NVML name; None if it is not packaged.

    The whole name must match, ignoring case: "L4" is not "L40S", and the name of a MIG device or vGPU
    matches no model. If several models have the same name, the memory decides (3 % tolerance).
    """
    found = [key for key, entry in packaged().index.items() if has_name(entry.names, product_name)]
    if len(found) > 1 and memory_mib is not None:
        sizes = {key: _model(key).nvml_memory_mib for key in found}
        fitting = [key for key in found if any(abs(memory_mib - seen) <= 0.03 * seen for seen in sizes[key])]
        found = fitting or found
    return found[0] if found else None


def _matched(node: Node) -> Profile:
    gpus = compute_gpus(node.gpus)
    keys = [model_key(g.name, known(g.memory_total_mib)) for g in gpus if not isinstance(g.name, Missing)]
    key = majority(keys)
    if key is None:
        return NO_PROFILE
    model = _model(key)
    alike = all(k == key for k in keys)
    kind = packaged().index[key].nodes.get(len(gpus)) if alike else None
    candidate = packaged().node(kind) if kind else None
    if candidate is None or _contradicts(node, candidate):
        return Profile(name=key, matched_by="GPU name", gpu=model)
    return Profile(name=candidate.name, matched_by="GPU name and count", node=candidate, gpu=model)


def _contradicts(node: Node, kind: NodeProfile) -> bool:
    """Whether something rules out this kind of node although model and count match."""
    gpus = compute_gpus(node.gpus)
    if any(known(gpu.settings.mig_enabled) for gpu in gpus):
        return True
    links = [link for gpu in gpus for link in known(gpu.nvlinks) or ()]
    joined = any(known(link.state) in ("active", "sleep") for link in links) or any(
        known(pair.nvlinks) for pair in known(node.pairs) or ()
    )
    if kind.nvlink_topology == "pairs" and not joined:  # the bridge is optional
        return True
    virtual = node.host.is_guest or any(known(gpu.settings.virtualization) == "passthrough" for gpu in gpus)
    # a virtual machine that was given none of the NVLinks
    return kind.nvlink_topology in ("switch", "cube-mesh") and virtual and bool(links) and not joined


def _packaged(name: str) -> Profile:
    matched_by = "asked for by name"
    if name in packaged().models:
        return Profile(name=name, matched_by=matched_by, gpu=_model(name))
    if name in packaged().nodes:
        node = packaged().node(name)
        return Profile(name=name, matched_by=matched_by, node=node, gpu=_model(node.gpu))
    close = nearest_names(name[:100], profile_names(), 3, 0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(profile_names()[:8])} ..."
    raise UserError(f"no profile is called {name[:100]!r}; {hint} A file of your own must end in .yaml")


class _UserProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A profile file: the key of a packaged model or a model, a node kind, or both."""

    name: str | None = None
    gpu: str | GpuModel | None = None
    node: NodeProfile | None = None


def _from_file(path: str) -> Profile:
    try:
        file = yaml_file.read_yaml(path)
        raw = file.data
        if isinstance(raw, dict) and isinstance(raw.get("node"), dict) and "name" in raw:
            raw["node"].setdefault("name", raw["name"])
        own = file.convert(raw, _UserProfile)
        if own.gpu is None and own.node is None:
            raise file.error((), "says nothing: it needs a key `gpu` or `node`")
        gpu = own.gpu
        if gpu is None and own.node is not None and own.node.gpu in packaged().models:
            gpu = own.node.gpu
        if isinstance(gpu, str):
            if gpu not in packaged().models:
                raise file.error(("gpu",), f"no model is called {gpu!r}; take a key such as h100-sxm")
            gpu = _model(gpu)
        elif gpu is not None:
            for number, pattern in enumerate(gpu.patterns):
                if not _is_expression(pattern):
                    raise file.error(("gpu", "patterns", number), f"{pattern!r} is no regular expression")
    except yaml_file.YamlFileError as error:
        raise UserError(f"profile {error}") from None
    return Profile(
        name=own.name or file.path.stem,
        matched_by=f"asked for: {file.path}",
        node=own.node,
        gpu=gpu,
    )


def _is_expression(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


@cache
def _model(key: str) -> GpuModel:
    return packaged().model(key)
