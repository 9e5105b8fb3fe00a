"""The ten measurements that settle what gpudoctor assumes of GPUs, each beside the constants that rest on it.

A constant is named by its module and attribute and read from there: the archive of a later version tests that
version's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import msgspec

from acceptance.run import Assumption, Item, StepResult, Verdict, agreed, could_not, differs
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.facts.deadlines import Deadline
from gpudoctor.facts.model.node import Node
from gpudoctor.profiles.load import profile_for

TITLES = {
    1: "utilisation after waking and after a killed program",
    2: "time until programs with 1 and 8 CUDA contexts have ended",
    3: "processes on a GPU, beside nvidia-smi",
    4: "/dev/shm while NCCL starts",
    5: "NVML calls beside a load, a training beside quick checks",
    6: "GEMM on one GPU and on all, with clocks and power",
    7: "triad beside copy, against a plain loop",
    8: "copies between GPUs, against nvbandwidth",
    9: "all_reduce at every size, NVLS on and off",
    10: "NVLinks against nvidia-smi nvlink -s",
}
_WORST_FIRST: tuple[Verdict, ...] = ("refuted", "confirmed", "not measured")


def constant(module: ModuleType, name: str) -> str:
    """The constant as `module.NAME = value`, with the value that this version has. Raise AttributeError."""
    return f"{module.__name__}.{name} = {number_of(module, name)}"


def number_of(module: ModuleType, name: str) -> object:
    """The value of a module's constant; of a `Limit` or `Deadline` its number."""
    value = getattr(module, name)
    if isinstance(value, Limit):
        return value.value
    return value.seconds if isinstance(value, Deadline) else value


def beside_assumed(number: int, holds: bool, measured: str, assumed: str, *constants: str) -> Item:
    """What was measured beside what gpudoctor assumes; `holds`: whether the one confirms the other."""
    result: Verdict = "confirmed" if holds else "refuted"
    of = f" ({', '.join(constants)})" if constants else ""
    text = f"measurement {number}: measured {measured}; assumed {assumed}{of}: {result}"
    return msgspec.structs.replace(
        (agreed if holds else differs)(text), assumption=Assumption(number, result, measured, assumed, constants)
    )


def not_measured(number: int, why: str, *constants: str) -> Item:
    """A measurement that could not be taken, or that says nothing here, with the reason."""
    of = f" ({', '.join(constants)})" if constants else ""
    return msgspec.structs.replace(
        could_not(f"measurement {number}, {TITLES[number]}: {why}{of}"),
        assumption=Assumption(number, "not measured", "", "", constants, why),
    )


def overview(steps: Sequence[StepResult], takes: Sequence[tuple[str, tuple[int, ...]]]) -> list[str]:
    """A line for each of the ten: its result and the step that takes it. `takes`: which each step takes."""
    found = [item.assumption for step in steps for item in step.items if item.assumption is not None]
    lines = []
    for number, title in TITLES.items():
        results = [each.result for each in found if each.number == number]
        result = min(results, key=_WORST_FIRST.index, default="not measured")
        by = ", ".join(name for name, numbers in takes if number in numbers)
        lines.append(f"{number:>2} {result.upper():<12} {title} (step {by})")
    return lines


def case_of(node: Node) -> Case:
    """The case of these facts, as a check gets it, for what a check assumes of them."""
    return Case(node=node, profile=profile_for(node, None))
