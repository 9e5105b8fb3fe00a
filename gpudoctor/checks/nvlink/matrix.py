"""The GPU-to-GPU matrix of nvidia-smi topo: what connects a pair, its peer-to-peer status, and both as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpudoctor.checks.core.finding import Evidence
from gpudoctor.checks.core.subject import Subject, of_gpu, of_pair
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.missing import Missing, known


def is_blank(pair: GpuPair) -> bool:
    """Whether the matrix has neither NVLinks nor a path for the pair."""
    return isinstance(pair.nvlinks, Missing) and isinstance(pair.path, Missing)


def bond(pair: GpuPair) -> int:
    """The number of NVLinks between the two; 0 if there are none or it is not known."""
    return known(pair.nvlinks) or 0


def connection(pair: GpuPair) -> str:
    """Text for the connection of a pair: "NV18", "SYS"."""
    return f"NV{bond(pair)}" if bond(pair) else known(pair.path) or "PCIe"


def p2p_status(pair: GpuPair) -> str | None:
    """The worse of read and write: OK only if both are."""
    words = [known(pair.p2p_read), known(pair.p2p_write)]
    return next((w for w in words if w is not None and w != "OK"), "OK" if "OK" in words else None)


def pair_names(pairs: list[GpuPair]) -> str:
    return f"GPU {pairs[0].a} - GPU {pairs[0].b}" if len(pairs) == 1 else f"{len(pairs)} pairs"


def connections(pairs: list[GpuPair]) -> str:
    return ", ".join(sorted({connection(pair) for pair in pairs}))


def census(pairs: list[GpuPair]) -> str:
    """Text for how many pairs have each connection."""
    kinds = Counter(map(connection, pairs))
    if len(kinds) == 1:
        return f"all {next(iter(kinds))}: symmetric"
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common()) + ": as symmetric as this wiring is"


def matrix_evidence(pairs: list[GpuPair]) -> list[Evidence]:
    return [
        Evidence(
            f"nvidia-smi topo, GPU{p.a} - GPU{p.b}",
            (f"NV{bond(p)}" if bond(p) else known(p.path) or "?") + f", p2p {p2p_status(p) or 'not shown'}",
        )
        for p in pairs[:8]
    ]


def fewest_subjects(bad: Iterable[GpuPair], gpus: dict[int, Gpu]) -> list[tuple[Subject, list[GpuPair]]]:
    """The fewest subjects that explain the bad pairs: a GPU in two or more of them, else the pair."""
    left, found = list(bad), []
    while left:
        index, hits = Counter(i for p in left for i in (p.a, p.b)).most_common(1)[0]
        if hits < 2:
            found += [(of_pair(p.a, p.b), [p]) for p in left]
            break
        members = [p for p in left if index in (p.a, p.b)]
        found.append((of_gpu(gpus[index]), members))
        left = [p for p in left if p not in members]
    return found
