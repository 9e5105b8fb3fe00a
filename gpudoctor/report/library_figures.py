"""What the strategies of DeepSpeed and TensorFlow cost, in the lines that torch's own have."""

from __future__ import annotations

from msgspec.structs import replace

from gpudoctor.facts.measurements import Measurements
from gpudoctor.report.strategy_figures import strategy_lines


def library_lines(measurements: Measurements) -> list[str]:
    """A table for each library that was tried; empty where none was."""
    lines: list[str] = []
    for library in (measurements.deepspeed, measurements.tensorflow):
        if library is not None:
            head, *rows = strategy_lines(replace(measurements, strategies=library.strategies)) or [""]
            lines += [head.replace("strategies:", f"{library.library} {library.version}:", 1), *rows]
    return [line for line in lines if line]
