"""train.utilization, train.memory: are all GPUs equally busy during the train, and equally full?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.probe_outcome import SYNC, judges_training, not_judged, problems_of
from gpudoctor.checks.measured.ranks import on_gpus, rank_subject, ranks_in_words
from gpudoctor.checks.measured.under_load import highest_of, is_of, median, median_of, telemetry_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Training
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Telemetry
from gpudoctor.text.grouped import grouped

_BUSY = "utilization_pct"
_CALL = "nvmlDeviceGetUtilizationRates"
Watched = tuple[Gpu, GpuUnderLoad]

_APART_PCT = Limit(
    20, "points", "from the others' median; NVML's figure itself jumps by 10 (ours)", name="apart_pct", status="warn"
)
_LEAST_SAMPLES = Limit(5, "readings", "NVML's figure is a mean over up to 1 s: fewer say nothing", name="least_samples")
_SPREAD_SHARE = Limit(
    0.02, "of the median", "equal work allocates equally; 2 % for fragmentation", name="spread_share", status="warn"
)
_SPREAD_MIB = Limit(
    256, "MiB", "gpudoctor's own choice: NCCL's buffers differ a little by rank", name="spread_mib", status="warn"
)


@check(
    "train.utilization",
    limits=(_APART_PCT, _LEAST_SAMPLES),
)
def utilization(case: Case) -> Iterator[Finding]:
    """Warn of a GPU that differs; never fail, since a GPU that waits in NCCL shows 100 % too."""
    telemetry = telemetry_of(case, "train")
    if telemetry is None or problems_of(case, "train"):
        yield from _nothing_watched(case)
        return
    watched, unseen = [], False
    for load in telemetry.gpus:
        gpu = next((g for g in case.node.gpus if is_of(load, g)), None)
        if gpu is None:
            continue
        gap = _gap(case, gpu, load)
        if gap is not None:
            unseen = True
            yield gap
        else:
            watched.append((gpu, load))
    if telemetry.ended is not None:
        yield unknown(NODE, f"utilisation: not sampled to the end of the train: {telemetry.ended}")
        return
    for group in grouped((known(gpu.name), (gpu, load)) for gpu, load in watched).values():
        yield from _compared(case, telemetry, group, unseen)


def _nothing_watched(case: Case) -> Iterator[Finding]:
    what = "utilisation of the GPUs"
    launch = case.measurements.launch
    unbroken = not problems_of(case, "train")
    if unbroken and launch is not None and not on_gpus(case):
        yield skip(NODE, f"{ranks_in_words(case, launch.world_size)}: no GPU was under load")
    elif unbroken and "telemetry" in case.measurements.not_run:
        yield unread(NODE, what, case.measurements.not_run["telemetry"])
    else:
        yield from not_judged(case, "train", what, SYNC, measured=False)


def _gap(case: Case, gpu: Gpu, load: GpuUnderLoad) -> Finding | None:
    """A finding if this GPU's utilisation cannot be judged; None if it can."""
    missing = load.unread.get(_BUSY)
    if missing is not None and (missing.kind == "failed" or _BUSY not in load.readings):
        return unread(of_gpu(gpu), "utilisation under load", missing)
    if _BUSY not in load.readings:
        return unread(of_gpu(gpu), "utilisation under load", Missing("not sampled while it ran"))
    if load.samples < case.limit(_LEAST_SAMPLES, gpu):
        return skip(of_gpu(gpu), f"the train was too short to watch: {load.samples} readings")
    return None


