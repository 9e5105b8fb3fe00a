"""The GPU-to-GPU matrix of nvidia-smi topo: a pair as text, and what deviates if no model is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, unknown, warn
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu, of_pair
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.missing import Missing, known

MATRIX_ADVICE = (
    Advice("See the matrix and the links:", "nvidia-smi topo -m; nvidia-smi nvlink --status"),
    Advice("Look for Xid 74 and SXid lines:", "sudo dmesg | grep -iE 'xid|nvlink'"),
    "Drain the node and reset the GPUs or reboot; links that stay down need a hardware case.",
)
# numbers of links that a pair of one model can have: 2 of Turing's cards, 4 of GeForce RTX 3090 and RTX A6000, 12 of
# the data-centre cards with bridges; 6, 12 and 18 through switches. Source: the profiles of the models
_WHOLE_BONDS = (2, 4, 6, 8, 12, 18)
_BOARDS = (4, 8, 16)  # numbers of GPUs that NVLink joins all to all


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
    parts = [known(pair.p2p_read), known(pair.p2p_write)]
    return next((w for w in parts if w is not None and w != "OK"), "OK" if "OK" in parts else None)


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
    evidence = []
    for pair in pairs[:8]:
        joined = f"NV{bond(pair)}" if bond(pair) else known(pair.path) or "?"
        seen = f"{joined}, p2p {p2p_status(pair) or 'not shown'}"
        evidence.append(Evidence(f"nvidia-smi topo, GPU{pair.a} - GPU{pair.b}", seen))
    return evidence


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


# What deviates in a matrix if the models of its GPUs are not known.


def odd_number(pairs: list[GpuPair], gpus: list[Gpu]) -> Finding | None:
    """`unknown` for a pair with a number of links that no model has, if the model is not known; else None.

    If there are several such pairs, `_wiring` compares them; a single one has no peers.
    """
    bonded = [pair for pair in pairs if bond(pair)]
    bonds = Counter(i for p in bonded for i in (p.a, p.b))
    if not bonded or max(bonds.values()) > 1 or any(known(gpu.name) for gpu in gpus):
        return None
    outlier = next((pair for pair in bonded if bond(pair) not in _WHOLE_BONDS), None)
    if outlier is None:
        return None
    return unknown(
        of_pair(outlier.a, outlier.b),
        f"NV{bond(outlier)} between GPU {outlier.a} and GPU {outlier.b}: the model is not known, and so is not how "
        "many links its bridge has; most have 2, 4 or 12, so that some may be down",
        *matrix_evidence([outlier]),
        advice=[
            Advice("See the model, and each link's state.", "nvidia-smi -L; nvidia-smi nvlink --status"),
            "A link is inactive: power off and seat the bridge flat on both cards.",
        ],
    )


def odd_rows(pairs: list[GpuPair], gpus: list[Gpu]) -> Finding | None:
    """`unknown` for a mesh in which some GPUs have fewer NVLinks than others, if the model is not known; else None.

    Bridges connect two GPUs and no others; in a mesh or behind switches every GPU has the same connections. A warning
    if the others are joined all to all, and this one would make their number that of a board.
    """
    rows = {gpu.index: sorted(bond(p) for p in pairs if gpu.index in (p.a, p.b)) for gpu in gpus}
    fullest = max(rows.values(), key=lambda row: (sum(map(bool, row)), sum(row)))
    is_mesh = sum(map(bool, fullest)) > 1
    fewer = {index for index, row in rows.items() if row != fullest}
    if not is_mesh or not fewer or any(known(gpu.name) for gpu in gpus):
        return None
    lone = [gpu for gpu in gpus if not any(rows[gpu.index])]
    if len(lone) == 1 and len(gpus) in _BOARDS and _joined_without(lone[0], pairs, max(fullest)):
        return _beside_a_board(lone[0], len(gpus) - 1, pairs, max(fullest))
    return _uneven(pairs, fewer, fullest)


def _joined_without(lone: Gpu, pairs: list[GpuPair], links: int) -> bool:
    """Whether all pairs without this GPU have so many links."""
    rest = [pair for pair in pairs if lone.index not in (pair.a, pair.b)]
    return bool(rest) and all(bond(pair) == links for pair in rest)


def _beside_a_board(lone: Gpu, others: int, pairs: list[GpuPair], links: int) -> Finding:
    return warn(
        of_gpu(lone),
        f"no NVLink to any of {others} GPUs that all have NV{links} with each other",
        Expected(f"NV{links} between every two GPUs, as the others have", source="peers"),
        *matrix_evidence([pair for pair in pairs if lone.index in (pair.a, pair.b)]),
        likely="all NVLinks of this GPU are down, or it is a card beside the board of the others",
        advice=MATRIX_ADVICE,
    )


def _uneven(pairs: list[GpuPair], fewer: set[int], fullest: list[int]) -> Finding:
    """`fewer`: the GPUs with fewer links than the one with the `fullest` row."""
    short = [pair for pair in pairs if bond(pair) < max(fullest)]
    outliers = [p for p in short if {p.a, p.b} <= fewer] or [p for p in short if {p.a, p.b} & fewer]
    return unknown(
        of_pair(outliers[0].a, outliers[0].b) if len(outliers) == 1 else NODE,
        f"{pair_names(outliers)}: {connections(outliers)}, while other GPUs have NV{max(fullest)} with "
        f"{sum(map(bool, fullest))} GPUs: NVLinks that are down, or how this machine is wired; the model is not known",
        *matrix_evidence(outliers),
        advice=[Advice("See the model, and each link's state.", "nvidia-smi -L; nvidia-smi nvlink --status")],
    )
