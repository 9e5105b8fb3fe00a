"""A node that nobody has read: GPUs that are named by a kind of node or a GPU model of the packaged profiles."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import product

from msgspec.structs import replace

from gpudoctor.errors import UserError, nearest_names
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, fill
from gpudoctor.facts.model.node import Node, Source
from gpudoctor.facts.simulated.load import node_names
from gpudoctor.lazy import lazy_pattern
from gpudoctor.profiles.load import gpu_models, model_key, packaged
from gpudoctor.profiles.profile import GpuModel
from gpudoctor.text.output import printable

MOST_GPUS = 64
_COUNTED = lazy_pattern(r"(\d{1,2}) ?x ?(.+)", re.IGNORECASE)
_GIB = lazy_pattern(r"(\d{1,3})g(i?b)?", re.IGNORECASE)
_GROUP = lazy_pattern(r"\(([^()]*)\)(\??)")
_EITHER = lazy_pattern(r"\[(\w)(\w)\]")
_UNKNOWN = Missing("no profile says it")


def node_of_profile(name: str) -> Node | None:
    """The node that a kind of node (`dgx-a100-40gb-8`) or a number of GPUs (`8xA100-SXM4-40GB`) stands for.

    A GPU model is named by its key, or by words of it: `8xa100-40gb` if only one model has both. Only what the
    profile says is filled in. None for a file, a simulated node, or a name that stands for neither. Raises UserError
    for a model without a number and for words that several models or none have, with the nearest names.
    """
    if name in node_names() or name == "-" or os.sep in name or os.path.lexists(name):
        return None
    if name in packaged().nodes:
        kind = packaged().node(name)
        return _node(name, kind.gpu, kind.gpus, None)
    counted = _COUNTED.fullmatch(name)
    if counted is None:
        if name.lower() in packaged().models:
            raise UserError(f"--node {name} is a GPU model: say how many, as in --node 8x{name.lower()}")
        near = nearest_names(name[:100], packaged().nodes, 1, 0.7)
        if near:
            raise UserError(f"--node {printable(name)[:60]}: no such file or node; did you mean {near[0]}?")
        return None
    count = int(counted[1])
    if not 1 <= count <= MOST_GPUS:
        raise UserError(f"--node {name}: a node has 1 to {MOST_GPUS} GPUs; more of them are --nodes N")
    key, gib = _model_named(counted[2].strip(), count)
    return _node(f"{count}x{key}", key, count, gib)


def _model_named(text: str, count: int) -> tuple[str, int | None]:
    """The model's key, and the memory in GiB if the words name it. Raises UserError if not exactly one has them."""
    given = set(re.split(r"[^a-z0-9]+", text.lower())) - {"", "nvidia", "geforce", "tesla"}
    sizes = {int(size[1]) for word in given if (size := _GIB.fullmatch(word))}
    found = [key for key, model in gpu_models().items() if given <= _words(key, model)]
    exact = [key for key in found if key == text.lower()]
    if len(found) != 1 and len(exact) != 1:
        names = found or _most_alike(given, text.lower()[:100])
        which = "several have this name" if found else "no such GPU model"
        hint = f": --node {count}x{f', {count}x'.join(names[:6])}" if names else "; see docs/plan.md"
        raise UserError(f"--node {count}x{printable(text)[:60]}: {which}{hint}")
    return (exact or found)[0], min(sizes, default=None)


def _most_alike(given: set[str], text: str) -> list[str]:
    """Up to three models: those that share most words with the name; if none shares any, those of similar spelling."""
    shared = {key: len(given & _words(key, model)) for key, model in gpu_models().items()}
    most = max(shared.values())
    alike = [key for key, count in shared.items() if count == most] if most else [*shared]
    return nearest_names(text, alike, 3, 0.0 if most else 0.4)


def _words(key: str, model: GpuModel) -> set[str]:
    named = re.split(r"[^a-z0-9]+", model.name.lower())
    sizes = {text for gib in model.memory_gib for text in (f"{gib:g}gb", f"{gib:g}g", f"{gib:g}gib")}
    return {*key.split("-"), *named, *sizes}


def _node(name: str, key: str, count: int, gib: int | None) -> Node:
    model = gpu_models()[key]
    size = gib or min(model.memory_gib, default=None)
    # the totals that drivers show lie just below the marketed size
    totals = [mib for mib in model.nvml_memory_mib if size is None or 0.9 * size * 1024 < mib <= size * 1024]
    memory = min(totals, default=None)
    if size is not None and len(model.memory_gib) > 1:
        name += f" with {size:g} GB"
    product_name = f"NVIDIA {next(_product_names(key, memory, size), model.name).removeprefix('NVIDIA ')}"
    gpu = Gpu(
        index=0,
        bus_id="",
        name=product_name,
        memory_total_mib=_UNKNOWN if memory is None else memory,
        compute_capability=model.compute_capability or _UNKNOWN,
    )
    gpus = tuple(fill(replace(gpu, index=index, bus_id=f"0000:{index:02x}:00.0"), _UNKNOWN) for index in range(count))
    return replace(fill(Node(), _UNKNOWN), gpus=gpus, source=Source(kind="profile", name=name))


def _product_names(key: str, memory_mib: int | None, size: float | None) -> Iterator[str]:
    """NVML names by which the model is recognised again, those with its memory first; none for a pattern's `.*`."""
    made = [name for pattern in packaged().index[key].names for name in _alternatives(pattern) if ".*" not in name]
    right = [name for name in made if model_key(name, memory_mib) == key]
    yield from sorted(right, key=lambda name: (f"{size or 0:g}GB" not in name, len(name)))


def _alternatives(pattern: str) -> Iterator[str]:
    """Every text that a pattern of plain groups matches: "A100( LC)?" is "A100 LC" and "A100"."""
    pieces = _GROUP.split(_EITHER.sub(r"(\1|\2)", pattern))
    choices = [[*pieces[i].split("|"), *([""] if pieces[i + 1] else [])] for i in range(1, len(pieces), 3)]
    for taken in product(*choices):
        yield "".join(text for pair in zip(pieces[::3], (*taken, ""), strict=True) for text in pair)
