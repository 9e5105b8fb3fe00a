"""What the probes measured, in lines for people. CPU ranks are called CPU ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.facts.model.measured_burn import Burn, Series, WrongResult
from gpudoctor.facts.model.measurements import Measurements, Training
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.collective_figures import collective_lines
from gpudoctor.report.device_figures import device_lines
from gpudoctor.report.strategy_figures import library_lines, strategy_lines
from gpudoctor.report.telemetry_figures import telemetry_lines

_WRONG_SHOWN = 5


def figure_lines(measurements: Measurements) -> list[str]:
    """The figures of each probe, in the order in which they run; empty where nothing was measured."""
    launch, of_libraries = measurements.launch, library_lines(measurements)
    if launch is None:
        return ["Measured in processes of their own:", *of_libraries] if of_libraries else []
    kind = "CPU rank" if launch.backend == "gloo" else "GPU"
    kind += "s" if launch.world_size != 1 else ""
    seconds = "" if isinstance(launch.total_s, Missing) else f", {launch.total_s:.1f} s"
    lines = [f"Measured on {launch.world_size} {kind} ({launch.backend}, {launch.method}{seconds}):"]
    lines += collective_lines(measurements)
    lines += device_lines(measurements)
    if measurements.training is not None:
        lines += _training_lines(measurements.training)
    lines += strategy_lines(measurements)
    lines += of_libraries
    if measurements.burn is not None:
        lines += _burn_lines(measurements.burn)
    lines += telemetry_lines(measurements)
    return lines


def _training_lines(training: Training) -> list[str]:
    lines = [
        f"  DDP train: {training.world_size} x {training.batch_per_rank} samples a step, "
        f"{training.parameters / 1e6:.2f} M parameters, {training.steps} measured steps"
    ]
    if not isinstance(training.steady_step_ms, Missing) and not isinstance(training.samples_per_s, Missing):
        alone = "" if isinstance(training.solo_step_ms, Missing) else f"; one rank alone {training.solo_step_ms:.2f} ms"
        lines.append(
            f"    benchmark: {training.steady_step_ms:.2f} ms a step, {training.samples_per_s:.0f} samples/s{alone}"
        )
    lines += [
        f"    rank {rank.rank}: compute {rank.compute_ms:.2f} ms, wait {rank.wait_ms:.2f} ms, "
        f"data {rank.data_ms:.2f} ms, step {rank.step_ms:.2f} ms, "
        f"loss {_loss(rank.loss_first)} -> {_loss(rank.loss_last)}"
        for rank in training.ranks
    ]
    return lines


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"


def _burn_lines(burn: Burn) -> list[str]:
    """The rounds, each figure early and late, what was wrong in which round, and what was counted."""
    lines = [f"  Burn: {burn.rounds} complete rounds in {burn.duration_s:.0f} s ({burn.asked_s:.0f} s asked for)"]
    by_metric: dict[str, list[Series]] = {}
    for series in burn.series:
        by_metric.setdefault(series.metric, []).append(series)
    lines += [f"    {_burn_metric(same)}" for same in by_metric.values()]
    lines += [f"    {_burn_wrong(wrong)}" for wrong in burn.wrong[:_WRONG_SHOWN]]
    if burn.wrong_count > _WRONG_SHOWN:
        lines.append(f"    and {burn.wrong_count - _WRONG_SHOWN} more results that were wrong")
    if not isinstance(burn.counters, Missing):
        for gpu in burn.counters:
            grown = ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in gpu.growth.items())
            lines.append(f"    GPU {gpu.index}: {grown or 'no counter read'}")
    if not isinstance(burn.kernel_events, Missing) and burn.kernel_events:
        lines.append(f"    new lines on GPUs in the kernel log: {len(burn.kernel_events)}")
    return lines


def _burn_metric(same: Sequence[Series]) -> str:
    """One line for all ranks: the one that changed most, and how many there are."""
    most = max(same, key=lambda s: abs(s.late.median - s.early.median) / (s.early.median or 1.0))
    who = "" if most.rank is None else f" (rank {most.rank}"
    who += "" if most.rank is None else ", the most changed)" if len(same) > 1 else ")"
    return f"{most.metric}: {most.early.median:.4g} to {most.late.median:.4g} {most.unit}{who}"


def _burn_wrong(wrong: WrongResult) -> str:
    return f"WRONG in round {wrong.round + 1} (until {wrong.at_s:.0f} s): {wrong.text}"
