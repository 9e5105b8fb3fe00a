"""compute.gemm: how fast does each device multiply matrices?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpudoctor.checks.compute.rates import MeasuredRate, Yardstick, compute_gaps, judged_rate
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Evidence, Finding, skip
from gpudoctor.checks.core.peer_ranks import against_others, by_model
from gpudoctor.checks.core.probe_outcome import on_gpus, rank_gpu, ranks_in_words
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.nvlink.link_state import model_of
from gpudoctor.facts.model.measured_devices import ComputeRank

_PEER_WARN_SHARE = Limit(
    0.92, "of the others' median", "5 % between GPUs of one node is normal (MAMF's author)", name="peer_warn_share"
)
_PEER_FAIL_SHARE = Limit(
    0.85, "of the others' median", "gpudoctor's own choice: three times that", name="peer_fail_share"
)
_ACHIEVED_WARN_SHARE = Limit(
    0.80, "of the best measured", "8192 x 8192 reaches 0.8 to 0.9 of the best shape", name="achieved_warn_share"
)
_ACHIEVED_FAIL_SHARE = Limit(0.60, "of the best measured", "gpudoctor's own choice", name="achieved_fail_share")
_PEAK_WARN_SHARE = Limit(
    0.30, "of the data sheet", "cards capped at 70 W reach 0.38 of it, others 0.7 and more", name="peak_warn_share"
)


@check(
    "compute.gemm",
    title="Every GPU multiplies matrices as fast as its siblings",
    impact="slow-gpu",
    level="full",
    needs_gpu=False,
    limits=(_PEER_WARN_SHARE, _PEER_FAIL_SHARE, _ACHIEVED_WARN_SHARE, _ACHIEVED_FAIL_SHARE, _PEAK_WARN_SHARE),
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
            bars = (*_sibling_bars(rank, alike), *_known_rates(case, own))
            rate = MeasuredRate(
                rank, figures[rank], _gemm_text(own), bars, _gemm_evidence(own), 3 * own.gemms[0].tflops_mad
            )
            yield judged_rate(case, rate, group, "TFLOP/s")


def _gemm_text(own: ComputeRank) -> str:
    first = own.gemms[0]
    return f"{first.dtype} products of {first.size} x {first.size} at {first.tflops:.3g} TFLOP/s"


def _gemm_evidence(own: ComputeRank) -> tuple[Evidence, ...]:
    return tuple(Evidence(each.dtype, f"{each.tflops:.4g} TFLOP/s (MAD {each.tflops_mad:.2g})") for each in own.gemms)


def _sibling_bars(rank: int, figures: Mapping[int, float]) -> tuple[Yardstick, ...]:
    ratio = against_others(rank, figures)
    if not ratio:
        return ()
    others = "the others of this model reach"
    return (Yardstick(ratio, figures[rank] / ratio, _PEER_WARN_SHARE, _PEER_FAIL_SHARE, others, by_peers=True),)


def _known_rates(case: Case, own: ComputeRank) -> tuple[Yardstick, ...]:
    """The model's rate in the profile: the best one measured, else the data sheet's, which never leads to a fail."""
    gpu = rank_gpu(case, own.rank)
    model = model_of(case, gpu) if gpu else None
    first = own.gemms[0]
    if model is None or first.dtype not in ("bf16", "fp16"):
        return ()
    if model.achieved_bf16_tflops is not None:
        certain = "achieved_bf16_tflops" not in model.uncertain
        best, fails = model.achieved_bf16_tflops, _ACHIEVED_FAIL_SHARE if certain else None
        what = f"are the best that was measured on a {model.name}"
        return (Yardstick(first.tflops / best, best, _ACHIEVED_WARN_SHARE, fails, what),)
    peak = model.bf16_tflops if model.bf16_tflops is not None else model.fp16_tflops
    if peak is None:
        return ()
    what = f"the data sheet gives the {model.name}"
    return (Yardstick(first.tflops / peak, peak, _PEAK_WARN_SHARE, None, what),)
