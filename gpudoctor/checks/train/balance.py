"""train.balance: which rank is slower than the others, and why?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.measured.probe_outcome import judges_training
from gpudoctor.checks.measured.rank_comparison import Deviation, SlowData, Thresholds, deviations, slow_data
from gpudoctor.checks.measured.ranks import rank_gpu, rank_subject, ranks_in_words
from gpudoctor.checks.measured.slowness import is_shared, slowness_causes
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Training, TrainRank
from gpudoctor.facts.model.missing import known
from gpudoctor.text.grouped import grouped

_SIMULATED = "by simulation, at most 1 of 10,000 healthy trainings is called slow"
_WARN_RATIO = Limit(1.10, "of the others' median", _SIMULATED, name="warn_ratio")
_FAIL_RATIO = Limit(1.20, "of the others' median", _SIMULATED, name="fail_ratio")
_EXCESS_MS = Limit(1.0, "ms", "differences below this are scheduling noise", name="excess_ms")
_LAST_IN_SHARE = Limit(
    0.8, "of the steps", "an innocent rank comes last in 1 of n steps; at most 40 % seen", name="last_in_share"
)
_DATA_EXCESS_MS = Limit(
    3.0, "ms", "gpudoctor's own choice: about as long as a scheduler keeps a process off", name="data_excess_ms"
)
_LIMITS = (_WARN_RATIO, _FAIL_RATIO, _EXCESS_MS, _LAST_IN_SHARE, _DATA_EXCESS_MS)


@check(
    "train.balance",
    impact="slow-gpu",
    needs_gpu=False,
    limits=_LIMITS,
    explains=("train.scaling", "train.utilization"),
)
@judges_training("balance of the ranks")
def balance(case: Case, training: Training) -> Iterator[Finding]:
    """Report ranks with outlying compute or data time, and the cause if facts show one."""
    if len(training.ranks) < 2:
        yield skip(NODE, f"{ranks_in_words(case, len(training.ranks))}: nothing to compare with")
        return
    even: list[Deviation] = []
    clean = True
    for group in _groups(case, training):
        if len(group) == 1:
            yield skip(rank_subject(case, group[0].rank), "the only GPU of its model here: nothing to compare with")
            continue
        # the ranks of a group share a GPU model, whose limits may be configured
        gpu = rank_gpu(case, group[0].rank)
        limits = Thresholds(**{limit.name: case.limit(limit, gpu) for limit in _LIMITS})
        for slow in slow_data(group, limits):
            yield _slow_data(case, slow)
            clean = False
        for rank, deviation in zip(group, deviations(training, group, limits), strict=True):
            if deviation.verdict == "even":
                even.append(deviation)
                continue
            # next to a rank that could not be judged, even ranks are no pass
            clean = clean and deviation.verdict != "noisy"
            yield _uneven(case, training, rank, deviation)
    if even and clean:
        yield _evenness(case, training, even)


def _groups(case: Case, training: Training) -> list[list[TrainRank]]:
    """Group ranks by GPU model: only GPUs of one model are compared."""
    gpus = ((rank_gpu(case, rank.rank), rank) for rank in training.ranks)
    return list(grouped((known(gpu.name) if gpu else None, rank) for gpu, rank in gpus).values())


def _evenness(case: Case, training: Training, even: list[Deviation]) -> Finding:
    slowest = max(even, key=lambda d: d.ratio)
    which = "every rank" if len(even) == len(training.ranks) else f"{len(even)} of {len(training.ranks)} ranks"
    text = f"{which} within {max(slowest.ratio, 1.0):.2f} x of the others' compute time"
    who = ranks_in_words(case, training.world_size)
    most = case.limit(_WARN_RATIO, rank_gpu(case, slowest.rank))
    return ok(NODE, Found(f"{who}: {text}", round(slowest.ratio, 3), "ratio"), Expected(f"below {most:g} x"))


def _slow_data(case: Case, slow: SlowData) -> Finding:
    rank, gpu = slow.rank, rank_gpu(case, slow.rank.rank)
    limit = _FAIL_RATIO if slow.verdict == "fail" else _WARN_RATIO
    most, share = case.limit(limit, gpu), known(rank.slowest_data_share)
    last_share = "an unknown share" if share is None else f"{share:.0%}"
    text = (
        f"waits {rank.data_ms:.1f} ms for each batch, the others {slow.usual_ms:.1f} ms: {slow.ratio:.2f} x their step"
    )
    return (fail if slow.verdict == "fail" else warn)(
        rank_subject(case, rank.rank),
        Found(text, round(slow.ratio, 3), "ratio"),
        Expected(f"below {most:g} x", "<", most, "ratio", case.limit_source(limit, gpu)),
        Evidence("data", f"{rank.data_ms:.2f} ms a batch, the last to have it in {last_share} of the steps"),
        Evidence("compute", f"{rank.compute_ms:.2f} ms a step"),
        likely="slow data: its loader, the storage it reads from, or the CPUs that it may use",
        advice=(
            Advice(
                "See what the storage and the loaders of this node can do.", "gpudoctor check storage data --data PATH"
            ),
            *_host_steps(),
        ),
    )


def _uneven(case: Case, training: Training, rank: TrainRank, deviation: Deviation) -> Finding:
    gpu, subject = rank_gpu(case, rank.rank), rank_subject(case, rank.rank)
    evidence = (
        Evidence("compute", f"{rank.compute_ms:.2f} ms, again {rank.compute_again_ms:.2f} ms"),
        Evidence("came last", f"{rank.last_in_share:.0%} of the steps, {rank.lateness_ms:.2f} ms after the first"),
        Evidence("host time", f"enqueueing {rank.host_ms:.2f} ms, fetching a batch {rank.data_ms:.2f} ms"),
        *_swap(training, rank),
    )
    text = f"computes {deviation.ratio:.2f} x as long as the others ({rank.compute_ms:.1f} ms a step)"
    if deviation.verdict == "noisy":
        reason = f"too noisy to judge: it {text}, but {deviation.why}"
        return unknown(subject, reason, *evidence, advice=("Repeat it while nothing else runs on the node.",))
    if deviation.verdict == "late":
        return warn(
            subject,
            f"computes like the others, but comes {deviation.why} to the collective",
            "all ranks arrive together",
            *evidence,
            likely="its process is held up on the host: data loading, CPU affinity, or another process on its cores",
            advice=_host_steps(),
        )
    limit = _FAIL_RATIO if deviation.verdict == "fail" else _WARN_RATIO
    most = case.limit(limit, gpu)
    judge = fail if deviation.verdict == "fail" and not (gpu and is_shared(gpu)) else warn
    likely, on_host = _why(case, training, rank, gpu)
    advice = (
        Advice("Look at its clocks, temperature, power and link.", "gpudoctor check gpu pcie -v"),
        Advice("Swap it with another GPU, or take it out of the job, and see whether the slowness moves."),
    )
    return judge(
        subject,
        Found(text, round(deviation.ratio, 3), "ratio"),
        Expected(f"below {most:g} x", "<", most, "ratio", case.limit_source(limit, gpu)),
        *evidence,
        likely=likely,
        advice=_host_steps() if on_host else advice,
    )


def _why(case: Case, training: Training, rank: TrainRank, gpu: Gpu | None) -> tuple[str, bool]:
    """The likely cause, and whether it is on the host."""
    if gpu is None:
        return "the host is slow for this rank: few or busy CPUs, or a CPU quota", True
    reasons = slowness_causes(case, rank.rank, [each.rank for each in training.ranks], "train")
    swap = training.swap if training.swap is not None and training.swap.suspect == rank.rank else None
    if swap is not None and swap.suspect_on_partners_gpu_ms >= swap.suspect_ms * 0.95:
        return "it stays slow on another GPU: its process is slow on the host (few or busy CPUs, far NUMA node)", True
    if reasons:
        return "; ".join(reasons), False
    if swap is not None and swap.partner_on_suspects_gpu_ms >= swap.suspect_ms * 0.95:
        return "another process is as slow on it: the GPU itself is slow, and no reading explains it", False
    if rank.host_ms >= 0.9 * rank.compute_ms:  # enqueueing takes nearly as long as the work itself
        return "the host is slow for this rank: few or busy CPUs, or a CPU quota", True
    return "no reading explains it: the GPU itself is slow", False


def _swap(training: Training, rank: TrainRank) -> tuple[Evidence, ...]:
    swap = training.swap
    if swap is None or swap.suspect != rank.rank:
        return ()
    text = (
        f"on the GPU of rank {swap.partner} it takes {swap.suspect_on_partners_gpu_ms:.2f} ms, "
        f"and rank {swap.partner} on its GPU {swap.partner_on_suspects_gpu_ms:.2f} ms (own: {swap.partner_ms:.2f} ms)"
    )
    return (Evidence("GPUs swapped", text),)


def _host_steps() -> tuple[Advice, ...]:
    return (
        Advice("See what runs on its CPUs.", "gpudoctor check host topology -v"),
        Advice("Give every rank its own cores, near its GPU, and enough of them."),
    )
