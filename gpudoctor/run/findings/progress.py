"""run.progress: did all ranks go on to the end; if not, which one stopped, and where?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, warn
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.process.ending import ending_words
from gpudoctor.run.findings.balance import subject_of
from gpudoctor.run.findings.ends import ended_later, first_to_end, gave_up_on
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.watched import Ending, RunStall, StoppedRank, Watched, WatchedRank
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import counted, ranges

_EXPECTED = Expected("all ranks go on to the end")
_MOST_ERROR = 160
_MOST_NAMED = 16
_HANG_AFTER = Advice(
    "To see where it stands: run it with --hang-after below the timeout of its collectives, and each rank is asked."
)


@run_check("run.progress", title="All ranks go on to the end")
def progress(watched: Watched) -> Iterator[Finding]:
    """Name the rank that stopped, left or died first."""
    found = list(_of_stalls(watched))
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
        yield ok(NODE, f"{counted(len(watched.ranks), 'rank')} made {ranges(sorted(steps))} steps")


def missing_ranks(ranks: tuple[StoppedRank, ...]) -> tuple[StoppedRank, ...]:
    """Those for which the others wait: gone or not waiting; if all wait, those behind or in another collective."""
    ended = tuple(rank for rank in ranks if rank.gone)
    busy = tuple(rank for rank in ranks if not rank.gone and not rank.waits)
    if ended or busy:
        return ended if ended and len(busy) + len(ended) == len(ranks) and len(ended) < len(ranks) else (busy or ended)
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
        then = "; then it went on" if stall.resumed else _gave_up_after(watched, stall)
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
    same = grouped((stand_words(rank), rank.rank) for rank in ranks)
    for text, numbers in list(same.items())[:_MOST_NAMED]:
        yield Evidence(f"rank {ranges(numbers)}", text)


def stand_words(rank: StoppedRank) -> str:
    if rank.gone:
        return f"its process has ended (after step {rank.finished})"
    where = rank.place or "no Python line known"
    code = f": {rank.code}" if rank.code else ""
    if rank.waits:
        return f"waits in {rank.collective or 'a collective'}, called from {where}{code}"
    kernel = f"; in the kernel: {rank.kernel}" if rank.kernel else ""
    return f"is in {where}{code} ({rank.phase}){kernel}"


def stood_to_the_end(watched: Watched) -> Watched:
    """The run with the stall as its last, and not resumed, after which a rank moved only to give up waiting."""
    if not _failed(watched) or any(stall.ended_by_us for stall in watched.stalls):
        return watched
    for place, stall in enumerate(watched.stalls):
        before = {rank.rank: rank.finished for rank in stall.ranks}
        went_on = any(rank.finished > before.get(rank.rank, rank.finished) for rank in watched.ranks)
        if stall.resumed and not went_on and _only_waited(watched, stall, ("exception",)):
            last = msgspec.structs.replace(stall, resumed=False)
            return msgspec.structs.replace(watched, stalls=(*watched.stalls[:place], last))
    return watched


def _only_waited(watched: Watched, stall: RunStall, ends: Sequence[Ending] = ("exception", "abrupt")) -> bool:
    """Whether the first rank to end was none of those for which the others waited: it gave up waiting, or was ended."""
    first = first_to_end(_that_ran(watched))
    missing = {rank.rank for rank in missing_ranks(stall.ranks)}
    if first is None or first.rank in missing or first.ending not in ends:
        return False
    return gave_up_on(watched, first) is not None or (first.ending == "abrupt" and bool(missing))


def _gave_up_after(watched: Watched, stall: RunStall) -> str:
    first = first_to_end(_that_ran(watched))
    is_last = stall is watched.stalls[-1] and not stall.ended_by_us and _failed(watched)
    return f"; then rank {first.rank} {_how(first)}" if is_last and first and _only_waited(watched, stall) else ""


def _failed(watched: Watched) -> bool:
    return watched.exit_code != 0 and not watched.sent


def _that_ran(watched: Watched) -> list[WatchedRank]:
    return [rank for rank in watched.ranks if rank.finished or rank.ending != "runs"]


def _of_ends(watched: Watched) -> Iterator[Finding]:
    """The rank that ended first, if the command failed or it made fewer steps than others.

    Not if that follows from a stall, which is told by itself.
    """
    ranks = _that_ran(watched)
    first = first_to_end(ranks) if _failed(watched) else _left_early(ranks)
    stood = [stall for stall in watched.stalls if not stall.resumed]
    follows = any(stall.ended_by_us for stall in watched.stalls) or any(_only_waited(watched, stall) for stall in stood)
    if first is None or watched.oom_kills or follows:
        return
    evidence = [Evidence(f"rank {rank.rank}", _end_words(rank, first)) for rank in ranks[:_MOST_NAMED]]
    judge = fail if _failed(watched) else warn
    same = all(rank.ending == "exception" and _short(rank.error) == _short(first.error) for rank in ranks)
    if len(ranks) > 1 and same:
        yield judge(NODE, f"all ranks {_how(first)}, {_when(first)}", _EXPECTED, *evidence)
    elif _failed(watched) and (missing := gave_up_on(watched, first)) is not None:
        yield from _waited_for(watched, first, missing, evidence)
    else:
        yield _first(watched, first, [rank for rank in ranks if rank is not first], evidence)


def _waited_for(
    watched: Watched, first: WatchedRank, missing: Sequence[WatchedRank], evidence: Sequence[Evidence]
) -> Iterator[Finding]:
    """The ranks that did not come, or that it is not known which."""
    gave_up = f"rank {first.rank} waited for %s, {_when(first)}, and gave up: it {_how(first)}"
    for rank in missing[:_MOST_NAMED]:
        still = f"; it still ran when rank {first.rank} ended" if ended_later(rank, first) else ""
        yield fail(
            subject_of(watched, rank),
            Found(f"made {rank.finished} steps; {gave_up % 'it'}", rank.finished, "steps"),
            _EXPECTED,
            *evidence,
            likely=f"it hung or fell far behind{still}",
            advice=(_HANG_AFTER,),
        )
    if not missing:
        likely = "a rank hung or fell far behind; which one is not known"
        yield fail(NODE, gave_up % "others", _EXPECTED, *evidence, likely=likely, advice=(_HANG_AFTER,))


def _first(
    watched: Watched, first: WatchedRank, others: Sequence[WatchedRank], evidence: Sequence[Evidence]
) -> Finding:
    """The rank that ended first, or left before the others."""
    failed, cause = _failed(watched), watched.cause_in_logs
    steps = ranges(sorted({rank.finished for rank in others}))
    made = f"; the others had made {steps} steps" if others else ""
    blamed = cause.rank if cause is not None else None
    likely = None
    if others and failed and blamed not in (None, first.rank):
        likely = f"it was the first to end; but its logs name rank {blamed}, as told below"
    elif others and any(ended_later(first, rank) for rank in others):
        likely = "what the others report is that they lost it, or another rank"
    elif others:
        likely = "it was the first to end; what the others report follows from that"
    return (fail if failed else warn)(
        subject_of(watched, first),
        Found(f"{_how(first)}, {_when(first)}{made}", first.finished, "steps"),
        _EXPECTED,
        *evidence,
        likely=likely,
        advice=(Advice("Read the last lines of this rank's output."),) if failed else (),
    )


def _how(rank: WatchedRank) -> str:
    """How it ended, as the end of a sentence."""
    return {
        "exception": f"raised {_short(rank.error)}",
        "normal": "left by itself, without an error",
        "abrupt": "ended without Python's own end: killed by a signal, or by os._exit",
        "runs": "",
    }[rank.ending]


def _when(rank: WatchedRank) -> str:
    return f"after step {rank.finished}" if rank.finished else "before its first step"


def _left_early(ranks: Sequence[WatchedRank]) -> WatchedRank | None:
    steps = [rank.finished for rank in ranks]
    fewest, most = min(steps, default=0), max(steps, default=0)
    return None if fewest == most or steps.count(fewest) * 2 > len(steps) else ranks[steps.index(fewest)]


def _short(error: str | None) -> str:
    text = (error or "an exception").split(". ")[0].splitlines()[0]
    return text if len(text) <= _MOST_ERROR else text[: _MOST_ERROR - 3] + "..."


def _end_words(rank: WatchedRank, first: WatchedRank) -> str:
    at = "still ran" if rank.ended_s is None else f"ended at {rank.ended_s:.2f} s"
    how = {
        "exception": f": {_short(rank.error)}",
        "normal": " by itself",
        "abrupt": " without Python's own end",
        "runs": "",
    }
    later_s = (rank.ended_s or 0.0) - (first.ended_s or 0.0)
    later = f", {later_s:.1f} s after rank {first.rank}" if rank.ending == "abrupt" and ended_later(rank, first) else ""
    return f"{rank.finished} steps, {at}{how[rank.ending]}{later}"


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
            yield from (f"    loader workers: {text}" for text in rank.workers)
