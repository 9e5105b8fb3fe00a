"""The lanes that several GPUs share out between them, and the errors counted on their links."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    fail,
    of_gpu,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.core.lifetime_counters import out_of_line
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.trust import untrusted
from gpudoctor.checks.core.xid_codes import BUS_CODES
from gpudoctor.checks.pcie.link_state import generation_reachable, hidden_bridges, names_of, on_c2c, slot_above
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.pcie_generations import link_gb_s
from gpudoctor.profiles.peers import majority

# lanes that each GPU should get, widest first; more GPUs than here: x8 each
_IDEAL: dict[int, tuple[int, ...]] = {2: (16, 8), 3: (16, 8, 8), 4: (8, 8, 8, 8)}


_ENOUGH_LANES = Limit(
    8, "lanes", "rule of the field: 2 GPUs x16/x8, 3 x16/x8/x8, 4 and more x8 each", name="enough_lanes", status="warn"
)
_ENOUGH_GB_S = Limit(
    15.75, "GB/s", "line rate of Gen4 x8 = Gen3 x16: adequate for most training", name="enough_gb_s", status="warn"
)


@check(
    "pcie.balance",
    title="The PCIe lanes are split well between the GPUs",
    impact="costs",
    limits=(_ENOUGH_LANES, _ENOUGH_GB_S),
)
def balance(case: Case) -> Iterator[Finding]:
    """Warn where the platform gives a GPU fewer lanes than most of the others, or too few by the usual split."""
    gpus = [gpu for gpu in case.compute_gpus if not untrusted(gpu)]
    for gpu in case.compute_gpus:
        if reason := untrusted(gpu):
            yield unknown(of_gpu(gpu), reason)
    if len(gpus) < 2:
        yield skip(NODE, "fewer than two GPUs to share lanes")
        return
    if any(on_c2c(gpu) for gpu in gpus):
        yield skip(NODE, "the host link of these GPUs is NVLink-C2C, not PCIe")
        return
    unseen = [(gpu, gpu.pcie.width) for gpu in gpus if isinstance(gpu.pcie.width, Missing)]
    if unseen:
        for gpu, missing in unseen:
            yield unread(of_gpu(gpu), "PCIe link width", missing)
        return
    senseless = [gpu for gpu in gpus if _lanes(gpu) <= 0]
    if senseless:
        for gpu in senseless:
            yield unknown(of_gpu(gpu), f"PCIe link width: the answer, {_lanes(gpu)} lanes, is none")
        return
    yield _split(case, gpus)


def _split(case: Case, gpus: list[Gpu]) -> Finding:
    widest_first = sorted(gpus, key=lambda gpu: (-_lanes(gpu), gpu.index))
    floor = int(case.limit(_ENOUGH_LANES))
    enough = case.limit(_ENOUGH_GB_S)
    ideal = [max(floor, lanes) if floor < 8 else lanes for lanes in _IDEAL.get(len(gpus), ())]
    ideal = ideal or [floor] * len(gpus)
    short = [
        gpu
        for gpu, lanes in zip(widest_first, ideal, strict=True)
        if _lanes(gpu) < lanes and (_worth(gpu) or 0.0) < enough
    ]
    split = " / ".join(f"x{_lanes(gpu)}" for gpu in gpus)
    rates = [_worth(gpu) for gpu in gpus]
    seen = sorted({rate for rate in rates if rate is not None})
    spread = (
        f": {seen[0]} GB/s each way" if len(seen) == 1 else f": {seen[0]} to {seen[-1]} GB/s each way" if seen else ""
    )
    found = Found(split + spread, min(_lanes(gpu) for gpu in gpus), "lanes")
    usual = " / ".join(f"x{lanes}" for lanes in ideal)
    expected = Expected(
        f"{usual} or better, or {enough} GB/s each way",
        ">=",
        floor,
        "lanes",
        case.limit_source(_ENOUGH_LANES),
    )
    if not short:
        short, most = _narrower(gpus)
        expected = Expected(f"x{most}, as most of the GPUs have", ">=", most, "lanes", "peers") if short else expected
    if not short:
        return ok(NODE, found, expected)
    degraded = [gpu for gpu in short if _below_slot(case, gpu)]
    if degraded:
        return skip(NODE, f"{split}: {names_of(degraded)} below what the slot gives, see pcie.link-width")
    subject = of_gpu(short[0]) if len(short) == 1 else NODE
    return warn(
        subject,
        found,
        expected,
        *(Evidence(f"{gpu.label}", f"x{_lanes(gpu)}, {_worth(gpu) or 'unknown'} GB/s each way") for gpu in gpus),
        likely="the board has too few lanes for so many GPUs, or shares them with another slot or an M.2 drive",
        advice=(
            "Look up in the board's manual how slots and M.2 drives share lanes, and move cards or drives.",
            Advice("See what hangs where:", "sudo lspci -tv"),
        ),
    )


def _narrower(gpus: list[Gpu]) -> tuple[list[Gpu], int]:
    """The GPUs with fewer lanes than most, and how many most have; boards for up to 3 GPUs divide theirs unevenly."""
    most = majority([_lanes(gpu) for gpu in gpus]) or 0
    return ([gpu for gpu in gpus if _lanes(gpu) < most] if len(gpus) > 3 else []), most


def _below_slot(case: Case, gpu: Gpu) -> bool:
    """Whether the link trained narrower than its visible slot: a fault of the link, not the platform's split."""
    slot = slot_above(gpu) if hidden_bridges(case, gpu) is None else None
    wide = known(slot.max_width) if slot else None
    own = known(gpu.pcie.width_max)
    return wide is not None and own is not None and _lanes(gpu) < min(wide, own)


