"""What the probes measured, in lines for people. CPU ranks are called CPU ranks."""

from __future__ import annotations

from gpudoctor.facts.measurements import Measurements, Training
from gpudoctor.facts.missing import Missing


def figure_lines(measurements: Measurements) -> list[str]:
    """One line per collective size and a few for the train; empty where nothing was measured."""
    launch = measurements.launch
    if launch is None:
        return []
    kind = "CPU ranks" if launch.backend == "gloo" else "GPUs"
    seconds = "" if isinstance(launch.total_s, Missing) else f", {launch.total_s:.1f} s"
    lines = [f"Measured on {launch.world_size} {kind} ({launch.backend}, {launch.method}{seconds}):"]
    for row in measurements.collectives:
        lines.append(
            f"  {row.op} {_size(row.size_bytes)} {row.dtype}: {row.time_us / 1000:.3f} ms, "
            f"algbw {row.algbw_gb_s:.2f} GB/s, busbw {row.busbw_gb_s:.2f} GB/s (median of {row.iterations})"
        )
    if measurements.training is not None:
        lines += _training_lines(measurements.training)
    return lines


def _training_lines(training: Training) -> list[str]:
    rate = "" if isinstance(training.samples_per_s, Missing) else f", {training.samples_per_s:.0f} samples/s"
    lines = [
        f"  DDP train: {training.steps} steps of {training.world_size} x {training.batch_per_rank} samples, "
        f"{training.parameters / 1e6:.2f} M parameters{rate}"
    ]
    lines += [
        f"    rank {rank.rank}: compute {rank.compute_ms:.2f} ms, wait {rank.wait_ms:.2f} ms, "
        f"data {rank.data_ms:.2f} ms, step {rank.step_ms:.2f} ms, "
        f"loss {_loss(rank.loss_first)} -> {_loss(rank.loss_last)}"
        for rank in training.ranks
    ]
    return lines


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"


def _size(size_bytes: int) -> str:
    """
    >>> _size(1 << 20), _size(1004), _size(1 << 30)
    ('1 MiB', '1004 B', '1 GiB')
    """
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes / (1 << 20):.2f} MiB" if size_bytes >= 1 << 20 else f"{size_bytes} B"
