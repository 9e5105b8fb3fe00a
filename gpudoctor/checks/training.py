"""train.*: what a short DDP train showed of balance, memory and scaling; train.sync is in train_sync."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from gpudoctor.checks.case import Case, Limit
from gpudoctor.checks.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    fail,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.probe_outcome import (
    absent,
    not_judged,
    problems_of,
    rank_gpu,
    rank_subject,
    ranks_in_words,
)
from gpudoctor.checks.registry import check
from gpudoctor.checks.straggler import Deviation, Thresholds, causes, deviations, shared_with
from gpudoctor.checks.train_sync import SYNC
from gpudoctor.facts.measurements import Training, TrainRank
from gpudoctor.facts.missing import Missing, known

BALANCE, MEMORY, SCALING = "train.balance", "train.memory", "train.scaling"
_SIMULATED = "simulation of 20 000 runs: false alarms at most 0.01 % at 1.10"


def _lacking(case: Case, what: str) -> Iterator[Finding]:
    """Why there is no training to look at, for the checks other than train.sync."""
    if problems_of(case, "train"):
        yield from not_judged(case, "train", what, SYNC)
    else:
        yield absent(case, "train", what)


@check(
    BALANCE,
    title="No rank is slower than the others",
    level="standard",
    needs_gpu=False,
    limits={
        "warn_ratio": Limit(1.10, "of the others' median", _SIMULATED),
        "fail_ratio": Limit(1.20, "of the others' median", _SIMULATED),
        "excess_ms": Limit(1.0, "ms", "differences below this are scheduling noise"),
        "last_in_share": Limit(0.8, "of the steps", "an innocent rank comes last in 1 of n steps; at most 40 % seen"),
    },
)
def balance(case: Case) -> Iterator[Finding]:
    """Name the rank whose compute time stands out, with its cause where facts show one."""
    training = case.measurements.training
    if training is None:
        yield from _lacking(case, "balance of the ranks")
        return
    yield from not_judged(case, "train", "balance of the ranks", SYNC)
    if len(training.ranks) < 2:
        yield skip(NODE, f"{ranks_in_words(case, len(training.ranks))}: nothing to compare with")
        return
    limits = Thresholds(
        *(case.limit(BALANCE, name) for name in ("warn_ratio", "fail_ratio", "excess_ms", "last_in_share"))
    )
    even: list[Deviation] = []
    noisy = False
    for group in _groups(case, training):
        if len(group) == 1:
            yield skip(rank_subject(case, group[0].rank), "the only GPU of its model here: nothing to compare with")
            continue
        for deviation in deviations(training, group, limits):
            if deviation.verdict == "even":
                even.append(deviation)
                continue
            noisy = noisy or deviation.verdict == "noisy"
            yield _uneven(case, training, deviation)
    # beside a rank that could not be judged, the others' evenness is no pass
    if even and not noisy:
        slowest = max(even, key=lambda d: d.ratio)
        who = "every rank" if len(even) == len(training.ranks) else f"{len(even)} of {len(training.ranks)} ranks"
        text = f"{who} within {max(slowest.ratio, 1.0):.2f} x of the others' compute time"
        who = ranks_in_words(case, training.world_size)
        yield ok(
            NODE, Found(f"{who}: {text}", round(slowest.ratio, 3), "ratio"), Expected(f"below {limits.warn_ratio:g} x")
        )


def _groups(case: Case, training: Training) -> list[list[TrainRank]]:
    """Ranks by GPU model: different models are compared only with their like."""
    groups: dict[str | None, list[TrainRank]] = {}
    for rank in training.ranks:
        gpu = rank_gpu(case, rank.rank)
        groups.setdefault(known(gpu.name) if gpu else None, []).append(rank)
    return list(groups.values())


def _uneven(case: Case, training: Training, deviation: Deviation) -> Finding:
    rank, gpu = deviation.rank, rank_gpu(case, deviation.rank.rank)
    subject = rank_subject(case, rank.rank)
    evidence = (
        Evidence("compute", f"{rank.compute_ms:.2f} ms, again {rank.compute_again_ms:.2f} ms"),
        Evidence("came last", f"{rank.last_in_share:.0%} of the steps, {rank.lateness_ms:.2f} ms after the first"),
        Evidence("host", f"enqueueing {rank.host_ms:.2f} ms, fetching a batch {rank.data_ms:.2f} ms"),
    )
    text = f"computes {deviation.ratio:.2f} x as long as the others ({rank.compute_ms:.1f} ms a step)"
    if deviation.verdict == "noisy":
        reason = f"too noisy to judge: it {text}, but {deviation.why}"
        if training.device == "cpu":
            return skip(subject, f"{reason}; CPU ranks share their cores")
        return unknown(subject, reason, *evidence, advice=("Repeat it while nothing else runs on the node.",))
    peers = [g for r in training.ranks if r is not rank and (g := rank_gpu(case, r.rank)) is not None]
    reasons = causes(gpu, peers) if gpu else []
    if deviation.verdict == "late":
        if training.device == "cpu":
            why = f"computes like the others, but comes {deviation.why} to the collective"
            return skip(subject, f"too noisy to judge: it {why}; CPU ranks share their cores")
        return warn(
            subject,
            f"computes like the others, but comes {deviation.why} to the collective",
            "all ranks arrive together",
            *evidence,
            likely="its process is held up on the host: data loading, CPU affinity, or another process on its cores",
            advice=_host_steps(),
        )
    limit = case.limit(BALANCE, f"{deviation.verdict}_ratio", gpu)
    judge = fail if deviation.verdict == "fail" and not (gpu and shared_with(gpu)) else warn
    if gpu is None or (deviation.host_bound and not reasons):
        likely, advice = "the host is slow for this rank: few or busy CPUs, or a CPU quota", _host_steps()
    else:
        likely = "; ".join(reasons) or "no reading explains it: the GPU itself is slow"
        advice = (
            Advice("Look at its clocks, temperature, power and link.", "gpudoctor check gpu pcie -v"),
            Advice("Swap it with another GPU, or take it out of the job, and see whether the slowness moves."),
        )
    expected = Expected(
        f"below {limit:g} x", "<", limit, "ratio", case.limit_source(BALANCE, f"{deviation.verdict}_ratio", gpu)
    )
    return judge(
        subject, Found(text, round(deviation.ratio, 3), "ratio"), expected, *evidence, likely=likely, advice=advice
    )


def _host_steps() -> tuple[Advice, ...]:
    return (
        Advice("See what runs on its CPUs.", "gpudoctor check host topology -v"),
        Advice("Give every rank its own cores, near its GPU, and enough of them."),
    )


@check(
    MEMORY,
    title="Every rank uses the same amount of GPU memory",
    level="standard",
    needs_gpu=False,
    limits={
        "spread_share": Limit(0.02, "of the median", "equal work allocates equally; 2 % for fragmentation"),
        "spread_mib": Limit(256, "MiB", "gpudoctor's own choice: NCCL's buffers differ a little by rank"),
    },
)
def memory(case: Case) -> Iterator[Finding]:
    """Warn where a rank's peak is off the others' median by more than the larger of the two limits."""
    training = case.measurements.training
    if training is None:
        yield from _lacking(case, "memory of the ranks")
        return
    yield from not_judged(case, "train", "memory of the ranks", SYNC)
    if training.device == "cpu":
        yield skip(NODE, f"{ranks_in_words(case, training.world_size)}: no GPU memory to compare")
        return
    if len(training.ranks) < 2:
        yield skip(NODE, "one rank: nothing to compare with")
        return
    peaks: dict[int, float] = {}
    for rank in training.ranks:
        if isinstance(rank.memory_peak_mib, Missing):
            yield unread(rank_subject(case, rank.rank), "peak memory", rank.memory_peak_mib)
        else:
            peaks[rank.rank] = rank.memory_peak_mib
    if len(peaks) < 2:
        return
    from statistics import median  # not at the top: it costs start-up time

    usual_mib = median(peaks.values())
    room_mib = max(case.limit(MEMORY, "spread_share") * usual_mib, case.limit(MEMORY, "spread_mib"))
    odd = {rank: mib for rank, mib in peaks.items() if abs(mib - usual_mib) > room_mib}
    for number, mib in odd.items():
        yield warn(
            rank_subject(case, number),
            Found(f"{mib:.0f} MiB at peak", round(mib), "MiB"),
            Expected(f"{usual_mib:.0f} MiB, within {room_mib:.0f} MiB", "==", round(usual_mib), "MiB", "other ranks"),
            Evidence("torch.cuda.max_memory_allocated", f"{mib:.0f} MiB"),
            likely="work or buffers of other ranks on this GPU",
            advice=(
                Advice("See which processes sit on it.", "nvidia-smi"),
                Advice("In your own code load checkpoints with map_location to the rank's own device."),
            ),
        )
    if not odd:
        yield ok(NODE, Found(f"{usual_mib:.0f} MiB at peak on every rank", round(usual_mib), "MiB"))


@check(
    SCALING,
    title="All GPUs together are worth nearly their number",
    level="standard",
    needs_gpu=False,
    limits={
        "efficiency_2": Limit(0.95, "efficiency", "rule of thumb: 2 GPUs 1.9 x"),
        "efficiency_4": Limit(0.88, "efficiency", "rule of thumb: 4 GPUs 3.5 x"),
        "efficiency_8": Limit(0.81, "efficiency", "rule of thumb: 8 GPUs 6.5 x"),
    },
)
def scaling(case: Case) -> Iterator[Finding]:
    """Warn where a step with all ranks takes much longer than the same step on one rank alone."""
    training = case.measurements.training
    if training is None:
        yield from _lacking(case, "scaling")
        return
    yield from not_judged(case, "train", "scaling", SYNC)
    who = ranks_in_words(case, training.world_size)
    if training.world_size < 2 or not training.ranks:
        yield skip(NODE, f"{who}: nothing to scale")
        return
    if isinstance(training.solo_step_ms, Missing):
        yield unread(NODE, "the step on one rank alone", training.solo_step_ms)
        return
    from statistics import median  # not at the top: it costs start-up time

    step_ms = median(r.step_ms for r in training.ranks)
    if step_ms <= 0:
        yield unknown(NODE, "scaling: the steps took no time, so nothing was measured")
        return
    efficiency = training.solo_step_ms / step_ms
    speed_up = efficiency * training.world_size
    text = f"{who}: {speed_up:.2f} x one rank, efficiency {efficiency:.0%}"
    if training.device == "cpu":
        yield skip(NODE, f"{text}, not judged")
        return
    if not _direct(case, training):
        yield skip(
            NODE, f"{text}, not judged: gradients of GPUs without NVLink or peer-to-peer pass through host memory"
        )
        return
    limit = _good(case, training.world_size)
    gradient = f"gradients of {training.gradient_bytes / 1e6:.0f} MB a step"
    found = Found(f"{text} ({gradient})", round(efficiency, 3), "ratio")
    expected = Expected(
        f"at least {limit:.0%}", ">=", round(limit, 3), "ratio", case.limit_source(SCALING, "efficiency_2")
    )
    evidence = Evidence("probe", f"step {step_ms:.2f} ms, alone {training.solo_step_ms:.2f} ms, {gradient}")
    if efficiency >= limit:
        yield ok(NODE, found, expected, evidence)
        return
    yield warn(
        NODE,
        found,
        expected,
        evidence,
        likely="the GPUs wait for each other's gradients: a slow path between them, or one slow rank",
        advice=(
            Advice("Look at the paths and the slowest rank.", "gpudoctor check nvlink pcie env.nccl train.balance -v"),
            Advice("Where the paths are as they should be: larger batches or gradient accumulation hide it."),
        ),
    )


def _direct(case: Case, training: Training) -> bool:
    """Whether every two GPUs of the run may reach each other directly; yes where that is not known."""
    gpus = {gpu.index for rank in training.ranks if (gpu := rank_gpu(case, rank.rank)) is not None}
    pairs = [pair for pair in case.pairs if {pair.a, pair.b} <= gpus]
    return all(known(pair.nvlinks) or known(pair.p2p_read) in ("OK", None) for pair in pairs)


def _good(case: Case, ranks: int) -> float:
    """The efficiency to expect, between 2, 4 and 8 ranks in log scale; that of 8 beyond."""
    two, four, eight = (case.limit(SCALING, name) for name in ("efficiency_2", "efficiency_4", "efficiency_8"))
    if ranks >= 8:
        return eight
    if ranks >= 4:
        return four + (eight - four) * (log2(ranks) - 2)
    return two + (four - two) * (log2(ranks) - 1)
