"""compute.exact, compute.pattern: does each device compute, and keep in its memory, the right bits?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, fail, ok, unknown
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.peer_ranks import by_model
from gpudoctor.checks.measured.probe_outcome import judged_outcome, not_judged, problems_of, without_figures
from gpudoctor.checks.measured.ranks import on_gpus, rank_subject, ranks_in_words
from gpudoctor.facts.model.measured_hardware import ComputeRank
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import majority
from gpudoctor.text.units import short_size

EXACT = "compute.exact"
_ON_GPUS = (
    Advice("Take the GPU out of training at once: a model trained on it cannot be trusted."),
    Advice("Run it again, and look for memory errors.", "gpudoctor check compute gpu.ecc gpu.memory-repair gpu.xid"),
)
_ON_CPUS = (
    Advice("Take the machine out of training until its memory and CPUs were tested (memtest86+)."),
    Advice("Look for machine checks.", "sudo dmesg | grep -i -e mce -e edac"),
)


@check(
    EXACT,
    impact="wrong-results",
    needs_gpu=False,
    explains=(
        "compute.pattern",
        "train.sync",
        "collective.correct",
        "strategy.*",
        Explains(("compute.*", "train.*", "burn.*"), anywhere=True, gaps=True),
    ),
)
def exact(case: Case) -> Iterator[Finding]:
    """Fail ranks whose repeats differ, those that differ from most of their model, and dead or hung ranks."""
    done = case.measurements.compute
    yield from judged_outcome(case, "compute", "bit-exactness", measured=bool(done))
    if not done:
        return
    reported = [each for each in done if each.fingerprints]
    yield from without_figures(case, "compute", (each.rank for each in reported), "bit-exactness")
    unsteady = [each for each in reported if len(set(each.fingerprints)) > 1]
    for each in unsteady:
        yield _unsteady(case, each)
    steady = {each.rank: each for each in reported if each not in unsteady}
    broken = bool(unsteady) or bool(problems_of(case, "compute"))
    for group in _alike(case, list(steady.values())):
        yield from _compared(case, group, broken)


def _alike(case: Case, ranks: Sequence[ComputeRank]) -> list[list[ComputeRank]]:
    """Group by model and number of multiprocessors: libraries choose their algorithms by the latter."""
    groups = []
    for numbers in by_model(case, [each.rank for each in ranks]):
        members = [each for each in ranks if each.rank in numbers]
        for count in dict.fromkeys(known(each.multiprocessors) for each in members):
            groups.append([each for each in members if known(each.multiprocessors) == count])
    return groups


def compute_gaps(case: Case, what: str, done: Sequence[ComputeRank]) -> Iterator[Finding]:
    """Why the compute probe has no figure of this kind, or none for some ranks."""
    yield from not_judged(case, "compute", what, EXACT, measured=bool(done))
    if done:
        yield from without_figures(case, "compute", (each.rank for each in done), what)


def corruption_steps(case: Case) -> tuple[Advice, ...]:
    """Steps for a device that computes or stores wrong values."""
    return _ON_GPUS if on_gpus(case) else _ON_CPUS


def _unsteady(case: Case, each: ComputeRank) -> Finding:
    kinds = len(set(each.fingerprints))
    text = f"the same train step gave {kinds} different results in {len(each.fingerprints)} repeats"
    return fail(
        rank_subject(case, each.rank),
        Found(text, kinds, "results"),
        "one result: the same bits each time",
        *(Evidence(f"repeat {n}", sha[:16]) for n, sha in enumerate(each.fingerprints, 1)),
        likely="the device computes wrong now and then: defective hardware, overclocking, or too little voltage"
        if on_gpus(case)
        else "defective memory or CPU",
        advice=corruption_steps(case),
    )


def _compared(case: Case, group: Sequence[ComputeRank], others_failed: bool) -> Iterator[Finding]:
    # all repeats of a steady rank are equal: compare the first
    results = {each.rank: each.fingerprints[0] for each in group}
    who = ranks_in_words(case, len(group))
    repeats = min(len(each.fingerprints) for each in group)
    if len(group) == 1:
        subject = rank_subject(case, group[0].rank)
        why = "one rank alone" if len(case.measurements.compute) == 1 else "the only one of its model"
        if repeats < 2:
            yield unknown(subject, f"bit-exactness: {why}, and one repeat says nothing")
            return
        text = f"{repeats} repeats, the same bits; {why}: an error that is always the same cannot be told"
        if not others_failed:
            yield ok(subject, Found(text, 1, "results"))
        return
    if len(set(results.values())) == 1:
        if not others_failed:
            yield ok(NODE, Found(f"{who}: the same bits on every rank, {repeats} repeats each", 1, "results"))
        return
    usual = majority(results.values())  # two that differ have none
    evidence = tuple(Evidence(f"rank {rank}", sha[:16]) for rank, sha in results.items())
    if usual is None:
        names = ", ".join(rank_subject(case, rank).label for rank in results)
        count = Counter(results.values())
        yield fail(
            NODE,
            Found(f"{len(count)} different results of the same train step on {names}", len(count), "results"),
            "the same bits on every device of one model",
            *evidence,
            likely="one of them computes wrong, each time alike; which one, two results that differ do not tell",
            advice=corruption_steps(case),
        )
        return
    for rank, sha in results.items():
        if sha != usual:
            yield fail(
                rank_subject(case, rank),
                Found("computes other bits than the others of its model, each time the same", "differs"),
                f"the result of {sum(s == usual for s in results.values())} others",
                *evidence,
                likely="the device computes wrong without an error: silent data corruption"
                if on_gpus(case)
                else "another kind of CPU core, or a defective one",
                advice=corruption_steps(case),
            )


@check("compute.pattern", impact="wrong-results", needs_gpu=False)
def pattern(case: Case) -> Iterator[Finding]:
    """Fail each rank with a byte that was read back changed."""
    done = case.measurements.compute
    yield from compute_gaps(case, "memory pattern", done)
    sound = []
    for each in done:
        subject = rank_subject(case, each.rank)
        covered, wrong = each.pattern_bytes, each.pattern_wrong_bytes
        if isinstance(covered, Missing):
            yield unread(subject, "memory pattern", covered)
        elif isinstance(wrong, Missing):
            yield unread(subject, "memory pattern", wrong)
        elif wrong:
            yield fail(
                subject,
                Found(f"{wrong} bytes of {short_size(covered)} came back changed", wrong, "bytes"),
                "every byte as it was written",
                Evidence("patterns", f"{each.pattern_passes} written to {covered} bytes"),
                likely="defective memory of the GPU" if on_gpus(case) else "defective memory of the host",
                advice=corruption_steps(case),
            )
        elif not covered or not each.pattern_passes:
            yield unknown(subject, "memory pattern: nothing was compared")
        else:
            sound.append(each)
    if sound and len(sound) == len(done) and not problems_of(case, "compute"):
        least = min(known(each.pattern_bytes) or 0 for each in sound)
        passes = min(each.pattern_passes for each in sound)
        text = f"{ranks_in_words(case, len(sound))}: {passes} patterns over {short_size(least)} each, every byte right"
        yield ok(NODE, Found(text, 0, "wrong bytes"))
