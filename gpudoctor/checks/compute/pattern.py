"""compute.pattern: does memory keep what is written to it?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.compute.exact import corruption_steps
from gpudoctor.checks.compute.rates import compute_gaps
from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Evidence, Finding, Found, fail, ok, unknown, unread
from gpudoctor.checks.core.probe_outcome import on_gpus, problems_of, rank_subject, ranks_in_words
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.units import short_size


@check(
    "compute.pattern", title="Memory keeps what is written to it", impact="wrong-results", level="full", needs_gpu=False
)
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
