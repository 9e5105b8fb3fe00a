"""run.progress: did all ranks go on to the end; if not, which one stopped, and where?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, warn
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.process.ending import ending_words
from gpudoctor.run.findings.balance import subject_of
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.watched import RunStall, StoppedRank, Watched, WatchedRank
from gpudoctor.text.units import ranges

_EXPECTED = Expected("all ranks go on to the end")
_MOST_ERROR = 160
_MOST_NAMED = 16
# what gloo, NCCL and the store say of a peer that has gone
_LOST_PEER = re.compile(
    r"[Cc]onnection (closed|reset|refused|was)|Broken pipe|remote process exited|Timed out|[Tt]imeout"
)


@run_check("run.progress", title="All ranks go on to the end")
def progress(watched: Watched) -> Iterator[Finding]:
    """Name the rank that stopped, left or died first."""
    found = list(_of_stalls(watched))
    if not any(stall.ended_by_us for stall in watched.stalls):  # else how they ended follows from that
        found += _of_ends(watched)
    if found:
        yield from found
        return
    if watched.exit_code and not watched.sent:
        status = -watched.signal if watched.signal else watched.exit_code
        yield fail(NODE, f"the command ended with {ending_words(status)}", "exit code 0")
    elif not watched.ranks:
        yield skip(NODE, watched.not_observed or "no rank was seen")
    else:
        steps = {rank.finished for rank in watched.ranks}
        who = f"{len(watched.ranks)} rank{'s' if len(watched.ranks) > 1 else ''}"
        yield ok(NODE, f"{who} made {ranges(sorted(steps))} steps")


def missing_ranks(ranks: tuple[StoppedRank, ...]) -> tuple[StoppedRank, ...]:
    """Those for which the others wait: gone or not waiting; if all wait, those behind or in another collective."""
    gone = tuple(rank for rank in ranks if rank.gone)
    busy = tuple(rank for rank in ranks if not rank.gone and not rank.waits)
    if gone or busy:
        return gone if gone and len(busy) + len(gone) == len(ranks) and len(gone) < len(ranks) else (busy or gone)
    fewest, most = min(r.finished for r in ranks), max(r.finished for r in ranks)
    if fewest < most:
        return tuple(rank for rank in ranks if rank.finished == fewest)
    names = [rank.collective for rank in ranks]
    rarest = min(names, key=names.count)
    return tuple(r for r in ranks if r.collective == rarest) if names.count(rarest) * 2 < len(ranks) else ()


def _of_stalls(watched: Watched) -> Iterator[Finding]:
    for stall in watched.stalls:
        named = missing_ranks(stall.ranks)
        judge = warn if stall.resumed else fail
        then = "; then it went on" if stall.resumed else ""
        advice = (Advice("Look at the line of code where the named rank stands."),)
        if not named or len(named) == len(stall.ranks) > 1:
            text = f"no rank made progress for {stall.stood_s:.0f} s{then}"
            yield judge(NODE, text, _EXPECTED, *_stands(stall.ranks), advice=advice)
            continue
        waiting = tuple(rank for rank in stall.ranks if rank not in named)
        waited = f", rank {ranges([rank.rank for rank in waiting])} waited" if waiting else ""
        for rank in named[:_MOST_NAMED]:
            text = f"stopped after step {rank.finished}: {stand_words(rank)}; nothing moved for {stall.stood_s:.0f} s"
            where = [Evidence("called from", " < ".join(rank.callers))] if rank.callers else []
            where += [Evidence("its loader's workers", "; ".join(rank.workers))] if rank.workers else []
            yield judge(
                _subject(watched, rank.rank),
                Found(f"{text}{waited}{then}", rank.finished, "steps"),
                _EXPECTED,
                *where,
                *(_stands(waiting) if rank is named[0] else ()),
                likely="it left while the others went on"
                if rank.gone
                else "it does not come to the collective that the others are in"
                if waiting
                else None,
                advice=advice,
            )


def _stands(ranks: Sequence[StoppedRank]) -> Iterator[Evidence]:
    """Where each rank stands; those that stand in the same place together."""
    same: dict[str, list[int]] = {}
    for rank in ranks:
        same.setdefault(stand_words(rank), []).append(rank.rank)
    for words, numbers in list(same.items())[:_MOST_NAMED]:
        yield Evidence(f"rank {ranges(numbers)}", words)


def stand_words(rank: StoppedRank) -> str:
    """Where one rank stands."""
    if rank.gone:
        return f"its process has ended (after step {rank.finished})"
    where = rank.place or "no Python line known"
    code = f": {rank.code}" if rank.code else ""
    if rank.waits:
        return f"waits in {rank.collective or 'a collective'}, called from {where}{code}"
    kernel = f"; in the kernel: {rank.kernel}" if rank.kernel else ""
    return f"is in {where}{code} ({rank.phase}){kernel}"


def _of_ends(watched: Watched) -> Iterator[Finding]:
    """The rank that ended first, if the command failed or it made fewer steps than others."""
    ranks = [rank for rank in watched.ranks if rank.finished or rank.ending != "runs"]
    failed = watched.exit_code != 0 and not watched.sent
    most = max((rank.finished for rank in ranks), default=0)
    first = first_to_end(ranks) if failed else _left_early(ranks, most)
    if first is None or watched.oom_kills:
        return
    others = [rank for rank in ranks if rank is not first]
    how = {
        "exception": f"raised {_short(first.error)}",
        "normal": "left by itself, without an error",
        "abrupt": "ended without Python's own end: killed by a signal, or by os._exit",
        "runs": "",
    }[first.ending]
    step = f"after step {first.finished}" if first.finished else "before its first step"
    made = f"; the others had made {ranges(sorted({rank.finished for rank in others}))} steps" if others else ""
    evidence = [Evidence(f"rank {rank.rank}", _end_words(rank)) for rank in ranks[:16]]
    judge = fail if failed else warn
    if others and all(rank.ending == "exception" and _short(rank.error) == _short(first.error) for rank in ranks):
        yield judge(NODE, f"all ranks {how}, {step}", _EXPECTED, *evidence)
        return
    advice = Advice("Look at its own output first; what its logs say follows, if they say it.")
    yield judge(
        subject_of(watched, first),
        Found(f"{how}, {step}{made}", first.finished, "steps"),
        _EXPECTED,
        *evidence,
        likely="it was the first to end; what the others report follows from that" if others else None,
        advice=(advice,) if failed else (),
    )


def first_to_end(ranks: Sequence[WatchedRank]) -> WatchedRank | None:
    """The rank whose end came before those of the others, and is not one that only lost its connection to a peer.

    An abrupt end is noticed a little later than it happens, the others are exact.
    """
    ended = [rank for rank in ranks if rank.ended_s is not None]
    causes = [rank for rank in ended if not _lost_a_peer(rank)] or ended
    raised = [rank for rank in causes if rank.ending != "abrupt"]
    abrupt = min(
        (rank for rank in causes if rank.ending == "abrupt"), key=lambda rank: rank.ended_s or 0.0, default=None
    )
    first = min(raised, key=lambda rank: rank.ended_s or 0.0, default=None)
    if first is None or abrupt is None:
        return first or abrupt
    return abrupt if (abrupt.ended_s or 0.0) < (first.ended_s or 0.0) else first


def _left_early(ranks: Sequence[WatchedRank], most: int) -> WatchedRank | None:
    fewest = min(ranks, key=lambda rank: rank.finished, default=None)
    if (
        fewest is None
        or fewest.finished == most
        or sum(rank.finished == fewest.finished for rank in ranks) * 2 > len(ranks)
    ):
        return None
    return fewest


def _lost_a_peer(rank: WatchedRank) -> bool:
    return rank.ending == "exception" and _LOST_PEER.search(rank.error or "") is not None


def _short(error: str | None) -> str:
    text = (error or "an exception").split(". ")[0].splitlines()[0]
    return text if len(text) <= _MOST_ERROR else text[: _MOST_ERROR - 3] + "..."


def _end_words(rank: WatchedRank) -> str:
    at = "still ran" if rank.ended_s is None else f"ended at {rank.ended_s:.2f} s"
    how = {
        "exception": f": {_short(rank.error)}",
        "normal": " by itself",
        "abrupt": " without Python's own end",
        "runs": "",
    }
    return f"{rank.finished} steps, {at}{how[rank.ending]}"


def _subject(watched: Watched, rank: int) -> Subject:
    found = next((each for each in watched.ranks if each.rank == rank), WatchedRank(rank=rank, pid=0))
    return subject_of(watched, found)


def of_stall(stall: RunStall) -> Iterator[str]:
    """The description of a stall for people, while it lasts."""
    named = {rank.rank for rank in missing_ranks(stall.ranks)}
    for rank in stall.ranks:
        is_missing = rank.rank in named and len(named) < len(stall.ranks)
        yield f"rank {rank.rank}, {rank.finished} steps: {stand_words(rank)}{'  <- missing' if is_missing else ''}"
        if is_missing:
            yield from (f"    called from {place}" for place in rank.callers)
            yield from (f"    loader workers: {words}" for words in rank.workers)
