"""compute.gemm, compute.memory: how fast does each device compute, and move its own memory?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpudoctor.checks.compute.exact import compute_gaps
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.peer_ranks import Yardstick, against_others, by_model, other_processes, slowing_setting
from gpudoctor.checks.measured.ranks import on_gpus, rank_gpu, rank_subject, ranks_in_words
from gpudoctor.checks.measured.slowness import slowness_causes
from gpudoctor.checks.measured.under_load import event_share, load_of, median_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measured_hardware import ComputeRank
from gpudoctor.facts.model.missing import Missing, known

_LOOK = (
    Advice("Look at its clocks, temperature and power.", "gpudoctor check gpu -v"),
    Advice("Swap it with another GPU, or take it out of the job, and see whether the slowness moves."),
)
_GEMM_PEER_WARN = Limit(
    0.92, "of the others' median", "5 % between GPUs of one node is normal (MAMF's author)", name="peer_warn_share"
)
_GEMM_PEER_FAIL = Limit(
    0.85, "of the others' median", "gpudoctor's own choice: three times that", name="peer_fail_share"
)
_ACHIEVED_WARN_SHARE = Limit(
    0.80, "of the best measured", "8192 x 8192 reaches 0.8 to 0.9 of the best shape", name="achieved_warn_share"
)
_ACHIEVED_FAIL_SHARE = Limit(0.60, "of the best measured", "gpudoctor's own choice", name="achieved_fail_share")
_GEMM_PEAK_WARN = Limit(
    0.30, "of the data sheet", "cards capped at 70 W reach 0.38 of it, others 0.7 and more", name="peak_warn_share"
)
_MEMORY_PEAK_WARN = Limit(
    0.75, "of the data sheet", "copies reach 0.79 to 0.87 of it (A100, H100, H200)", name="peak_warn_share"
)
_MEMORY_PEAK_FAIL = Limit(
    0.65, "of the data sheet", "gpudoctor's own choice; DCGM's floor is 0.55 to 0.60", name="peak_fail_share"
)
_INLINE_ECC_SHARE = Limit(
    0.90, "of these limits", "ECC bits of GDDR lie in the same memory: up to a tenth", name="inline_ecc_share"
)
_MEMORY_PEER_WARN = Limit(
    0.95, "of the others' median", "gpudoctor's own choice: memory clocks are equal", name="peer_warn_share"
)
_MEMORY_PEER_FAIL = Limit(
    0.90, "of the others' median", "gpudoctor's own choice: one stack or channel of many", name="peer_fail_share"
)

# smaller products do not fill a large GPU, whatever its model reaches with large ones
_LEAST_SIZE = 4096
_CAPPED_SHARE = 0.5  # of the time: below, the clock was not the power limit's choice


@check(
    "compute.gemm",
    impact="slow-gpu",
    needs_gpu=False,
    limits=(_GEMM_PEER_WARN, _GEMM_PEER_FAIL, _ACHIEVED_WARN_SHARE, _ACHIEVED_FAIL_SHARE, _GEMM_PEAK_WARN),
    explains=("train.balance", "burn.drift"),
)
def gemm(case: Case) -> Iterator[Finding]:
    """Judge the first type measured (bf16, or fp16 before Ampere) by the siblings and by the model's known rates."""
    done = [each for each in case.measurements.compute if each.gemms]
    yield from compute_gaps(case, "matrix products", done)
    if done and not on_gpus(case):
        yield skip(NODE, f"{ranks_in_words(case, len(done))}: {_gemm_text(done[0])}, not judged")
        return
    figures = {each.rank: each.gemms[0].tflops for each in done}
    for group in by_model(case, figures):
        alike = {rank: figures[rank] for rank in group}
        for rank in group:
            own = next(each for each in done if each.rank == rank)
            siblings = _sibling_bar(against_others(rank, alike), figures[rank], _GEMM_PEER_WARN, _GEMM_PEER_FAIL)
            bars, noise = (*siblings, *_known_rates(case, own)), 3 * own.gemms[0].tflops_mad
            evidence = tuple(Evidence(g.dtype, f"{g.tflops:.4g} TFLOP/s (MAD {g.tflops_mad:.2g})") for g in own.gemms)
            rate = MeasuredRate(rank, figures[rank], _gemm_text(own), bars, evidence, noise)
            yield judged_rate(case, rate, group, "TFLOP/s")


class MeasuredRate(msgspec.Struct, frozen=True):
    """One rank's figure: the value to judge, its text, its yardsticks, and its `noise` in the unit of `value`."""

    rank: int
    value: float
    text: str
    bars: tuple[Yardstick, ...]
    evidence: tuple[Evidence, ...]
    noise: float = 0.0


