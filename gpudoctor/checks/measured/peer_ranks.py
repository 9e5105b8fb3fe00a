"""Comparing a rank's rate with a reference: the figures of ranks whose GPUs are the same model, or a known rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Expected
from gpudoctor.checks.core.gpu_use import use_of_gpu
from gpudoctor.checks.measured.ranks import gpus_of, on_gpus, rank_gpu
from gpudoctor.checks.measured.under_load import median
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known


class Yardstick(msgspec.Struct, frozen=True):
    """A reference rate `of`, the share of it that was reached, and the limits of that share.

    `what` continues "90 % of the 24.6 " in text. `fail` is None if it must not fail a GPU; `allowance` is a factor of
    both limits; `by_peers`: the reference comes from other GPUs of this node.
    """

    share: float
    of: float
    warn: Limit
    fail: Limit | None
    what: str
    allowance: float = 1.0
    by_peers: bool = False

    def verdict(self, case: Case, gpu: Gpu | None) -> Literal["warn", "fail"] | None:
        """The status of a rate below a limit; None if it is not."""
        if self.fail is not None and self.share < case.limit(self.fail, gpu) * self.allowance:
            return "fail"
        return "warn" if self.share < case.limit(self.warn, gpu) * self.allowance else None

    def expected(self, case: Case, gpu: Gpu | None, kind: str, unit: str, digits: int = 3) -> Expected:
        """The least rate that would not be of this `kind` (warn, fail)."""
        limit = self.fail if kind == "fail" and self.fail is not None else self.warn
        share = case.limit(limit, gpu) * self.allowance
        floor = share * self.of
        text = f"at least {floor:.{digits}g} {unit}: {share:.0%} of the {self.of:.{digits}g} {self.what}"
        return Expected(text, ">=", round(floor, 2), unit, case.limit_source(limit, gpu))


def by_model(case: Case, ranks: Iterable[int]) -> list[tuple[int, ...]]:
    """Group the ranks by their GPU's name, memory and PCI id: boards with one name may differ in the others.

    All CPU ranks form one group; a GPU that is not in the facts forms a group alone.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in ranks:
        gpu = rank_gpu(case, rank)
        unlike = (rank,) if on_gpus(case) else ()
        key = (known(gpu.name), known(gpu.memory_total_mib), known(gpu.pci_device_id)) if gpu else unlike
        groups.setdefault(key, []).append(rank)
    return [tuple(group) for group in groups.values()]


def against_others(rank: int, figures: Mapping[int, float]) -> float | None:
    """This rank's figure divided by the median of the others'; None if there are no others."""
    usual = median(value for other, value in figures.items() if other != rank)
    return figures[rank] / usual if usual else None


def other_processes(case: Case, *ranks: int) -> str | None:
    """Text naming the processes that compute on the first of these ranks' GPUs that is shared; None if none is."""
    on_each = (use_of_gpu(gpu).others for rank in ranks if (gpu := rank_gpu(case, rank)))
    others = next(filter(None, on_each), None)
    return f"pid {', '.join(str(p.pid) for p in others[:3])} uses the GPU too" if others else None


def slowing_setting(case: Case, rank: int, group: Sequence[int]) -> str | None:
    """Text for a setting that makes this GPU slow on purpose, which another check reports; else None."""
    gpu = rank_gpu(case, rank)
    if gpu is None:
        return None
    limit_w, usual_w = known(gpu.power.limit_w), known(gpu.power.default_limit_w)
    for peer in others_of(case, rank, group):
        usual_w = max(usual_w or 0.0, known(peer.power.limit_w) or 0.0)
    if limit_w is not None and usual_w and limit_w < usual_w * 0.98:
        return f"its power limit is set to {limit_w:g} W, where {usual_w:g} W are usual"
    set_clocks = {"application-clocks", "display-clocks"} & set(known(gpu.clocks.event_reasons) or ())
    return "its clocks are held down by a setting" if set_clocks else None


def others_of(case: Case, rank: int, group: Sequence[int]) -> list[Gpu]:
    """The GPUs of the other ranks of a group, as far as they are known."""
    return gpus_of(case, [other for other in group if other != rank])
