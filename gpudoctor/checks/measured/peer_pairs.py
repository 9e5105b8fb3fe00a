"""Measured GPU pairs grouped by their connection: pairs with an equal connection are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.measured.ranks import rank_gpu
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.links import link_gb_s
from gpudoctor.facts.model.measured_hardware import PeerLink
from gpudoctor.facts.model.missing import known

_ONE_SWITCH = ("PIX", "PXB")


class Joined(msgspec.Struct, frozen=True):
    """Two GPUs, the measured links in both directions, and what connects them.

    `kind`: NV18, PIX, SYS, ... `alike`: equal for pairs that should be equally fast. `direct`: over NVLink, or
    peer-to-peer below one PCIe bridge, so that nothing but the GPUs and their links takes part. `line_gb_s`: the
    line rate of their NVLinks in one direction; `certain`: whether that number is sure enough for a fail.
    """

    gpus: tuple[int, int]
    links: tuple[PeerLink, ...]
    kind: str
    alike: tuple[object, ...]
    direct: bool
    nvlinks: int = 0
    line_gb_s: float | None = None
    certain: bool = True

    @property
    def gb_s(self) -> float:
        """The rate of the slower direction."""
        return min(link.gb_s for link in self.links)

    @property
    def p2p_off(self) -> bool:
        return any(link.p2p is False for link in self.links)

    @property
    def wrong_elements(self) -> int:
        return sum(link.wrong_elements for link in self.links)


def joined_pairs(case: Case, links: Sequence[PeerLink]) -> tuple[Joined, ...]:
    """The measured pairs, lower GPU index first; links of ranks whose GPU is unknown are left out."""
    between: dict[tuple[int, int], list[PeerLink]] = {}
    gpus: dict[int, Gpu] = {}
    for link in links:
        source, target = rank_gpu(case, link.source), rank_gpu(case, link.target)
        if source is None or target is None:
            continue
        gpus[source.index], gpus[target.index] = source, target
        low, high = sorted((source.index, target.index))
        between.setdefault((low, high), []).append(link)
    known_pairs = {(pair.a, pair.b): pair for pair in known(case.node.pairs) or ()}
    return tuple(
        _joined(case, gpus[key[0]], gpus[key[1]], tuple(both), known_pairs.get(key))
        for key, both in sorted(between.items())
    )


def _joined(case: Case, a: Gpu, b: Gpu, links: tuple[PeerLink, ...], pair: GpuPair | None) -> Joined:
    models = tuple(sorted(str(known(gpu.name)) for gpu in (a, b)))
    nvlinks = (known(pair.nvlinks) or 0) if pair else 0
    p2p_off = any(link.p2p is False for link in links)
    if nvlinks:
        line_gb_s, certain = _line(case, (a, b), nvlinks)
        kind = f"NV{nvlinks}"
        return Joined((a.index, b.index), links, kind, (kind, models), True, nvlinks, line_gb_s, certain)
    path = (known(pair.path) if pair else None) or "PCIe"
    # a slot with fewer lanes makes each of its pairs slower: the pcie.* checks report that
    rates = [_pcie_gb_s(gpu) for gpu in (a, b)]
    narrower = None if None in rates else min(rate for rate in rates if rate is not None)
    direct = path in _ONE_SWITCH and not p2p_off
    kind = f"{path}, P2P off" if p2p_off else path
    return Joined((a.index, b.index), links, kind, (kind, models, narrower), direct)


def _line(case: Case, gpus: tuple[Gpu, Gpu], nvlinks: int) -> tuple[float | None, bool]:
    specs = [(model, model.nvlink) for gpu in gpus if (model := case.model_of(gpu)) is not None]
    rates = [spec.gb_s_per_link for _, spec in specs if spec is not None]
    if len(rates) < 2:
        return None, False
    certain = not any(field.startswith("nvlink") for model, _ in specs for field in model.uncertain)
    return nvlinks * min(rates), certain


def _pcie_gb_s(gpu: Gpu) -> float | None:
    generation, width = gpu.pcie.generation_reachable, known(gpu.pcie.width)
    return link_gb_s(generation, width) if generation and width else None
