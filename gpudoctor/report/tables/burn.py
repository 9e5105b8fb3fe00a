"""What a burn found, in words."""

from __future__ import annotations

from gpudoctor.facts.model.measured_burn import GpuCounters, WrongResult


def wrong_text(wrong: WrongResult) -> str:
    """A result that was not the right one, with its round."""
    return f"WRONG in round {wrong.round + 1} (until {wrong.at_s:.0f} s): {wrong.text}"


def growth_text(gpu: GpuCounters) -> str:
    """How much each counter of a GPU grew that was read; empty if none was."""
    return ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in gpu.growth.items())
