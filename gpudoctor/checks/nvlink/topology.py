"""nvlink.topology: is the GPU-to-GPU matrix as symmetric as its wiring should be, and is peer-to-peer allowed?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import in_virtual_machine, trusted
from gpudoctor.checks.core.finding import Advice, Expected, Finding, Found, fail, ok, skip, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu, of_pair
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.checks.nvlink.matrix import (
    MATRIX_ADVICE,
    bond,
    census,
    connections,
    fewest_subjects,
    is_blank,
    matrix_evidence,
    odd_number,
    odd_rows,
    p2p_status,
    pair_names,
)
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import majority

# nvidia-smi topo -p2p: all are wrong between GPUs connected by NVLink; over PCIe all but DR are by design
_BROKEN_P2P = {
    "DR": "disabled by a registry key",
    "NS": "not supported",
    "TNS": "topology not supported",
    "CNS": "not supported by the chipset",
    "GNS": "not supported by the GPU",
}
_P2P_ADVICE = (
    Advice("See which pairs may talk:", "nvidia-smi topo -p2p r"),
    Advice("Look for driver options that switch it off:", "grep -r . /etc/modprobe.d | grep -i nvidia"),
    "Remove the option, reload the driver with no job running, and check again.",
)


@check(
    "nvlink.topology",
    title="Every GPU reaches every other as it should",
    impact="slow-collectives",
    explains=("collective.bandwidth", "collective.correct", "collective.pairs", "link.peer"),
)
def topology(case: Case) -> Iterator[Finding]:
    """Judge the matrix by its kind of wiring; report the GPU or pair that deviates."""
    yield from trusted(case.gpus)[1]
    gpus, _ = trusted(case.compute_gpus)
    if len(gpus) < 2:
        yield skip(NODE, "fewer than two GPUs to join")
        return
    if any(known(gpu.settings.mig_enabled) for gpu in gpus):
        yield skip(NODE, "MIG is on: its instances reach no other GPU")
        return
    if isinstance(case.node.pairs, Missing):
        yield unread(NODE, "GPU-to-GPU matrix", case.node.pairs)
        return
    inside = {gpu.index for gpu in gpus}
    of_these = [pair for pair in case.pairs if {pair.a, pair.b} <= inside]
    pairs = [pair for pair in of_these if not is_blank(pair)]
    expected_pairs = len(gpus) * (len(gpus) - 1) // 2
    if len(pairs) < expected_pairs and not _alike_over_pcie(pairs, inside):
        blank = first_failed(pair.path for pair in of_these if is_blank(pair))
        text = f"only {len(pairs)} of {expected_pairs} pairs are known"
        yield unread(NODE, text, blank) if blank else skip(NODE, text)
    else:
        yield from _judged(case, pairs, gpus, expected_pairs)


def _judged(case: Case, pairs: list[GpuPair], gpus: list[Gpu], expected_pairs: int) -> Iterator[Finding]:
    # not counted is not zero: the remote end of a link may be unreadable while the link itself is up
    uncounted = [pair.nvlinks for pair in pairs if isinstance(pair.nvlinks, Missing)]
    if uncounted:
        text = f"NVLinks of {len(uncounted)} of {expected_pairs} pairs"
        yield unread(NODE, text, first_failed(uncounted) or uncounted[0])
    bad = [] if uncounted else _wiring(case, pairs, gpus)
    named = {finding.subject for finding in bad}
    # links that are down disable peer-to-peer too: report one of the two per subject
    bad += [finding for finding in _peer_to_peer(pairs, gpus) if finding.subject not in named]
    yield from bad
    read = (value for pair in pairs for value in (pair.p2p_read, pair.p2p_write, bond(pair) or pair.path))
    if not bad and not uncounted and (outlier := odd_number(pairs, gpus) or odd_rows(pairs, gpus)):
        yield outlier
    elif failed := first_failed(read):
        yield unread(NODE, "path or peer-to-peer status", failed)
    elif not bad and not uncounted:
        some = f" of {expected_pairs}" if len(pairs) < expected_pairs else ""
        text = f"{len(pairs)}{some} pair{'s' * (expected_pairs > 1)}, {census(pairs)}"
        if any(map(bond, pairs)):
            yield ok(NODE, Found(text, len(pairs), "pairs"))
        else:
            yield ok(NODE, Found(f"{_without_nvlink(pairs, len(gpus))} ({text})", 0, "links"))


def _without_nvlink(pairs: list[GpuPair], gpus: int) -> str:
    """What it means that no pair has NVLinks, by design: the usual reason why several GPUs are no faster than one."""
    status = {p2p_status(pair) for pair in pairs}
    way = "PCIe" if status == {"OK"} else "PCIe or host memory" if None in status else "host memory"
    return f"no NVLink: gradients go over {way}, so that {gpus} GPUs may be slower than one"


def _alike_over_pcie(pairs: list[GpuPair], gpus: set[int]) -> bool:
    """Whether a partial matrix covers every GPU and shows only one kind of PCIe path: nothing in it deviates."""
    shown = {gpu for pair in pairs for gpu in (pair.a, pair.b)}
    return shown == gpus and len({(bond(pair), known(pair.path)) for pair in pairs}) == 1 and not bond(pairs[0])


def _kind(case: Case, pairs: list[GpuPair], gpus: list[Gpu]) -> str:
    """The kind of wiring: switch, mesh, open mesh (part of one), pairs or pcie."""
    node = case.profile.node
    if node is not None and node.nvlink_topology != "none":
        return "mesh" if node.nvlink_topology == "cube-mesh" else node.nvlink_topology
    model = case.model_of(gpus[0])
    spec = model.nvlink if model is not None else None
    if spec is not None and spec.kind == "switch":
        return "switch"
    if not any(bond(pair) for pair in pairs):
        return "pcie"
    if spec is not None:
        return "pairs" if spec.kind == "bridge" else "open mesh"
    return "switch" if all(bond(pair) for pair in pairs) else "open mesh"


def _wiring(case: Case, pairs: list[GpuPair], gpus: list[Gpu]) -> list[Finding]:
    kind = _kind(case, pairs, gpus)
    by_index = {gpu.index: gpu for gpu in gpus}
    if kind == "switch":
        return _odd_bonds(case, pairs, by_index)
    if kind == "mesh":
        return _odd_mesh(pairs, by_index)
    if kind == "pairs":
        return list(_odd_bridges(case, pairs, by_index))
    # PCIe alone, or part of a mesh: the grouping of the slots is the platform's choice
    return []


def _odd_bonds(case: Case, pairs: list[GpuPair], gpus: dict[int, Gpu]) -> list[Finding]:
    bonds = [bond(pair) for pair in pairs]
    if not any(bonds):
        return [_no_bond(case, pairs, list(gpus.values()))]
    full, source = max(bonds), "peers"
    model = case.model_of(next(iter(gpus.values())))
    switched = any(known(link.remote_kind) == "switch" for gpu in gpus.values() for link in known(gpu.nvlinks) or ())
    if switched and model is not None and model.nvlink is not None and "nvlink" not in model.uncertain:
        # through switches, every pair shares all links of a GPU
        full, source = max(full, model.nvlink.links), "profile"
    outliers = [pair for pair in pairs if bond(pair) < full]
    return [
        fail(
            subject,
            Found(f"{pair_names(members)} over {connections(members)}", min(bond(p) for p in members), "links"),
            Expected(f"NV{full}: all the links, between every two GPUs", "==", full, "links", source),
            *matrix_evidence(members),
            likely="NVLinks of this GPU are down" if subject.kind == "gpu" else "NVLinks between these two are down",
            advice=MATRIX_ADVICE,
        )
        for subject, members in fewest_subjects(outliers, gpus)
    ]


def _no_bond(case: Case, pairs: list[GpuPair], gpus: list[Gpu]) -> Finding:
    """No pair of a model made for NVSwitches has NVLink: a fault on bare metal, a choice in a VM."""
    virtual = in_virtual_machine(case.node, gpus)
    model = case.model_of(gpus[0])
    certain = not virtual and (model is None or "nvlink" not in model.uncertain)
    return (fail if certain else warn)(
        NODE,
        Found(f"no NVLink between any two GPUs ({connections(pairs)})", 0, "links"),
        Expected("NVLink between every two", source="profile"),
        *matrix_evidence(pairs),
        likely="NVLink is off or every link is down: the driver's options, the fabric manager or the baseboard"
        if not virtual
        else "the virtual machine was given these GPUs without their NVSwitches",
        advice=MATRIX_ADVICE,
    )


def _odd_mesh(pairs: list[GpuPair], gpus: dict[int, Gpu]) -> list[Finding]:
    rows = {i: tuple(sorted(bond(p) for p in pairs if i in (p.a, p.b))) for i in gpus}
    usual = majority(rows.values())
    if usual is None:
        return []
    outliers = [i for i, row in rows.items() if row != usual and sum(row) < sum(usual)]
    if not outliers:
        return []
    subject = of_pair(*outliers) if len(outliers) == 2 else of_gpu(gpus[outliers[0]]) if len(outliers) == 1 else NODE
    expected = " ".join(f"NV{n}" for n in reversed(usual) if n)
    return [
        fail(
            subject,
            "; ".join(
                f"GPU {i} has " + (" ".join(f"NV{n}" for n in reversed(rows[i]) if n) or "no NVLink") for i in outliers
            ),
            Expected(f"{expected} from every GPU, as the others have", source="peers"),
            *matrix_evidence([p for p in pairs if p.a in outliers or p.b in outliers]),
            likely="NVLinks between these GPUs are down",
            advice=MATRIX_ADVICE,
        )
    ]


def _odd_bridges(case: Case, pairs: list[GpuPair], gpus: dict[int, Gpu]) -> Iterator[Finding]:
    bonded = [pair for pair in pairs if bond(pair)]
    model = case.model_of(next(iter(gpus.values())))
    full = max([bond(pair) for pair in bonded], default=0)
    if model is not None and model.nvlink is not None and "nvlink.links" not in model.uncertain:
        # a card on a four-way bridge splits its links between three partners
        partners = max((sum(i in (p.a, p.b) for p in bonded) for i in gpus), default=1)
        full = max(full, model.nvlink.links // max(partners, 1))
    for pair in bonded:
        if bond(pair) < full:
            # a bridge connects four links: a multiple of four is a missing bridge, other numbers are links down
            broken = bond(pair) % min(4, full) != 0
            likely = "links of the bridge are down" if broken else "not every bridge slot of this pair carries a bridge"
            yield (fail if broken else warn)(
                of_pair(pair.a, pair.b),
                Found(f"NV{bond(pair)}", bond(pair), "links"),
                Expected(f"NV{full}: all that a bridged pair of this model has", ">=", full, "links", "profile"),
                *matrix_evidence([pair]),
                likely=likely,
                advice=MATRIX_ADVICE,
            )


def _peer_to_peer(pairs: list[GpuPair], gpus: list[Gpu]) -> Iterator[Finding]:
    by_index = {gpu.index: gpu for gpu in gpus}
    # a dead NVLink leaves its pair with a PCIe path: its GPUs still have NVLinks to others
    bonded = {i for p in pairs if bond(p) for i in (p.a, p.b)}
    broken = [p for p in pairs if p2p_status(p) in _BROKEN_P2P and bond(p)]
    off = [p for p in pairs if p2p_status(p) == "DR" and p not in broken]
    for subject, members in fewest_subjects(broken, by_index):
        status = _BROKEN_P2P[p2p_status(members[0]) or "NS"]
        text = f"{pair_names(members)}: peer-to-peer {status} over {connections(members)}"
        likely = "peer-to-peer was switched off, or the links failed under it: NCCL falls back to host memory"
        yield _not_allowed(fail, subject, text, "OK: NVLink joins these GPUs", members, likely)
    for subject, members in fewest_subjects(off, by_index):
        judge = fail if {i for p in members for i in (p.a, p.b)} & bonded else warn
        text = f"{pair_names(members)}: peer-to-peer {_BROKEN_P2P['DR']}"
        likely = "somebody switched peer-to-peer off in the driver's options"
        yield _not_allowed(judge, subject, text, "OK", members, likely)


def _not_allowed(
    judge: Callable[..., Finding], subject: Subject, text: str, requested: str, pairs: list[GpuPair], likely: str
) -> Finding:
    expected = Expected(requested, "==", "OK", source="nvidia-smi topo -p2p r")
    return judge(subject, text, expected, *matrix_evidence(pairs), likely=likely, advice=_P2P_ADVICE)
