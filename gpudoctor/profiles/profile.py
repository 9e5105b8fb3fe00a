"""Expected values of a GPU model and of a kind of node, and peers: the GPUs of a node compared with each other."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known

# without annotations from __future__: see facts/model/__init__.py

T = TypeVar("T")
# characters that stand for themselves in a regular expression
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 -/_"


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything in a profile; an unknown key in YAML is an error."""


class NvlinkSpec(Expectation, frozen=True):
    """NVLinks of a GPU model. `kind`: switch (all links must be up), mesh, or bridge (optional).

    `gb_s_per_link` is nominal, in one direction; `raw_gb_s` is what nvidia-smi prints per link;
    `effective_gb_s` is what NCCL's bandwidth model assumes.
    """

    links: int
    kind: Literal["switch", "mesh", "bridge"]
    version: str
    gb_s_per_link: float
    raw_gb_s: float | None = None
    effective_gb_s: float | None = None


class GpuModel(Expectation, frozen=True):
    """One GPU model. `patterns` match NVML's product name, anchored, case-insensitive.

    Fields named in `uncertain` cause a warn at most, never a fail. None: do not judge.
    `bf16_tflops` and `fp16_tflops` are the data sheet's dense rates; `achieved_bf16_tflops` is the best published
    measurement. `inline_ecc`: with ECC on, its check bits use a part of the memory bandwidth (GDDR).
    """

    name: str
    patterns: tuple[str, ...]
    memory_gib: tuple[float, ...] = ()
    nvml_memory_mib: tuple[int, ...] = ()
    compute_capability: str | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlink: NvlinkSpec | None = None
    ecc: Literal["yes", "configurable", "no"] | None = None
    power_limit_w: float | None = None
    memory_bandwidth_gb_s: float | None = None
    bf16_tflops: float | None = None
    uncertain: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    achieved_bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    inline_ecc: bool = False


class BusbwRow(Expectation, frozen=True):
    """Expected all_reduce bus bandwidth for this number of ranks, at large message sizes."""

    ranks: int
    busbw_gb_s: float
    source: str
    uncertain: bool = False


class NodeProfile(Expectation, frozen=True):
    """A kind of node. Matched by the GPU model's key, the number of GPUs, and their wiring.

    `size_factor`: message size in MiB -> fraction of the large-message bandwidth that a healthy node reaches.
    `warn_below` and `fail_below` are shares of the expected busbw; None: those of collective.bandwidth.
    """

    name: str
    title: str
    gpu: str
    gpus: int
    nvswitch: bool = False
    nvlink_topology: Literal["switch", "cube-mesh", "pairs", "none"] = "none"
    all_reduce: tuple[BusbwRow, ...] = ()
    size_factor: dict[str, float] = {}
    warn_below: float | None = None
    fail_below: float | None = None
    sources: tuple[str, ...] = ()


class Profile(Expectation, frozen=True):
    """What this node is judged against. Without one of the parts, checks compare with peers and the GPUs' maxima."""

    name: str
    matched_by: str
    node: NodeProfile | None = None
    gpu: GpuModel | None = None


NO_PROFILE = Profile(name="none", matched_by="no profile fits: judged by the GPUs' own maxima and their peers")


def has_name(patterns: Iterable[str], product_name: str) -> bool:
    """Whether one of a model's patterns is this NVML name, with or without "NVIDIA" before it.

    The whole name must match, ignoring case: "L4" is not "L40S", and the name of a MIG device or vGPU matches no model.
    """
    vendor, _, bare = product_name.strip().partition(" ")
    name = (bare.lstrip() if vendor.lower() == "nvidia" and bare else product_name.strip()).lower()
    return any(_is_name(pattern, name) for pattern in patterns)


def _is_name(pattern: str, name: str) -> bool:
    special = pattern.lstrip(_PLAIN)
    plain = pattern.removesuffix(special).lower()
    if not special:
        return name == plain
    # compiling sixty expressions takes longer than this; the last plain character may be optional
    if "|" not in pattern and not name.startswith(plain[:-1]):
        return False
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None


def compute_gpus(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs without those that only drive a display.

    A GPU counts as display-only if a display is active on it and it has less than half the
    memory of the largest GPU (a T400 next to an A100).
    """
    largest = max((known(gpu.memory_total_mib) or 0 for gpu in gpus), default=0)

    def display_only(gpu: Gpu) -> bool:
        memory = known(gpu.memory_total_mib)
        return known(gpu.settings.display_active) is True and memory is not None and memory * 2 < largest

    return tuple(gpu for gpu in gpus if not display_only(gpu))


def majority(values: Iterable[T]) -> T | None:
    """The value that more than half of them have; None if there is none. Values must be hashable.

    >>> majority([16, 16, 8])
    16
    >>> majority([16, 8]) is None
    True
    """
    items = list(values)
    if not items:
        return None
    value, count = Counter(items).most_common()[0]  # with a number it imports heapq
    return value if count * 2 > len(items) else None