def _lanes(gpu: Gpu) -> int:
    return known(gpu.pcie.width) or 0


def _worth(gpu: Gpu) -> float | None:
    generation = generation_reachable(gpu) or known(gpu.pcie.generation_max) or known(gpu.pcie.generation)
    return link_gb_s(generation, _lanes(gpu)) if generation else None


_ENOUGH_TO_COMPARE = 4


_FLOOR_ERRORS = Limit(
    1000, "errors", "healthy H100 nodes show up to about 200 lifetime replays a GPU (ours)", name="floor_errors"
)
_PEERS_RATIO = Limit(
    100,
    "times the peers' median",
    "two orders of magnitude: lifetime counts differ by chance (ours)",
    name="peers_ratio",
)


@check(
    "pcie.errors",
    title="No GPU's PCIe link counts errors out of line with its peers",
    impact="costs",
    limits=(_FLOOR_ERRORS, _PEERS_RATIO),
    explains=(Explains(("gpu.xid",), found=BUS_CODES),),
)
def errors(case: Case) -> Iterator[Finding]:
    """Fatal errors fail and non-fatal ones warn; corrected ones count only far above the peers'."""
    for gpu in case.gpus:
        if reason := untrusted(gpu):
            yield unknown(of_gpu(gpu), reason)
        else:
            yield _errors_of(case, gpu)


def _errors_of(case: Case, gpu: Gpu) -> Finding:
    subject, path = of_gpu(gpu), known(gpu.pcie.path) or ()
    # a bridge may be shared with other devices: what it counted alone speaks for no fault of this GPU
    fatal = [(hop, hop.aer_fatal) for hop in path if known(hop.aer_fatal)]
    nonfatal = [(hop, hop.aer_nonfatal) for hop in path[:1] if known(hop.aer_nonfatal)]
    usual = _counted_by_all(case, gpu) if nonfatal and not fatal else None
    if fatal or (nonfatal and usual is None):
        kind, hits = ("fatal", fatal) if fatal else ("non-fatal", nonfatal)
        places = [(f"/sys/bus/pci/devices/{hop.bus_id}/aer_dev_{kind.replace('-', '')}", n) for hop, n in hits]
        total = sum(known(n) or 0 for _, n in hits)
        own = any(hop.bus_id == path[0].bus_id for hop, _ in hits)
        return (fail if fatal and own else warn)(
            subject,
            Found(f"{total} {kind} PCIe errors since boot" + ("" if own else " on the bridges above"), total, "errors"),
            Expected("none", "==", 0, "errors", "PCIe advanced error reporting"),
            *(Evidence(place, str(n)) for place, n in places),
            likely="the link lost data that it could not repair: riser, slot, cable, power or the GPU itself",
            advice=_LOOK,
        )
    counts = {
        "replays": [known(peer.pcie.replays) for peer in case.gpus],
        "corrected errors": [_corrected(peer) for peer in case.gpus],
    }
    counted = {"replays": known(gpu.pcie.replays), "corrected errors": _corrected(gpu)}
    seen = {name: count for name, count in counted.items() if count is not None}
    replays = gpu.pcie.replays
    if not seen or (isinstance(replays, Missing) and replays.kind == "failed"):
        return unread(subject, "PCIe error counters", replays if isinstance(replays, Missing) else Missing("not known"))
    floor, ratio = case.limit(_FLOOR_ERRORS, gpu), case.limit(_PEERS_RATIO, gpu)
    place = case.gpus.index(gpu)
    for name, count in seen.items():
        peers = [n for i, n in enumerate(counts[name]) if i != place and n is not None]
        bound = out_of_line(count, peers, floor, ratio)
        if bound is not None:
            return warn(
                subject,
                Found(f"{count} {name} since driver load", count, "errors"),
                Expected(f"below {bound:.0f}, {ratio:.0f} times what the peers count", "<", bound, "errors", "peers"),
                Evidence("nvmlDeviceGetPcieReplayCounter" if name == "replays" else "aer_dev_correctable", str(count)),
                Evidence("the peers", ", ".join(str(n) for n in peers) or "none to compare"),
                likely="the link sends much again: a riser, cable or contact at the edge of what it can carry",
                advice=_LOOK,
            )
    words = " and ".join(f"{count} {name}" for name, count in seen.items())
    note = "" if not any(seen.values()) else ": lifetime counts, in line with the peers; a rate needs load"
    if usual is not None:
        note += f"; {usual} non-fatal errors since boot, as on all the others: the platform's own, not one link's"
    return ok(subject, Found(words + note, max(seen.values()), "errors"))


def _counted_by_all(case: Case, gpu: Gpu) -> int | None:
    """The GPU's non-fatal errors, where all of at least four GPUs count about as many; None where they do not.

    Enumeration and resets leave such counts (Unsupported Request) on every device alike, which never grow again.
    """
    paths = [known(peer.pcie.path) for peer in case.gpus]
    counts = [known(path[0].aer_nonfatal) or 0 if path else 0 for path in paths]
    own = counts[case.gpus.index(gpu)]
    return own if len(counts) >= _ENOUGH_TO_COMPARE and own and max(counts) <= 2 * min(counts) else None


def _corrected(gpu: Gpu) -> int | None:
    path = known(gpu.pcie.path)
    return known(path[0].aer_correctable) if path else None


_LOOK = (
    Advice("See the kernel's words:", "sudo dmesg | grep -iE 'AER|pcieport'"),
    "Reseat the GPU and its riser or cable; move it to another slot and see whether the errors follow it.",
    "They follow the GPU: open a hardware case for it. They stay: for the board or riser.",
)
