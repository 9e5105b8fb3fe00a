"""Peers: the GPUs of a node that are compared with each other, in addition to the profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known

T = TypeVar("T")


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
    value, count = Counter(items).most_common(1)[0]
    return value if count * 2 > len(items) else None
