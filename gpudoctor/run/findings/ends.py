"""How the ranks of a run ended: which one first, which only followed, and for which the others waited in vain."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpudoctor.run.watched import Watched, WatchedRank

# causes in the logs that say a rank stood still
HANGS = ("rank_hung", "stalled")
# what gloo, NCCL and the store say of a peer that has gone
_LOST_PEER = re.compile(r"[Cc]onnection (closed|reset|refused|was)|Broken pipe|remote process exited")
_TIMED_OUT = re.compile(r"Timed out|[Tt]imeout")
# what they say of peers that do not come
_GAVE_UP = re.compile(
    r"Timed out waiting \d+ ?ms for (recv|send)|Application timeout caused pair closure|monitoredBarrier"
    r"|collective operation\s+timeout|timed out in blocking wait|wait timeout after \d+ ?ms"
)


def first_to_end(ranks: Sequence[WatchedRank]) -> WatchedRank | None:
    """The rank whose end came before those of the others, and is not one that only lost its connection to a peer."""
    ended = [rank for rank in ranks if rank.ended_s is not None]
    leaders = [rank for rank in ended if not any(_followed(rank, other) for other in ended)]
    causes = [rank for rank in leaders if _says(rank, _GAVE_UP) or not _lost_others(rank)] or leaders
    return min(causes, key=lambda rank: (rank.ended_s or 0.0, rank.ending == "abrupt"), default=None)


def ended_later(rank: WatchedRank, other: WatchedRank) -> bool:
    """Whether it certainly still lived when the other one had ended."""
    if other.ended_s is None or rank.ended_s is None:
        return rank.ended_s is None and other.ended_s is not None
    # an abrupt end is noticed after it happened
    least_s = (rank.lived_s or 0.0) if rank.ending == "abrupt" else rank.ended_s
    return least_s > other.ended_s


def gave_up_on(watched: Watched, first: WatchedRank) -> tuple[WatchedRank, ...] | None:
    """If the first rank to end had only waited in vain: for which ranks, as far as is known. None if it had not."""
    others = [rank for rank in watched.ranks if rank is not first]
    cause = watched.cause_in_logs
    if (first.ending == "abrupt" or _lost_others(first)) and cause is not None and cause.what in HANGS:
        hung = cause.ranks or (() if cause.rank is None else (cause.rank,))
        return None if first.rank in hung else tuple(rank for rank in others if rank.rank in hung)
    if not _says(first, _GAVE_UP):
        return None
    later = [rank for rank in others if rank.ended_s is None or rank.ended_s > (first.ended_s or 0.0)]
    missing = tuple(rank for rank in later if not _lost_others(rank))
    return missing if len(missing) == 1 else ()


def _followed(rank: WatchedRank, other: WatchedRank) -> bool:
    """Whether its end follows from that of the other: the launcher ends those that are left.

    One that had left the others to lose it may end after them; but none that lived had left when they timed out.
    """
    return ended_later(rank, other) and (rank.ending == "abrupt" or _says(other, _TIMED_OUT))


def _lost_others(rank: WatchedRank) -> bool:
    return _says(rank, _LOST_PEER) or _says(rank, _TIMED_OUT)


def _says(rank: WatchedRank, pattern: re.Pattern[str]) -> bool:
    return rank.ending == "exception" and pattern.search(rank.error or "") is not None
