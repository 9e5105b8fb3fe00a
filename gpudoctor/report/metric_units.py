"""Prometheus base units: the metric suffix and the conversion for each unit that checks use."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpudoctor.units import GIB, KIB, MIB


class MetricUnit(NamedTuple):
    """The suffix of a metric's name, and the factors that convert a number to the metric's unit."""

    suffix: str
    times: float = 1
    divided_by: float = 1

    def convert(self, value: float) -> float:
        return value * self.times / self.divided_by


# https://prometheus.io/docs/practices/naming/#base-units
_BASE = {
    "C": MetricUnit("celsius"),
    "W": MetricUnit("watts"),
    "s": MetricUnit("seconds"),
    "ms": MetricUnit("seconds", divided_by=1e3),
    "us": MetricUnit("seconds", divided_by=1e6),
    "minutes": MetricUnit("seconds", 60),
    "hours": MetricUnit("seconds", 3600),
    "days": MetricUnit("seconds", 86400),
    "B": MetricUnit("bytes"),
    "KiB": MetricUnit("bytes", KIB),
    "MiB": MetricUnit("bytes", MIB),
    "GiB": MetricUnit("bytes", GIB),
    "MB/s": MetricUnit("bytes_per_second", 1e6),
    "GB/s": MetricUnit("bytes_per_second", 1e9),
    "Gbit/s": MetricUnit("bytes_per_second", 1e9, 8),
    "GT/s": MetricUnit("transfers_per_second", 1e9),
    "TFLOP/s": MetricUnit("flop_per_second", 1e12),
    "MHz": MetricUnit("hertz", 1e6),
    "per minute": MetricUnit("per_second", divided_by=60),
    "%": MetricUnit("ratio", divided_by=100),
    "share": MetricUnit("ratio"),
    None: MetricUnit("number"),  # a code such as an Xid's, a loss
}
# suffixes that Prometheus reserves for other types of metric than gauges
_RESERVED = ("total", "count", "sum", "bucket", "info", "created")


def metric_unit(unit: str | None) -> MetricUnit:
    """The base unit of a check's unit; counted things (lanes, open files) are units themselves."""
    if unit in _BASE:
        return _BASE[unit]
    words = re.sub(r"[^a-z0-9]+", "_", (unit or "").lower()).strip("_")
    if not words:
        return _BASE[None]
    return MetricUnit(f"{words}_unit" if words.rpartition("_")[2] in _RESERVED else words)
