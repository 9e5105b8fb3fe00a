"""train.memory: does every rank use the same amount of GPU memory?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unread, warn
from gpudoctor.checks.core.probe_outcome import rank_subject, ranks_in_words
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.under_load import median
from gpudoctor.checks.train.sync import judges_training
from gpudoctor.facts.model.measurements import Training
from gpudoctor.facts.model.missing import Missing

_SPREAD_SHARE = Limit(
    0.02, "of the median", "equal work allocates equally; 2 % for fragmentation", name="spread_share", status="warn"
)
_SPREAD_MIB = Limit(
    256, "MiB", "gpudoctor's own choice: NCCL's buffers differ a little by rank", name="spread_mib", status="warn"
)


@check(
    "train.memory",
    title="Every rank uses the same amount of GPU memory",
    level="standard",
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
