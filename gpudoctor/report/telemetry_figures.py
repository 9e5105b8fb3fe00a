"""What the GPUs showed while the train ran, one line each, as people know it from nvidia-smi."""

from __future__ import annotations

from gpudoctor.checks.core.under_load import event_share, percent
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Telemetry
from gpudoctor.units import MIB, gib_text

# Reasons that cost speed, shortest words; the rest is how a healthy GPU works
_HELD_BACK = {
    "hw-thermal": "HW thermal",
    "hw-power-brake": "HW brake",
    "sw-thermal": "SW thermal",
    "hw-slowdown": "slowdown",
    "sw-power-cap": "power cap",
}
_LEAST_SHARE = 0.01
TELEMETRY_COLUMNS = ("GPU", "busy", "range", "SM clock", "power", "temp", "memory", "PCIe", "held back by")
_WIDTHS = (3, 5, 6, 8, 6, 4, 8, 5, 0)  # with two spaces before each: 79 columns with the longest reason


def telemetry_lines(measurements: Measurements) -> list[str]:
    """A table for the train, or for the last probe that was sampled; empty where none was.

    At most 80 columns; medians, but for PCIe and memory, of which the highest tells.
    """
    sampled = [telemetry for telemetry in measurements.telemetry if any(gpu.samples for gpu in telemetry.gpus)]
    if not sampled:
        return []
    shown = next((telemetry for telemetry in sampled if telemetry.during == "train"), sampled[-1])
    lines = [f"  GPUs during {shown.during}, {_samples(shown)} in {shown.duration_s:.1f} s (medians):"]
    lines += [_row(TELEMETRY_COLUMNS), *(_row(telemetry_cells(gpu)) for gpu in shown.gpus)]
    if shown.ended is not None:
        lines.append(f"    not sampled to the end: {shown.ended}")
    return lines


def _samples(telemetry: Telemetry) -> str:
    counts = [gpu.samples for gpu in telemetry.gpus]
    return f"{min(counts)} samples" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} samples"


def _row(cells: tuple[str, ...]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    return f"  {'  '.join(padded)}".rstrip()


def telemetry_cells(gpu: GpuUnderLoad) -> tuple[str, ...]:
    """A GPU's row under `TELEMETRY_COLUMNS`: medians, but for PCIe and memory the highest; "-" where not read."""

    def median(name: str, unit: str) -> str:
        spread = gpu.readings.get(name)
        return "-" if spread is None else f"{spread.median:.0f} {unit}"

    busy = gpu.readings.get("utilization_pct")
    memory, generation, width = (
        gpu.readings.get(name) for name in ("memory_used_mib", "pcie_generation", "pcie_width")
    )
    return (
        str(gpu.index),
        "-" if busy is None else f"{busy.median:.0f} %",
        "-" if busy is None else f"{busy.low:.0f}-{busy.high:.0f}",
        median("sm_mhz", "MHz"),
        median("power_w", "W"),
        median("temperature_c", "C"),
        "-" if memory is None else gib_text(memory.high * MIB),
        "-" if generation is None or width is None else f"{generation.high:.0f} x{width.high:.0f}",
        _held_back(gpu),
    )


def _held_back(gpu: GpuUnderLoad) -> str:
    """The reason that held it back the longest, with its share of the time."""
    if not gpu.samples or "event_reasons" in gpu.unread:
        return "-"
    shares = {words: event_share(gpu, reason) for reason, words in _HELD_BACK.items()}
    longest = max(shares, key=lambda words: shares[words])
    return f"{longest} {percent(shares[longest])}" if shares[longest] >= _LEAST_SHARE else "none"
