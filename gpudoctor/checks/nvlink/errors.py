"""nvlink.errors: does an NVLink count far more errors than its peers? Lifetime counts alone are no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import out_of_line
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.nvlink.link_state import not_judged, real_links
from gpudoctor.facts.model.gpu import Gpu, NvLink
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.statements.xids import LINK_CODES

_KINDS = ("crc_errors", "replay_errors", "recovery_errors")


_FLOOR_ERRORS = Limit(
    1000, "errors", "lifetime counts of healthy links are mostly 0 (ours)", name="floor_errors", status="warn"
)
_FLOOR_RECOVERIES = Limit(
    10, "recoveries", "a healthy link hardly ever retrains while in use (ours)", name="floor_recoveries", status="warn"
)
_PEERS_RATIO = Limit(
    100,
    "times the peers' median",
    "two orders of magnitude (ours); DCGM judges rates",
    name="peers_ratio",
    status="warn",
)


@check(
    "nvlink.errors",
    title="No NVLink counts errors out of line with its peers",
    impact="slow-collectives",
    limits=(_FLOOR_ERRORS, _FLOOR_RECOVERIES, _PEERS_RATIO),
    explains=("collective.bandwidth", "collective.pairs", "link.peer", Explains(("gpu.xid",), found=LINK_CODES)),
)
def errors(case: Case) -> Iterator[Finding]:
    """Warn of a GPU whose lifetime counts are far above its peers'; a rate would need two samples under load."""
    totals = {gpu.index: _totals(gpu) for gpu in case.gpus}
    ordered = {kind: sorted(counts[kind] for counts in totals.values() if kind in counts) for kind in _KINDS}
    # `nvidia-smi nvlink -e` alone shows counters of links and not their state
    yield from (
        not_judged(case, gpu, by_state=not totals[gpu.index]) or _errors_of(case, gpu, totals[gpu.index], ordered)
        for gpu in case.gpus
    )


def _errors_of(case: Case, gpu: Gpu, totals: Mapping[str, int], ordered: Mapping[str, list[int]]) -> Finding:
    subject = of_gpu(gpu)
    if not totals:
        first = (known(gpu.nvlinks) or ())[0].crc_errors
        return unread(subject, "NVLink error counters", first if isinstance(first, Missing) else Missing("not known"))
    ratio = case.limit(_PEERS_RATIO, gpu)
    for kind, total in totals.items():
        name = kind.replace("_errors", "").replace("crc", "CRC")
        floor = case.limit(_FLOOR_RECOVERIES if kind == "recovery_errors" else _FLOOR_ERRORS, gpu)
        bound = out_of_line(total, ordered[kind], floor, ratio)
        if bound is not None:
            peers = ordered[kind].copy()
            peers.remove(total)
            worst = max(_counting_links(gpu), key=lambda link: known(getattr(link, kind)) or 0)
            return warn(
                subject,
                Found(f"{total} NVLink {name} errors since driver load", total, "errors"),
                Expected(f"below {bound:.0f}: in line with the peers", "<", bound, "errors", "peers"),
                Evidence(f"nvidia-smi nvlink -e, link {worst.link}", f"{name} errors {known(getattr(worst, kind))}"),
                Evidence("the peers", ", ".join(map(str, peers)) or "none to compare"),
                likely="one link sends much again: a bridge, baseboard contact or switch port",
                advice=(
                    Advice("See whether they grow under load:", "nvidia-smi nvlink -e"),
                    "They grow: drain the node, reset the GPUs; still growing, open a hardware case naming the link.",
                ),
            )
    text = ", ".join(f"{total} {kind.split('_')[0]}" for kind, total in totals.items())
    note = ": lifetime counts, in line with the peers; a rate needs load" if any(totals.values()) else ""
    return ok(subject, Found(text + note, sum(totals.values()), "errors"))


def _counting_links(gpu: Gpu) -> list[NvLink]:
    """The links whose state is known; without any such link, all that a text shows."""
    return real_links(gpu) or list(known(gpu.nvlinks) or ())


def _totals(gpu: Gpu) -> dict[str, int]:
    """The sum over its links of each kind of error that any of them counts."""
    links = _counting_links(gpu)
    counted = {kind: [known(getattr(link, kind)) for link in links] for kind in _KINDS}
    known_counts = {kind: [count for count in counts if count is not None] for kind, counts in counted.items()}
    return {kind: sum(counts) for kind, counts in known_counts.items() if counts}
