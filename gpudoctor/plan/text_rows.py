"""Rows of a plan's text, each a label with wrapped text beside it; and the rows of its verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from gpudoctor.plan.model import Plan, PlanVerification
from gpudoctor.plan.model_shape import count_text
from gpudoctor.text.output import printable
from gpudoctor.text.units import counted, seconds_text

_LABEL = 14
# the accepted relative difference between predicted and measured memory of CPU ranks
_TOLERANCE = 0.10


def row_of(label: str, text: str, width: int) -> Iterator[str]:
    """A label with text beside it, in lines of `width` columns."""
    yield from hanging(f"{label:<{_LABEL}}", text, width)


def rows_of(label: str, rows: Iterable[str], width: int) -> Iterator[str]:
    """Several rows, of which only the first shows the label."""
    for number, text in enumerate(rows):
        yield from row_of(label if number == 0 else "", text, width)


def hanging(lead: str, text: str, width: int) -> Iterator[str]:
    """Text after `lead`, with further lines indented below it; the text is at least 20 columns wide."""
    room = max(width - len(lead), 20)
    lines = wrap(printable(text), room, break_long_words=False, break_on_hyphens=False) or [""]
    yield lead + lines[0]
    yield from (" " * len(lead) + line for line in lines[1:])


def wrapped(text: str, width: int) -> Iterable[str]:
    """The text in lines of `width` columns."""
    return wrap(printable(text), width, break_long_words=False, break_on_hyphens=False)


# The result of `--try` as text.


def verification_lines(plan: Plan, width: int) -> Iterator[str]:
    """The rows of the verification, if the plan has one."""
    for label, text in _rows(plan.verification) if plan.verification else ():
        yield from row_of(label, text, width)


def _rows(tried: PlanVerification) -> Iterator[tuple[str, str]]:
    model = tried.model
    device = "GPU" if tried.device == "cuda" else "CPU rank"
    many = counted(tried.ranks, device)
    recompute = "" if tried.recompute == "none" else f", {tried.recompute} recomputation"
    yield (
        "tried",
        f"{tried.strategy} on {many}, {tried.precision}, {tried.optimizer}{recompute}: {model.name}'s proportions with "
        f"{count_text(model.parameters)} parameters ({model.layers} layers, hidden {model.hidden}, heads "
        f"{model.heads}/{model.kv_heads}, ffn {model.ffn}, vocabulary {model.vocab}); "
        f"{tried.micro_batch} x {tried.seq} tokens x {tried.micro_batches} a step",
    )
    for note in tried.notes:
        yield "", note
    if tried.error is not None:
        yield ("it broke" if tried.error_kind != "timeout" else "no answer"), tried.error
        return
    assert tried.off is not None
    assert tried.step_measured_s is not None
    assert tried.step_predicted_s is not None
    verdict = f"within {_TOLERANCE:.0%}" if abs(tried.off) <= _TOLERANCE else f"more than {_TOLERANCE:.0%}"
    yield (
        "its memory",
        f"{tried.memory_predicted_mib:.1f} MiB of tensors predicted on the fullest rank, "
        f"{tried.memory_measured_mib:.1f} MiB measured: {tried.off:+.1%}, {verdict}",
    )
    parts = [f"{part.part} {part.predicted_mib:.1f} / {part.measured_mib:.1f}" for part in tried.parts]
    if parts:
        yield "", f"predicted / measured: {', '.join(parts)} MiB"
    yield (
        "its step",
        f"{seconds_text(tried.step_predicted_s)} predicted if nothing hides, {seconds_text(tried.step_measured_s)} "
        f"measured{'; times of CPU ranks do not apply to GPUs' if tried.device == 'cpu' else ''}",
    )
    yield "", _rates(tried)
    first, last = (
        "no finite number" if loss is None else f"{loss:.4g}" for loss in (tried.losses[0], tried.losses[-1])
    )
    yield "its loss", f"{first} at first, {last} after {len(tried.losses)} steps"


def _rates(tried: PlanVerification) -> str:
    assert tried.compute_s is not None
    text = f"predicted from {seconds_text(tried.compute_s)} of products at {tried.gflops:.4g} GFLOP/s"
    if tried.allreduce_gb_s is not None and tried.communication_s is not None:
        text += f" and {seconds_text(tried.communication_s)} of exchange at {tried.allreduce_gb_s:.3g} GB/s"
    return f"{text}, as these ranks reached just before"
