"""A `Node` as its driver would tell it: handles, and leaves in NVML's own numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pynvml

from gpudoctor.facts.model.gpu import Gpu, MigInstance
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.labels import ERROR_WORDS, missing_for

UP = ("active", "sleep")
_CODES = {"unsupported": 3, "absent": 3, "denied": 4, "failed": 999}
# the end of a reason that came from a driver: "nvmlDeviceGetTemperature: GPU is lost (15)"
_TOLD_CODE = re.compile(r"\((\d{1,3})\)$")


class FakeHandle(msgspec.Struct, frozen=True):
    """A GPU by NVML index, or one of its MIG instances."""

    index: int
    instance: int | None = None


class ReportedNode:
    """The node, and the GPU that a handle stands for."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.gpus = {gpu.index: gpu for gpu in node.gpus}
        # traffic is no fact: KB/s by counter (0 sent, 1 received), and KiB by (GPU, field 138 sent or 139 received)
        self.pcie_kb_s = {0: 1_250_000, 1: 2_500_000}
        self.nvlink_kib: dict[tuple[int, int], int] = {}

    def _gpu(self, handle: FakeHandle) -> Gpu:
        return self.gpus[handle.index]

    def _instance(self, handle: FakeHandle) -> MigInstance | None:
        if handle.instance is None:
            return None
        instance: MigInstance = give(self._gpu(handle).settings.mig_instances)[handle.instance]
        return instance


def code_of(leaf: Missing) -> int:
    """The return code that left this leaf Missing: the one in its reason, else one of its kind."""
    told = _TOLD_CODE.search(leaf.reason) if leaf.kind == "failed" else None
    code = int(told[1]) if told else 0
    if code in ERROR_WORDS and code and missing_for(code, "").kind == "failed":
        return code
    return _CODES[leaf.kind]


def give(leaf: Any) -> Any:
    """The value, or NVML's error for a leaf that is Missing."""
    if isinstance(leaf, Missing):
        raise pynvml.NVMLError(code_of(leaf))
    return leaf


def number(leaf: Any, names: Mapping[int, str]) -> int:
    """The number that NVML has for a word; "value 9" is a number that has no word yet."""
    text = give(leaf)
    numbers = [number for number, name in names.items() if name == text]
    return numbers[0] if numbers else int(str(text).removeprefix("value "))


def leaf_of(gpu: Gpu, path: str) -> Any:
    """The leaf at a dotted path, a bool as 0 or 1."""
    leaf: Any = gpu
    for name in path.split("."):
        leaf = getattr(leaf, name)
    value = give(leaf)
    return int(value) if isinstance(value, bool) else value


def nvml_bus_id(bus_id: str) -> bytes:
    return f"0000{bus_id}".upper().encode()


def mw(leaf: Any) -> int:
    thousandths: int = round(give(leaf) * 1000)
    return thousandths


def tristate(leaf: bool | Missing) -> int:
    return 0 if isinstance(leaf, Missing) else 1 if leaf else 2


def mask(bits: frozenset[int], size: int) -> list[int]:
    masks = [0] * size
    for bit in bits:
        masks[bit // 64] |= 1 << bit % 64
    return masks