def judged_rate(case: Case, rate: MeasuredRate, group: Sequence[int], unit: str) -> Finding:
    """Judge by the worst yardstick. A GPU that is slow because of a setting or another program's work never fails."""
    subject, gpu = rank_subject(case, rate.rank), rank_gpu(case, rate.rank)
    if gpu is None:
        return unknown(subject, f"{rate.text}, not judged: it is not known which GPU this was")
    if not rate.bars:
        why = "no figure is known for this model, and no other GPU of it is here"
        return skip(subject, f"{rate.text}, not judged: {why}")
    found = Found(rate.text, round(rate.value, 2), unit)
    verdicts = [(bar, kind) for bar in rate.bars if (kind := bar.verdict(case, gpu)) is not None]
    if not verdicts:
        return ok(subject, found, rate.bars[0].expected(case, gpu, "warn", unit, 4), *rate.evidence)
    bar, kind = min(verdicts, key=lambda one: (one[1] == "warn", one[0].share))
    if others := other_processes(case, rate.rank):
        return unknown(subject, f"{rate.text}: slow, but {others}: too disturbed to judge", *rate.evidence)
    if rate.noise and bar.of - rate.value < rate.noise:
        text = f"{rate.text}: too noisy to judge, its own laps differ by {rate.noise / 3:.2g} {unit} (MAD)"
        return unknown(subject, text, *rate.evidence, advice=("Repeat it while nothing else runs on the node.",))
    setting, found_reasons = slowing_setting(case, rate.rank, group), slowness_causes(case, rate.rank, group, "compute")
    explained = setting is not None or (not bar.by_peers and bool(found_reasons))
    judge = fail if kind == "fail" and not explained else warn
    causes = [*([setting] if setting and not any("power limit" in r for r in found_reasons) else []), *found_reasons]
    return judge(
        subject,
        found,
        bar.expected(case, gpu, kind, unit, 4),
        *rate.evidence,
        likely="; ".join(causes) or "no reading explains it: the GPU itself is slow",
        advice=_LOOK,
    )


def _gemm_text(own: ComputeRank) -> str:
    first = own.gemms[0]
    return f"{first.dtype} products of {first.size} x {first.size} at {first.tflops:.3g} TFLOP/s"


def _sibling_bar(ratio: float | None, rate: float, warns: Limit, fails: Limit) -> tuple[Yardstick, ...]:
    if not ratio:
        return ()
    return (Yardstick(ratio, rate / ratio, warns, fails, "that the others of this model reach", by_peers=True),)


def _known_rates(case: Case, own: ComputeRank) -> tuple[Yardstick, ...]:
    """The model's rate in the profile: the best one measured, else the data sheet's, which never leads to a fail."""
    gpu = rank_gpu(case, own.rank)
    model = case.model_of(gpu) if gpu else None
    first = own.gemms[0]
    if gpu is None or model is None or first.dtype not in ("bf16", "fp16") or first.size < _LEAST_SIZE:
        return ()
    clock = _share_of_clock_at_power_limit(case, gpu)
    less = "" if clock == 1.0 else f", at the {clock:.0%} of its clock that its own power limit left"
    if model.achieved_bf16_tflops is not None:
        certain = "achieved_bf16_tflops" not in model.uncertain
        best, fails = model.achieved_bf16_tflops, _ACHIEVED_FAIL_SHARE if certain else None
        what = f"that are the best that was measured on a {model.name}{less}"
        return (Yardstick(first.tflops / best, best, _ACHIEVED_WARN_SHARE, fails, what, clock),)
    peak = model.bf16_tflops if model.bf16_tflops is not None else model.fp16_tflops
    if peak is None:
        return ()
    what = f"that the data sheet gives the {model.name}{less}"
    return (Yardstick(first.tflops / peak, peak, _GEMM_PEAK_WARN, None, what, clock),)


def _share_of_clock_at_power_limit(case: Case, gpu: Gpu) -> float:
    """The share of the highest clock at which the GPU computed, if its usual power limit held it there; else 1.

    A card at its limit (an A100 PCIe at 250 W, a T4 at 70 W) is as fast as its power allows; a limit that was lowered
    is reported, and a GPU that lacks its clock for another reason is slow.
    """
    load, top_mhz = load_of(case, gpu, "compute"), known(gpu.clocks.sm_max_mhz)
    limit_w, usual_w = known(gpu.power.limit_w), known(gpu.power.default_limit_w)
    usual = limit_w is not None and usual_w is not None and limit_w >= 0.98 * usual_w
    mhz = median_of(load, "sm_mhz") if load is not None else None
    if load is None or mhz is None or not top_mhz or not usual or event_share(load, "sw-power-cap") < _CAPPED_SHARE:
        return 1.0
    slowed = any(event_share(load, reason) > 0 for reason in ("hw-thermal", "hw-power-brake", "sw-thermal"))
    return 1.0 if slowed else min(1.0, mhz / top_mhz)


@check(
    "compute.memory",
    needs_gpu=False,
    limits=(_MEMORY_PEAK_WARN, _MEMORY_PEAK_FAIL, _INLINE_ECC_SHARE, _MEMORY_PEER_WARN, _MEMORY_PEER_FAIL),
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
            siblings = _sibling_bar(ratio, better, _MEMORY_PEER_WARN, _MEMORY_PEER_FAIL)
            bars = (*siblings, *_peak_bars(case, rank, better))
            text = f"copy {copy_gb_s:.4g} GB/s, triad {triad_gb_s:.4g} GB/s"
            evidence = (Evidence("copy, triad", f"{copy_gb_s:.1f}, {triad_gb_s:.1f} GB/s, read and written"),)
            yield judged_rate(case, MeasuredRate(rank, better, text, bars, evidence), group, "GB/s")


def _peak_bars(case: Case, rank: int, better_gb_s: float) -> tuple[Yardstick, ...]:
    gpu = rank_gpu(case, rank)
    model = case.model_of(gpu) if gpu else None
    peak = model.memory_bandwidth_gb_s if model else None
    if gpu is None or model is None or not peak:
        return ()
    inline = model.inline_ecc and known(gpu.ecc.enabled) is not False
    allowance = case.limit(_INLINE_ECC_SHARE, gpu) if inline else 1.0
    fails = None if "memory_bandwidth_gb_s" in model.uncertain else _MEMORY_PEAK_FAIL
    what = f"that the data sheet gives the {model.name}" + (", less what ECC takes" if inline else "")
    return (Yardstick(better_gb_s / peak, peak, _MEMORY_PEAK_WARN, fails, what, allowance),)
