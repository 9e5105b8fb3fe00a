"""run.balance: which rank computes more slowly than the others, and why?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, warn
from gpudoctor.checks.core.subject import NODE, Subject, of_rank
from gpudoctor.checks.measured.slowness import slowness_causes
from gpudoctor.facts.model.missing import known
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.findings.slow_ranks import LEAST_STEPS, LIMITS, WARN_RATIO, SlowRank, compared, shown_step
from gpudoctor.run.observer.layout import WAIT
from gpudoctor.run.record_reader import SampledLine
from gpudoctor.run.step_series import mean_step
from gpudoctor.run.watched import Watched, WatchedRank

_OWN = ("compute", "cpu", "blocked")


def subject_of(watched: Watched, rank: WatchedRank) -> Subject:
    """The rank, with its GPU if it has one."""
    gpu = next((each for each in watched.case.node.gpus if each.index == rank.gpu), None)
    return of_rank(rank.rank, rank.gpu, known(gpu.uuid) if gpu else None)


def expected_ratio() -> Expected:
    return Expected(f"below {WARN_RATIO.value:g} x", "<", WARN_RATIO.value, "ratio", "the other ranks")


def evidence_of(watched: Watched, slow: SlowRank) -> tuple[Evidence, ...]:
    """Its step, what the others wait, and the lines in which it was found most often."""
    waits = [_wait_ms(rank) for rank in watched.ranks if rank.rank != slow.rank.rank and rank.steps]
    low, high = (f"{ms:.1f}" for ms in (min(waits), max(waits)))
    they = low if low == high else f"{low} to {high}"
    found = [Evidence("waits", f"{_wait_ms(slow.rank):.1f} ms a step for the others, they {they} ms")]
    if slow.cause != "cpu" and (places := _places(slow)):
        samples = sum(place.count for place in places)
        where = f"{places[0].text} ({places[0].count} of {samples} looks at its {places[0].phase})"
        found.append(Evidence("code", where))
    return tuple(found)


def makes_others_wait(
    watched: Watched,
    slow: SlowRank,
    text: str,
    shown: Sequence[Evidence],
    likely: str,
    *advice: Advice,
    ratio: float | None = None,
) -> Finding:
    """The finding on a rank for which the others wait; `ratio` is that of its work to theirs."""
    found = Found(f"makes the others wait: {text}", round(slow.ratio if ratio is None else ratio, 3), "ratio")
    return warn(subject_of(watched, slow.rank), found, expected_ratio(), *shown, likely=likely, advice=advice)


def look_at_line(slow: SlowRank, advice: str) -> str:
    """The advice, and to look at the line of code in the evidence if there is one."""
    return f"{advice}: look at the line of code in the evidence." if _places(slow) else f"{advice}."


def _wait_ms(rank: WatchedRank) -> float:
    return shown_step(rank).undisturbed_ms(WAIT)


def _places(slow: SlowRank) -> list[SampledLine]:
    """The lines in which it was found in the part that takes longer, most often first."""
    phase = "host" if slow.cause == "host" else slow.phase
    return [place for place in slow.rank.places if place.phase == phase]


@run_check("run.balance", title="No rank computes more slowly than the others", limits=LIMITS)
def balance(watched: Watched) -> Iterator[Finding]:
    """Name ranks whose own work takes longer than that of the others."""
    ranks = [rank for rank in watched.ranks if rank.steps]
    if len(ranks) < 2:
        yield skip(NODE, "fewer than two ranks with steps: nothing to compare with")
        return
    found = compared(watched)
    if not found.turns:
        yield skip(NODE, f"fewer than {LEAST_STEPS} steps after warm-up that all ranks have: too few to compare")
        return
    for each in found.slow:
        if each.cause in _OWN:
            yield _slow(watched, each)
    if found.slow:
        return
    if found.unsure and any(not stall.resumed for stall in watched.stalls):  # more than that is to be found out first
        yield skip(NODE, "too uneven to judge before the run stood still")
        return
    for deviation in found.unsure:
        rank = next(rank for rank in ranks if rank.rank == deviation.rank)
        part = f"its own part of a step takes {deviation.ratio:.2f} x the others'"
        yield unknown(subject_of(watched, rank), f"too uneven to judge: {part}, but {deviation.why}")
    if not found.unsure:
        most = max(1.0, found.largest_ratio)
        text = f"{len(ranks)} ranks, compared over the same steps: none takes longer than {most:.2f} x the others"
        yield ok(NODE, Found(text, round(found.largest_ratio, 3), "ratio"), expected_ratio())


def _slow(watched: Watched, slow: SlowRank) -> Finding:
    rank, mean = slow.rank, mean_step(slow.rank.steps)
    part = "own part of a step" if slow.cause == "cpu" else "compute"
    text = f"its {part} takes {slow.own_ms:.1f} ms {slow.often}, theirs {slow.usual_ms:.1f} ms"
    if slow.cause == "cpu":
        text += f"; {mean.own_queued_ms:.1f} ms a step it waits for a CPU core"
        where = f"CPU {', '.join(map(str, rank.cpus[:8]))}" if len(rank.cpus) < 8 else "its CPUs"
        likely = f"slow for want of a CPU: {rank.cpu_neighbour or 'another process'} runs on {where}"
        advice: tuple[Advice, ...] = (Advice("Give every rank its own cores.", "gpudoctor check host topology -v"),)
    elif slow.cause == "blocked":
        likely = f"slow compute: its {_part(slow.phase)} stands still (sleep, I/O or a lock) while it uses no more CPU"
        advice = (Advice(look_at_line(slow, "It waits for something there")),)
    else:
        reasons = slowness_causes(watched.case, rank.rank, [r.rank for r in watched.ranks], "train")
        slower = "cores are" if rank.gpu is None else "GPU is"
        likely = "; ".join(reasons) or f"slow compute: its {_part(slow.phase)} does more work, or its {slower} slower"
        of_gpu = Advice("Look at clocks, temperature, power and link of its GPU.", "gpudoctor check gpu pcie -v")
        more = Advice(look_at_line(slow, f"If its {slower} as fast as the others', this rank has more to compute"))
        advice = (more,) if rank.gpu is None else (of_gpu, more)
    cpu = () if rank.gpu is not None else (Evidence("CPU time", f"{mean.compute_cpu_ms:.1f} ms of compute a step"),)
    return makes_others_wait(watched, slow, text, (*evidence_of(watched, slow), *cpu), likely, *advice)


def _part(phase: str) -> str:
    return "code between forward, backward and optimizer" if phase == "between" else phase