def _compared(case: Case, telemetry: Telemetry, group: Sequence[Watched], unseen: bool) -> Iterator[Finding]:
    busy = [median_of(load, _BUSY) or 0.0 for _, load in group]
    if len(group) == 1:
        yield skip(of_gpu(group[0][0]), f"{busy[0]:.0f} % busy; no other GPU of its model to compare with")
        return
    limit = case.limit(_APART_PCT, group[0][0])
    usual = [median(busy[:number] + busy[number + 1 :]) or 0.0 for number in range(len(busy))]
    outliers = [number for number in range(len(busy)) if abs(busy[number] - usual[number]) > limit]
    if len(group) == 2:
        outliers = [min(outliers, key=lambda number: busy[number])] if outliers else []  # of two, the idler one is odd
    elif len(outliers) * 2 > len(group):
        yield _uneven(case, group, busy)
        return
    for number in outliers:
        yield _apart(case, telemetry, group[number], busy[number], usual[number])
    if not outliers and not unseen:
        widest = max(load.readings[_BUSY].high - load.readings[_BUSY].low for _, load in group)
        steadiness = f", fluctuating by up to {widest:.0f} points"
        text = f"{len(group)} GPUs alike: {_span(busy)} % busy{_memory(group)}{steadiness}"
        yield ok(NODE, Found(text, round(min(busy), 1), "%"), Expected(f"within {limit:g} points of each other"))


def _apart(case: Case, telemetry: Telemetry, watched: Watched, busy: float, usual: float) -> Finding:
    gpu, load = watched
    limit = case.limit(_APART_PCT, gpu)
    spread = load.readings[_BUSY]
    bound = round(usual - limit if busy < usual else usual + limit, 1)
    source = case.limit_source(_APART_PCT, gpu)
    readings = f"median {busy:.0f} %, {spread.low:.0f} to {spread.high:.0f} % in {telemetry.duration_s:.1f} s"
    steps = (
        Advice("See which rank is slower, and why.", "gpudoctor check train -v"),
        Advice("See what runs on its CPUs, and on the GPU itself.", "gpudoctor check host topology gpu.in-use -v"),
    )
    return warn(
        of_gpu(gpu),
        Found(f"{busy:.0f} % busy during the train, the others {usual:.0f} %", round(busy, 1), "%"),
        Expected(f"within {limit:g} points of the others", ">=" if busy < usual else "<=", bound, "%", source),
        Evidence(_CALL, readings),
        likely="its host does not feed it: few or busy CPUs, slow data"
        if busy < usual
        else "it computes while the others wait: look at its rank in train.balance",
        advice=steps,
    )


def _uneven(case: Case, group: Sequence[Watched], busy: Sequence[float]) -> Finding:
    each = ", ".join(f"GPU {gpu.index} {value:.0f} %" for (gpu, _), value in zip(group, busy, strict=True))
    limit = case.limit(_APART_PCT, group[0][0])
    return warn(
        NODE,
        Found(f"the GPUs are unevenly busy during the train: {_span(busy)} %", round(min(busy), 1), "%"),
        Expected(f"within {limit:g} points of each other"),
        Evidence(_CALL, each),
        likely="the work is not spread evenly, or the host feeds only some of the GPUs",
        advice=(Advice("See which ranks wait, and for whom.", "gpudoctor check train host topology -v"),),
    )


def _span(values: Sequence[float], digits: int = 0) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _memory(group: Sequence[Watched]) -> str:
    used = [most / 1024 for _, load in group if (most := highest_of(load, "memory_used_mib")) is not None]
    return f", {_span(used, 1)} GiB used" if used else ""


@check(
    "train.memory",
    needs_gpu=False,
    limits=(_SPREAD_SHARE, _SPREAD_MIB),
)
@judges_training("memory of the ranks")
def memory(case: Case, training: Training) -> Iterator[Finding]:
    """Warn if a rank's peak differs from the median by more than the larger of the two limits."""
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
    usual_mib = median(peaks.values()) or 0.0
    room_mib = max(case.limit(_SPREAD_SHARE) * usual_mib, case.limit(_SPREAD_MIB))
    outliers = {rank: mib for rank, mib in peaks.items() if abs(mib - usual_mib) > room_mib}
    for number, mib in outliers.items():
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
    if not outliers:
        yield ok(NODE, Found(f"{usual_mib:.0f} MiB at peak on every rank", round(usual_mib), "MiB"))
