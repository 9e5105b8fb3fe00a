"""Helpers of checks that judge single GPUs: the loop over trusted GPUs, their peers, values not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, unknown, unread
from gpudoctor.checks.core.subject import Subject, of_gpu
from gpudoctor.checks.core.trust import untrusted
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node


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


def same_model(case: Case, gpu: Gpu) -> list[Gpu]:
    """The other GPUs in scope that can be trusted and are known to be the same model."""
    name = known(gpu.name)
    return [g for g in case.gpus if g is not gpu and name and known(g.name) == name and not untrusted(g)]


def first_failed(values: Iterable[object]) -> Missing | None:
    """The first value that could not be read (kind "failed"; absent, unsupported and denied values do not count)."""
    return next((value for value in values if isinstance(value, Missing) and value.kind == "failed"), None)


def first_unread(subject: Subject, *values: tuple[str, object]) -> Finding | None:
    """An `unknown` finding for the first named value that could not be read, as it may hide a fault; None if all were
    read."""
    for what, value in values:
        if failed := first_failed([value]):
            return unread(subject, what, failed)
    return None


def passed_through(gpu: Gpu) -> bool:
    """Whether the GPU reports itself as handed into a virtual machine, whole or as a vGPU."""
    return known(gpu.settings.virtualization) in ("passthrough", "vgpu")


def in_virtual_machine(node: Node, gpus: Iterable[Gpu]) -> bool:
    """Whether this is a virtual machine, by the host facts or by the virtualization mode of one of these GPUs."""
    return node.host.is_guest or any(map(passed_through, gpus))


def out_of_line(count: int, peers: Sequence[int], floor: float, ratio: float) -> float | None:
    """The bound that a lifetime counter exceeds compared with its peers'; None if it does not. Alone no verdict.

    The bound is `ratio` times the peers' median, but at least `floor`. Without peers, a tenth of the floor
    replaces their median.

    >>> out_of_line(50_000, [0, 3, 1], floor=1000, ratio=100)
    1000
    >>> out_of_line(150, [0, 0, 0], floor=1000, ratio=100) is None
    True
    """
    middle = sorted(peers)[len(peers) // 2] if peers else floor / 10
    bound = max(floor, ratio * middle)
    return bound if count >= bound else None
