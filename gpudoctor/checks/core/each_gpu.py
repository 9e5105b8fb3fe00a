"""GPUs one by one: the loop over those whose readings can be trusted, their peers, and values not read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from operator import attrgetter
from typing import TypeVar

from gpudoctor.checks.core.case import Case, once_a_case
from gpudoctor.checks.core.condemning import condemning
from gpudoctor.checks.core.finding import Finding, unknown
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.codes import LOST, RESET_REQUIRED, UNKNOWN, code_in_words
from gpudoctor.text.grouped import grouped

T = TypeVar("T")

# of temperature, power, performance state and utilization in the nvidia-smi table
_MOST_ERR = 3
_GONE = (LOST, RESET_REQUIRED)
# values that nearly every driver reports for every GPU
_main_values: Callable[[Gpu], tuple[object, ...]] = attrgetter(
    *("uuid", "name", "memory_total_mib", "memory_used_mib", "thermal.gpu_c", "power.draw_w", "clocks.sm_mhz"),
    *("clocks.performance_state", "utilization.gpu_pct"),
)
# worst first
_STATES = {LOST: "lost", RESET_REQUIRED: "waiting for a reset", UNKNOWN: "answering with driver errors"}


def untrusted(gpu: Gpu) -> str | None:
    """Why no reading of this GPU may be judged, as text for `unknown(...)`; None if they may.

    A GPU is untrusted after errors that condemn it as a whole (see `condemning`): its other readings may be stale
    or nonsense. So is one of which hardly anything was read, or with impossible readings: see `unreadable`.
    """
    errors = condemning(gpu)
    if not errors:
        return unreadable(gpu)
    order = list(_STATES)
    error = min(errors, key=lambda e: order.index(e.code) if e.code in order else len(order))
    text = _STATES.get(error.code, _STATES[UNKNOWN])
    return f"the GPU is {text} ({error.code}, {error.call}): its readings cannot be trusted"


def says_err(value: object) -> bool:
    """Whether the table cell holds ERR!: nvidia-smi's query failed with an error that it does not name."""
    return isinstance(value, Missing) and value.kind == "failed" and value.reason.endswith("says ERR!")


def unreadable(gpu: Gpu) -> str | None:
    """Why this GPU cannot be judged by its readings, as text for `unknown(...)`; None if it can.

    Either more of its main values were denied than read; or nvidia-smi shows ERR! for most values of its table; or
    temperature, power and clock are all 0, which is impossible for a running GPU.
    """
    values = _main_values(gpu)
    missing = [value for value in values if isinstance(value, Missing)]
    if missing and (why := _why_missing(missing, len(values))):
        return why
    if known(gpu.thermal.gpu_c) == 0 and known(gpu.power.draw_w) == 0 and known(gpu.clocks.sm_mhz) == 0:
        return "it answers 0 C, 0 W and 0 MHz at once: these are no readings"
    return None


def _why_missing(missing: Sequence[Missing], asked: int) -> str | None:
    """Why a GPU that lacks these of its main values cannot be judged; None if it can."""
    denied = [value for value in missing if value.kind == "denied"]
    if len(denied) > asked - len(missing):
        return f"{len(denied)} of its {asked} main values may not be read ({denied[0].reason})"
    refused = [value for value in missing if says_err(value)]
    if len(refused) >= _MOST_ERR:
        return f"nvidia-smi says ERR! for {len(refused)} of its main values: it could not read this GPU"
    lost = (value.reason for value in missing if value.kind == "failed" and code_in_words(value.reason) in _GONE)
    if reason := next(lost, None):
        return f"its values are missing for this reason: {reason}"
    return None


def says_nothing(gpu: Gpu) -> bool:
    """Whether none of the GPU's main values was read, whatever the reason."""
    return all(isinstance(value, Missing) for value in _main_values(gpu))


def shown_by_driver(node: Node, gpu: Gpu) -> bool:
    """Whether the driver reported this GPU; otherwise it is known only from a list of the PCI bus."""
    values = (*_main_values(gpu), gpu.nvlinks, gpu.cpu_affinity)
    reported = any(not isinstance(value, Missing) for value in values if value is not gpu.name)
    return reported or bool(gpu.errors) or not isinstance(node.pairs, Missing)


def each_gpu(judge: Callable[[Case, Gpu], Finding | Iterable[Finding]]) -> Callable[[Case], Iterator[Finding]]:
    """Turn a function that judges one GPU into a check of every GPU in scope.

    GPUs whose readings cannot be trusted are not passed to it: their finding is `unknown`.
    """

    @wraps(judge)
    def check_all(case: Case) -> Iterator[Finding]:
        for gpu in case.gpus:
            if doubt := untrusted(gpu):
                yield unknown(of_gpu(gpu), doubt)
                continue
            found = judge(case, gpu)
            yield from (found,) if isinstance(found, Finding) else found

    return check_all


def trusted(gpus: Iterable[Gpu]) -> tuple[list[Gpu], list[Finding]]:
    """Split into the GPUs whose readings can be trusted, and one `unknown` finding for each of the others."""
    doubts = [(gpu, untrusted(gpu)) for gpu in gpus]
    return [gpu for gpu, doubt in doubts if not doubt], [unknown(of_gpu(gpu), doubt) for gpu, doubt in doubts if doubt]


@once_a_case
def by_model(case: Case) -> dict[str | Missing, list[Gpu]]:
    """The GPUs in scope that can be trusted and whose model is known, by model."""
    return grouped((gpu.name, gpu) for gpu in case.gpus if known(gpu.name) and not untrusted(gpu))


def passed_through(gpu: Gpu) -> bool:
    """Whether the GPU reports itself as handed into a virtual machine, whole or as a vGPU."""
    return known(gpu.settings.virtualization) in ("passthrough", "vgpu")


def in_virtual_machine(node: Node, gpus: Iterable[Gpu]) -> bool:
    """Whether this is a virtual machine, by the host facts or by the virtualization mode of one of these GPUs."""
    return node.host.is_guest or any(map(passed_through, gpus))


def out_of_line(count: int, ordered: Sequence[int], floor: float, ratio: float) -> float | None:
    """The bound that a lifetime counter exceeds compared with its peers'; None if it does not. Alone no verdict.

    `ordered` are the counts of all in ascending order, `count` among them. The bound is `ratio` times the median of the
    others, but at least `floor`. Without others, a tenth of the floor replaces their median.

    >>> out_of_line(50_000, [0, 1, 3, 50_000], floor=1000, ratio=100)
    1000
    >>> out_of_line(150, [0, 0, 0, 150], floor=1000, ratio=100) is None
    True
    """
    middle = (len(ordered) - 1) // 2
    # the others' median, found without a copy of them: every GPU asks
    median = ordered[middle + (bisect_left(ordered, count) <= middle)] if len(ordered) > 1 else floor / 10
    bound = max(floor, ratio * median)
    return bound if count >= bound else None


def majority_of_others(counts: Counter[T], own: T) -> T | None:
    """The value that more than half of the others have; None if there is none. `counts` are of all values.

    >>> majority_of_others(Counter([300, 300, 700, 700]), 300)
    700
    """
    others = counts.total() - 1
    for value, count in counts.most_common()[:2]:  # with a number it imports heapq
        if (count - (value == own)) * 2 > others > 0:
            return value
    return None
