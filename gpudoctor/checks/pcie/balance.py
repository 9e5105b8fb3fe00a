"""pcie.balance: are the PCIe lanes split well between the GPUs?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import trusted
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.pcie.link_state import names_of, visible_slot
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import link_gb_s
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import majority

# lanes that each GPU should get, widest first; x8 each for more GPUs than listed
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
    """Warn if a GPU has fewer lanes than most of the others, or too few by the usual split."""
    gpus, doubts = trusted(case.compute_gpus)
    yield from doubts
    if len(gpus) < 2:
        yield skip(NODE, "fewer than two GPUs to share lanes")
        return
    if any(gpu.on_c2c for gpu in gpus):
        yield skip(NODE, "the host link of these GPUs is NVLink-C2C, not PCIe")
        return
    widths = [(gpu, gpu.pcie.width) for gpu in gpus]
    if any(isinstance(width, Missing) for _, width in widths):
        yield from (
            unread(of_gpu(gpu), "PCIe link width", width) for gpu, width in widths if isinstance(width, Missing)
        )
    elif min(map(_lanes, gpus)) <= 0:
        text = "PCIe link width: the answer, {} lanes, is none"
        yield from (unknown(of_gpu(gpu), text.format(_lanes(gpu))) for gpu in gpus if _lanes(gpu) <= 0)
    else:
        yield _split(case, gpus)


def _split(case: Case, gpus: list[Gpu]) -> Finding:
    ideal = _ideal(case, len(gpus))
    short = _below(case, gpus, ideal)
    rates = sorted({rate for gpu in gpus if (rate := _worth(gpu)) is not None})
    spread = f": {' to '.join(map(str, dict.fromkeys((rates[0], rates[-1]))))} GB/s each way" if rates else ""
    found = Found(_widths(gpus) + spread, min(map(_lanes, gpus)), "lanes")
    # up to 3 GPUs have no usual width: their boards split unevenly
    most = majority(map(_lanes, gpus)) if len(gpus) > 3 else None
    narrower = [gpu for gpu in gpus if _lanes(gpu) < (most or 0)]
    if short:
        expected = _expected(case, ideal)
    elif narrower:
        short = narrower
        expected = Expected(f"x{most}, as most of the GPUs have", ">=", most, "lanes", "peers")
    else:
        return ok(NODE, found, _expected(case, ideal))
    degraded = [gpu for gpu in short if _below_slot(case, gpu)]
    if degraded:
        return skip(NODE, f"{_widths(gpus)}: {names_of(degraded)} below what the slot gives, see pcie.link-width")
    return warn(
        of_gpu(short[0]) if len(short) == 1 else NODE,
        found,
        expected,
        *(Evidence(f"{gpu.label}", f"x{_lanes(gpu)}, {_worth(gpu) or 'unknown'} GB/s each way") for gpu in gpus),
        likely="the board has too few lanes for so many GPUs, or shares them with another slot or an M.2 drive",
        advice=(
            "Look up in the board's manual how slots and M.2 drives share lanes, and move cards or drives.",
            Advice("See what hangs where:", "sudo lspci -tv"),
        ),
    )


def _ideal(case: Case, gpus: int) -> list[int]:
    """The lanes that so many GPUs should get, widest first."""
    floor = int(case.limit(_ENOUGH_LANES))
    usual = _IDEAL.get(gpus, (floor,) * gpus)
    return [max(floor, lanes) if floor < 8 else lanes for lanes in usual]


def _expected(case: Case, ideal: list[int]) -> Expected:
    usual = " / ".join(f"x{lanes}" for lanes in ideal)
    text = f"{usual} or better, or {case.limit(_ENOUGH_GB_S)} GB/s each way"
    return Expected(text, ">=", int(case.limit(_ENOUGH_LANES)), "lanes", case.limit_source(_ENOUGH_LANES))


def _below(case: Case, gpus: list[Gpu], ideal: list[int]) -> list[Gpu]:
    """The GPUs with fewer lanes than ideal and too slow a link, widest first."""
    widest_first = sorted(gpus, key=lambda gpu: (-_lanes(gpu), gpu.index))
    enough_gb_s = case.limit(_ENOUGH_GB_S)
    return [
        gpu
        for gpu, lanes in zip(widest_first, ideal, strict=True)
        if _lanes(gpu) < lanes and (_worth(gpu) or 0.0) < enough_gb_s
    ]


def _widths(gpus: list[Gpu]) -> str:
    return " / ".join(f"x{_lanes(gpu)}" for gpu in gpus)


def _below_slot(case: Case, gpu: Gpu) -> bool:
    """Whether the link trained narrower than its visible slot: a fault of the link, not the platform's split."""
    slot = visible_slot(case, gpu)
    wide = known(slot.max_width) if slot else None
    own = known(gpu.pcie.width_max)
    return wide is not None and own is not None and _lanes(gpu) < min(wide, own)


def _lanes(gpu: Gpu) -> int:
    return known(gpu.pcie.width) or 0


def _worth(gpu: Gpu) -> float | None:
    generation = gpu.pcie.generation_reachable or known(gpu.pcie.generation_max) or known(gpu.pcie.generation)
    return link_gb_s(generation, _lanes(gpu))
