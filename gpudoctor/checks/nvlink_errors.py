"""The errors that NVLinks count: lifetime counts, so only what stands far above the peers is said."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.case import Case, Limit
from gpudoctor.checks.counters import out_of_line
from gpudoctor.checks.finding import Advice, Evidence, Expected, Finding, Found, of_gpu, ok, unread, warn
from gpudoctor.checks.nvlink_state import not_judged, real_links
from gpudoctor.checks.registry import check
from gpudoctor.facts.gpu import Gpu
from gpudoctor.facts.missing import Missing, known


@check(
    "nvlink.errors",
    title="No NVLink counts errors out of line with its peers",
    limits={
        "floor_errors": Limit(1000, "errors", "lifetime counts of healthy links are mostly 0 (ours)"),
        "floor_recoveries": Limit(10, "recoveries", "a healthy link hardly ever retrains while in use (ours)"),
        "peers_ratio": Limit(100, "times the peers' median", "two orders of magnitude (ours); DCGM judges rates"),
    },
)
def errors(case: Case) -> Iterator[Finding]:
    """Warn of a GPU whose lifetime counts stand far above its peers'; a rate needs two samples under load."""
    for gpu in case.gpus:
        stop = not_judged(case, gpu)
        yield stop if stop is not None else _errors_of(case, gpu)


def _errors_of(case: Case, gpu: Gpu) -> Finding:
    subject = of_gpu(gpu)
    kinds = ("crc_errors", "replay_errors", "recovery_errors")
    totals = {kind: total for kind in kinds if (total := _total(gpu, kind)) is not None}
    if not totals:
        first = (known(gpu.nvlinks) or ())[0].crc_errors
        return unread(subject, "NVLink error counters", first if isinstance(first, Missing) else Missing("not known"))
    ratio = case.limit("nvlink.errors", "peers_ratio", gpu)
    for kind, total in totals.items():
        name = kind.replace("_errors", "").replace("crc", "CRC")
        floor = case.limit("nvlink.errors", "floor_recoveries" if kind == "recovery_errors" else "floor_errors", gpu)
        peers = [n for peer in case.gpus if peer is not gpu and (n := _total(peer, kind)) is not None]
        bound = out_of_line(total, peers, floor, ratio)
        if bound is not None:
            worst = max(real_links(gpu), key=lambda link: known(getattr(link, kind)) or 0)
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
    words = ", ".join(f"{total} {kind.split('_')[0]}" for kind, total in totals.items())
    note = ": lifetime counts, in line with the peers; a rate needs load" if any(totals.values()) else ""
    return ok(subject, Found(words + note, sum(totals.values()), "errors"))


def _total(gpu: Gpu, kind: str) -> int | None:
    counts = [n for link in real_links(gpu) if (n := known(getattr(link, kind))) is not None]
    return sum(counts) if counts else None
