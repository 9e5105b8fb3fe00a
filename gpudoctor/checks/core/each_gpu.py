"""What checks of single GPUs share: the loop over the GPUs that can be trusted, their peers, values not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, unknown, unread
from gpudoctor.checks.core.subject import Subject, of_gpu
from gpudoctor.checks.core.trust import untrusted
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node


def each_gpu(judge: Callable[[Case, Gpu], Finding | Iterable[Finding]]) -> Callable[[Case], Iterator[Finding]]:
    """Make a check of a function that judges one GPU: run it on each GPU in scope, in their order.

    A GPU whose readings cannot be trusted is not handed to it: its finding is `unknown`.
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
    """The GPUs whose readings can be trusted, and one `unknown` for each of the others."""
    doubts = [(gpu, untrusted(gpu)) for gpu in gpus]
    return [gpu for gpu, doubt in doubts if not doubt], [unknown(of_gpu(gpu), doubt) for gpu, doubt in doubts if doubt]


def same_model(case: Case, gpu: Gpu) -> list[Gpu]:
    """The other GPUs in scope that can be trusted and are known to be of this GPU's model."""
    name = known(gpu.name)
    return [g for g in case.gpus if g is not gpu and name and known(g.name) == name and not untrusted(g)]


def first_failed(values: Iterable[object]) -> Missing | None:
    """The first value whose reading failed (not: is absent, unsupported or denied)."""
    return next((value for value in values if isinstance(value, Missing) and value.kind == "failed"), None)


def first_unread(subject: Subject, *values: tuple[str, object]) -> Finding | None:
    """The finding for the first of these named values whose reading failed: it may hide a fault, so nothing passes."""
    for what, value in values:
        if failed := first_failed([value]):
            return unread(subject, what, failed)
    return None


def passed_through(gpu: Gpu) -> bool:
    """Whether the GPU is handed into a virtual machine, whole or as a vGPU, as it says itself."""
    return known(gpu.settings.virtualization) in ("passthrough", "vgpu")


def in_virtual_machine(node: Node, gpus: Iterable[Gpu]) -> bool:
    """Whether this is a virtual machine, by its host facts or by what one of these GPUs says."""
    return known(node.host.virtualization) == "vm" or any(map(passed_through, gpus))
