"""run.progress: did all ranks go on to the end; if not, which one stopped, and where?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.process.ending import ending_words
from gpudoctor.run.findings.balance import subject_of
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.watched import Stall, StoppedRank, Watched, WatchedRank
from gpudoctor.units import ranges

_EXPECTED = Expected("all ranks go on to the end")
_SAME_END_S = 0.05  # ends that are no further apart are of one moment


@run_check("run.progress", title="All ranks go on to the end")
def progress(watched: Watched) -> Iterator[Finding]:
    """Name the rank that stopped, left or died first."""
    found = [*_of_stalls(watched), *_of_ends(watched)]
    if found:
        yield from found[:1] if watched.stalls and watched.stalls[-1].ended_by_us else found
        return
    if watched.exit_code and not watched.sent:
        status = -watched.signal if watched.signal else watched.exit_code
        yield fail(NODE, f"the command ended with {ending_words(status)}", "exit code 0")
    elif not watched.ranks:
        yield skip(NODE, watched.not_observed or "no rank was seen")
    else:
        steps = {rank.finished for rank in watched.ranks}
        yield ok(NODE, f"{len(watched.ranks)} rank(s) made {ranges(sorted(steps))} steps")


def missing_ranks(ranks: tuple[StoppedRank, ...]) -> tuple[StoppedRank, ...]:
    """Those for which the others wait: gone, or not waiting; if all wait, those that are behind or in another collective."""
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
        waiting = [rank.rank for rank in stall.ranks if rank not in named]
        evidence = [Evidence(f"rank {rank.rank}", stand_words(rank)) for rank in stall.ranks[:16]]
        advice = (Advice("Look at the line of code where the named rank stands."),)
        judge = warn if stall.resumed else fail
        if not named or len(named) == len(stall.ranks) > 1:
            text = f"no rank made progress for {stall.stood_s:.0f} s"
            yield judge(NODE, text + ("; then it went on" if stall.resumed else ""), _EXPECTED, *evidence, advice=advice)
            continue
        for rank in named:
            text = f"stopped after step {rank.finished}: {stand_words(rank)}; nothing moved for {stall.stood_s:.0f} s"
            if waiting:
                text += f", rank {ranges(waiting)} waited"
            if stall.resumed:
                text += "; then it went on"
            subject = _subject(watched, rank.rank)
            likely = "it left while the others went on" if rank.gone else "it does not come to the collective that the others are in"
            yield judge(subject, Found(text, rank.finished, "steps"), _EXPECTED, *evidence, likely=likely, advice=advice)


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
    """The rank that ended first, if it ended otherwise than all did."""
    ranks = [rank for rank in watched.ranks if rank.finished or rank.ending != "runs"]
    ended = [rank for rank in ranks if rank.ended_s is not None]
    failed = watched.exit_code != 0 and not watched.sent
    most = max((rank.finished for rank in ranks), default=0)
    early = [rank for rank in ended if rank.finished < most]
    if not ended or watched.oom_kills or not (failed or early):
        return
    first = min(ended, key=lambda rank: (rank.ended_s or 0.0))
    if not failed:
        if len(early) == len(ranks) or not any(rank.finished > min(r.finished for r in early) for rank in ranks):
            return
        first = min(early, key=lambda rank: rank.finished)
        if most - first.finished <= 1 and len(ranks) == 1:
            return
    others = [rank for rank in ranks if rank is not first]
    came = [rank for rank in others if rank.ending == first.ending and _moment(rank) - _moment(first) < _SAME_END_S]
    step = f"after step {first.finished}" if first.finished else "before its first step"
    how = {
        "exception": f"raised {first.error or 'an exception'}",
        "normal": "left by itself, without an error",
        "abrupt": "ended without Python's own end: killed by a signal, or by os._exit",
        "runs": "",
    }[first.ending]
    text = f"{how}, {step}"
    if others:
        text += f"; the others had made {ranges(sorted({rank.finished for rank in others}))} steps"
    evidence = [Evidence(f"rank {rank.rank}", _end_words(rank)) for rank in ranks[:16]]
    judge = fail if failed else warn
    if came and first.ending == "exception" and len(came) == len(others):
        yield judge(NODE, f"all ranks {text}", _EXPECTED, *evidence)
        return
    yield judge(
        subject_of(watched, first),
        Found(text, first.finished, "steps"),
        _EXPECTED,
        *evidence,
        likely="it was the first to end; what the others report follows from that" if others else None,
        advice=(Advice("Look at its own output first: the diagnosis below names the line, if there is one."),) if failed else (),
    )


def _moment(rank: WatchedRank) -> float:
    return rank.ended_s if rank.ended_s is not None else float("inf")


def _end_words(rank: WatchedRank) -> str:
    at = "still ran" if rank.ended_s is None else f"ended at {rank.ended_s:.2f} s"
    how = {"exception": f": {rank.error}", "normal": " by itself", "abrupt": " without Python's own end", "runs": ""}
    return f"{rank.finished} steps, {at}{how[rank.ending]}"


def _subject(watched: Watched, rank: int):  # type: ignore[no-untyped-def]
    found = next((each for each in watched.ranks if each.rank == rank), WatchedRank(rank=rank, pid=0))
    return subject_of(watched, found)


def of_stall(stall: Stall) -> Iterator[str]:
    """The description of a stall for people, while it lasts."""
    named = {rank.rank for rank in missing_ranks(stall.ranks)}
    for rank in stall.ranks:
        mark = "  <- missing" if rank.rank in named and len(named) < len(stall.ranks) else ""
        yield f"rank {rank.rank}, {rank.finished} steps: {stand_words(rank)}{mark}"
