"""Telemetry of the GPUs while a probe ran, in the terms of nvidia-smi, and the results of a burn."""

from __future__ import annotations

from gpudoctor.checks.core.under_load import event_share, percent
from gpudoctor.facts.model.telemetry import GpuCounters, GpuUnderLoad, Telemetry, WrongResult
from gpudoctor.report.tables.table import NOT_KNOWN, Column, Table
from gpudoctor.units import MIB, gib_text

# clock event reasons that cost speed, in short words; the others are normal on a healthy GPU
_HELD_BACK = {
    "hw-thermal": "HW thermal",
    "hw-power-brake": "HW brake",
    "sw-thermal": "SW thermal",
    "hw-slowdown": "slowdown",
    "sw-power-cap": "power cap",
}
_LEAST_SHARE = 0.01
_TITLES = ("GPU", "busy", "range", "SM clock", "power", "temp", "memory", "PCIe", "held back by")
_WIDTHS = (3, 5, 6, 8, 6, 4, 8, 5, 0)  # with two spaces before each, 79 columns including the longest reason


def telemetry_table(telemetry: Telemetry) -> Table:
    """A row per GPU: medians, except for PCIe and memory, where the highest value is the most useful."""
    columns = (Column(title, width, left=title == _TITLES[-1]) for title, width in zip(_TITLES, _WIDTHS, strict=True))
    return Table(tuple(columns), tuple(_cells(gpu) for gpu in telemetry.gpus))


def sample_count(telemetry: Telemetry) -> str:
    """How often the GPUs were sampled: "20", or "19 to 20" if that differs."""
    counts = [gpu.samples for gpu in telemetry.gpus] or [0]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _cells(gpu: GpuUnderLoad) -> tuple[str, ...]:
    def median(name: str, unit: str) -> str:
        spread = gpu.readings.get(name)
        return NOT_KNOWN if spread is None else f"{spread.median:.0f} {unit}"

    busy = gpu.readings.get("utilization_pct")
    memory, generation, width = (
        gpu.readings.get(name) for name in ("memory_used_mib", "pcie_generation", "pcie_width")
    )
    return (
        str(gpu.index),
        median("utilization_pct", "%"),
        NOT_KNOWN if busy is None else f"{busy.low:.0f}-{busy.high:.0f}",
        median("sm_mhz", "MHz"),
        median("power_w", "W"),
        median("temperature_c", "C"),
        NOT_KNOWN if memory is None else gib_text(memory.high * MIB),
        NOT_KNOWN if generation is None or width is None else f"{generation.high:.0f} x{width.high:.0f}",
        _held_back(gpu),
    )


def _held_back(gpu: GpuUnderLoad) -> str:
    """The reason that slowed the GPU longest, with its share of the time."""
    if not gpu.samples or "event_reasons" in gpu.unread:
        return NOT_KNOWN
    shares = {words: event_share(gpu, reason) for reason, words in _HELD_BACK.items()}
    longest = max(shares, key=lambda words: shares[words])
    return f"{longest} {percent(shares[longest])}" if shares[longest] >= _LEAST_SHARE else "none"


def wrong_text(wrong: WrongResult) -> str:
    """A wrong result of a burn, with its round."""
    return f"WRONG in round {wrong.round + 1} (until {wrong.at_s:.0f} s): {wrong.text}"


def growth_text(gpu: GpuCounters) -> str:
    """By how much each counter of a GPU grew during a burn; empty if none was read."""
    return ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in gpu.growth.items())
