"""What `--try` found, as text."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.plan.model import Plan, PlanVerification
from gpudoctor.plan.model_shape import count_text
from gpudoctor.plan.text_rows import row_of
from gpudoctor.plan.verification.reduced_size import TOLERANCE
from gpudoctor.units import seconds_text


def verification_lines(plan: Plan, width: int) -> Iterator[str]:
    """The rows of the trial; none where there was none."""
    trial = plan.trial
    if trial is None:
        return
    for label, words in _rows(trial):
        yield from row_of(label, words, width)


def _rows(trial: PlanVerification) -> Iterator[tuple[str, str]]:
    model = trial.model
    device = "GPU" if trial.device == "cuda" else "CPU rank"
    many = f"{trial.ranks} {device}{'s' if trial.ranks > 1 else ''}"
    recompute = "" if trial.recompute == "none" else f", {trial.recompute} recomputation"
    yield (
        "tried",
        f"{trial.strategy} on {many}, {trial.precision}, {trial.optimizer}{recompute}: {model.name}'s proportions with "
        f"{count_text(model.parameters)} parameters ({model.layers} layers, hidden {model.hidden}, heads "
        f"{model.heads}/{model.kv_heads}, ffn {model.ffn}, vocabulary {model.vocab}); "
        f"{trial.micro_batch} x {trial.seq} tokens x {trial.micro_batches} a step",
    )
    for note in trial.notes:
        yield "", note
    if trial.error is not None:
        yield ("it broke" if trial.error_kind != "timeout" else "no answer"), trial.error
        return
    assert trial.off is not None
    assert trial.step_measured_s is not None
    assert trial.step_predicted_s is not None
    verdict = f"within {TOLERANCE:.0%}" if abs(trial.off) <= TOLERANCE else f"more than the {TOLERANCE:.0%} hoped for"
    yield (
        "its memory",
        f"{trial.memory_predicted_mib:.1f} MiB of tensors predicted on the fullest rank, "
        f"{trial.memory_measured_mib:.1f} MiB measured: {trial.off:+.1%}, {verdict}",
    )
    parts = [f"{part.part} {part.predicted_mib:.1f} / {part.measured_mib:.1f}" for part in trial.parts]
    if parts:
        yield "", f"predicted / measured: {', '.join(parts)} MiB"
    yield (
        "its step",
        f"{seconds_text(trial.step_predicted_s)} predicted if nothing hides, {seconds_text(trial.step_measured_s)} "
        f"measured{'; times of CPU ranks say nothing of GPUs' if trial.device == 'cpu' else ''}",
    )
    yield "", _rates(trial)
    first, last = (
        "no finite number" if loss is None else f"{loss:.4g}" for loss in (trial.losses[0], trial.losses[-1])
    )
    yield "its loss", f"{first} at first, {last} after {len(trial.losses)} steps"


def _rates(trial: PlanVerification) -> str:
    assert trial.compute_s is not None
    words = f"predicted from {seconds_text(trial.compute_s)} of products at {trial.gflops:.4g} GFLOP/s"
    if trial.allreduce_gb_s is not None and trial.communication_s is not None:
        words += f" and {seconds_text(trial.communication_s)} of exchange at {trial.allreduce_gb_s:.3g} GB/s"
    return f"{words}, as these ranks reached just before"
