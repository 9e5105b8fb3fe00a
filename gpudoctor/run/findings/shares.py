"""What part of their steps the ranks spend on something that is no training, and whether that is worth a change."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.finding import Expected, Finding, Found, ok, skip
from gpudoctor.checks.core.subject import NODE
from gpudoctor.run.findings.slow_ranks import LEAST_STEPS
from gpudoctor.run.observer.layout import PHASES
from gpudoctor.run.watched import Watched, WatchedRank

SHARE = Limit(0.20, "of the step", "gpudoctor's own choice: a fifth of the time is worth a change", name="share_warn")
SHARE_MS = Limit(
    1.0, "ms a step", "gpudoctor's own choice: a batch costs that much even ready from a worker", name="share_ms"
)
SHARE_S = Limit(1.0, "s of the run", "gpudoctor's own choice: less is not worth a change", name="share_s")
SHARE_LIMITS = (SHARE, SHARE_MS, SHARE_S)


def ranks_with_shares(watched: Watched) -> list[WatchedRank]:
    """Ranks with enough steps to say what part of them something takes."""
    return [rank for rank in watched.ranks if len(rank.steps) >= LEAST_STEPS]


class Share(msgspec.Struct, frozen=True):
    """What a phase takes of the ranks' steps: its part of them, of one step, and of the whole run of a rank."""

    part: float
    step_ms: float
    run_s: float

    @property
    def is_large(self) -> bool:
        """Whether it is a large part, and more than a step costs anyway."""
        return self.part > SHARE.value and self.step_ms >= SHARE_MS.value

    @property
    def is_costly(self) -> bool:
        return self.run_s >= SHARE_S.value

    @property
    def text(self) -> str:
        return f"{self.part:.0%} of the step"

    @property
    def cost(self) -> str:
        return f"{self.step_ms:.1f} ms a step, {self.run_s:.1f} s of the run"


def expected_share() -> Expected:
    text = f"at most {SHARE.value:.0%}, or below {SHARE_MS.value:g} ms a step"
    return Expected(text, "<=", SHARE.value, "share", SHARE.source)


def judged_small(share: Share, found: Found) -> Finding | None:
    """A pass if the share is small, a skip if the run is too short to judge it; None if it is worth a change."""
    if not share.is_large:
        return ok(NODE, found, expected_share())
    if not share.is_costly:
        return skip(NODE, f"too short to judge: {found.text}; a share is judged from {SHARE_S.value:g} s on")
    return None


def share_of_steps(ranks: Sequence[WatchedRank], phase: int) -> Share:
    """The mean of the ranks, at least one; time in which one only lacked a CPU is left out."""
    whole = [fmean(step.undisturbed_ms(*range(len(PHASES))) for step in rank.steps) for rank in ranks]
    phase_ms = [fmean(step.undisturbed_ms(phase) for step in rank.steps) for rank in ranks]
    part = fmean(ms / step_ms if step_ms > 0 else 0.0 for ms, step_ms in zip(phase_ms, whole, strict=True))
    return Share(
        part, fmean(phase_ms), fmean(ms * rank.finished / 1000 for ms, rank in zip(phase_ms, ranks, strict=True))
    )
