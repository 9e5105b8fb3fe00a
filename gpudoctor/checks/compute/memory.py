"""compute.memory: how fast does each device move its own memory?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.compute.rates import MeasuredRate, Yardstick, compute_gaps, judged_rate
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Evidence, Finding, skip, unread
from gpudoctor.checks.core.peer_ranks import against_others, by_model
from gpudoctor.checks.core.probe_outcome import on_gpus, rank_gpu, rank_subject, ranks_in_words
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.nvlink.link_state import model_of
from gpudoctor.facts.model.missing import Missing, known

_PEAK_WARN_SHARE = Limit(
    0.75, "of the data sheet", "copies reach 0.79 to 0.87 of it (A100, H100, H200)", name="peak_warn_share"
)
_PEAK_FAIL_SHARE = Limit(
    0.65, "of the data sheet", "gpudoctor's own choice; DCGM's floor is 0.55 to 0.60", name="peak_fail_share"
)
_INLINE_ECC_SHARE = Limit(
    0.90, "of these limits", "ECC bits of GDDR lie in the same memory: up to a tenth", name="inline_ecc_share"
)
_PEER_WARN_SHARE = Limit(
    0.95, "of the others' median", "gpudoctor's own choice: memory clocks are equal", name="peer_warn_share"
)
_PEER_FAIL_SHARE = Limit(
    0.90, "of the others' median", "gpudoctor's own choice: one stack or channel of many", name="peer_fail_share"
)


@check(
    "compute.memory",
    title="Every GPU moves its own memory as fast as its model should",
    level="full",
    needs_gpu=False,
    limits=(_PEAK_WARN_SHARE, _PEAK_FAIL_SHARE, _INLINE_ECC_SHARE, _PEER_WARN_SHARE, _PEER_FAIL_SHARE),
)
def memory(case: Case) -> Iterator[Finding]:
    """Judge the better of copy and triad: slow memory slows both."""
    done = case.measurements.compute
    yield from compute_gaps(case, "memory bandwidth", done)
    rates: dict[int, tuple[float, float]] = {}
    for each in done:
        if isinstance(each.copy_gb_s, Missing):
            yield unread(rank_subject(case, each.rank), "memory bandwidth", each.copy_gb_s)
        elif isinstance(each.triad_gb_s, Missing):
            yield unread(rank_subject(case, each.rank), "memory bandwidth", each.triad_gb_s)
        else:
            rates[each.rank] = (each.copy_gb_s, each.triad_gb_s)
    if rates and not on_gpus(case):
        copy_gb_s, triad_gb_s = next(iter(rates.values()))
        who = ranks_in_words(case, len(rates))
        yield skip(NODE, f"{who}: copy {copy_gb_s:.3g}, triad {triad_gb_s:.3g} GB/s, not judged")
        return
    for group in by_model(case, rates):
        for rank in group:
            copy_gb_s, triad_gb_s = rates[rank]
            ratios = [against_others(rank, {r: rates[r][kind] for r in group}) for kind in range(2)]
            better = max(copy_gb_s, triad_gb_s)
            ratio = max((r for r in ratios if r is not None), default=None)
            bars = _peak_bars(case, rank, better)
            if ratio:
                what = "the others of this model reach"
                bars = (
                    Yardstick(ratio, better / ratio, _PEER_WARN_SHARE, _PEER_FAIL_SHARE, what, by_peers=True),
                    *bars,
                )
            text = f"copy {copy_gb_s:.4g} GB/s, triad {triad_gb_s:.4g} GB/s"
            evidence = (Evidence("copy, triad", f"{copy_gb_s:.1f}, {triad_gb_s:.1f} GB/s, read and written"),)
            yield judged_rate(case, MeasuredRate(rank, better, text, bars, evidence), group, "GB/s")


def _peak_bars(case: Case, rank: int, better_gb_s: float) -> tuple[Yardstick, ...]:
    gpu = rank_gpu(case, rank)
    model = model_of(case, gpu) if gpu else None
    peak = model.memory_bandwidth_gb_s if model else None
    if gpu is None or model is None or not peak:
        return ()
    inline = model.inline_ecc and known(gpu.ecc.enabled) is not False
    allowance = case.limit(_INLINE_ECC_SHARE, gpu) if inline else 1.0
    fails = None if "memory_bandwidth_gb_s" in model.uncertain else _PEAK_FAIL_SHARE
    what = f"the data sheet gives the {model.name}" + (", less what ECC takes" if inline else "")
    return (Yardstick(better_gb_s / peak, peak, _PEAK_WARN_SHARE, fails, what, allowance),)
