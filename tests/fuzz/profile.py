"""How many inputs a fuzz test tries: a few in the normal suite, its share of 100,000 with GPUDOCTOR_FUZZ=1.

In the long run no input may take longer than `SLOWEST_S` or make the process grow beyond `MOST_MIB`.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

from hypothesis import HealthCheck, Phase, settings

LONG = os.environ.get("GPUDOCTOR_FUZZ") == "1"
TOTAL = int(os.environ.get("GPUDOCTOR_FUZZ_INPUTS", "100000"))
# shares of the long run, in thousandths; they add up to 1000
SHARES = {
    "xml": 70,
    "smi-text": 80,
    "topology": 80,
    "p2p": 80,
    "nvlink": 80,
    "lspci": 60,
    "paste": 60,
    "kernel-log": 60,
    "kernel-names": 40,
    "bug-report": 50,
    "directory": 20,
    "facts-json": 60,
    "facts-yaml": 30,
    "report": 30,
    "base-report": 30,
    "watch": 40,
    "bundle": 30,
    "config": 50,
    "visible-devices": 50,
    "cuts": 10,
    "gaps": 10,
    "hub": 20,
    "redaction": 20,
}
RAN: Counter[str] = Counter()
# the largest seed takes 0.1 s and 150 MiB; a hundred times that would exhaust the machine
SLOWEST_S, MOST_MIB = 20.0, 1024
SLOWEST: dict[str, float] = {}
_last: dict[str, float] = {}


def fuzzed(parser: str, few: int = 25) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Settings of the test of one parser: `few` inputs, or its share of the long run.

    Without a data base and a fixed seed in the normal suite, so that its result is the same everywhere.
    """
    chosen = settings(
        max_examples=TOTAL * SHARES[parser] // 1000 if LONG else few,
        deadline=None,
        database=None,
        derandomize=not LONG,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: chosen(test)


def ran(parser: str) -> None:
    """Count one input when it starts; in the long run fail if the one before used too much time or memory."""
    RAN[parser] += 1
    now = monotonic()
    took_s = now - _last.get(parser, now)
    _last[parser] = now
    SLOWEST[parser] = max(took_s, SLOWEST.get(parser, 0.0))
    if LONG:
        assert took_s < SLOWEST_S, f"the input before took {took_s:.0f} s"
        assert peak_mib() < MOST_MIB, f"this process has grown to {peak_mib()} MiB"


def peak_mib() -> int:
    """The most that this process has held (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
