"""How many inputs a fuzz test tries: a few in the normal suite, its share of 100,000 with GPUDOCTOR_FUZZ=1."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings

LONG = os.environ.get("GPUDOCTOR_FUZZ") == "1"
TOTAL = int(os.environ.get("GPUDOCTOR_FUZZ_INPUTS", "100000"))
# shares of the long run, in thousandths; they add up to 1000
SHARES = {
    "xml": 80,
    "smi-text": 90,
    "topology": 100,
    "p2p": 80,
    "nvlink": 100,
    "lspci": 60,
    "kernel-log": 100,
    "bug-report": 50,
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
}
RAN: Counter[str] = Counter()


def fuzzed(parser: str, few: int = 25) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Settings of the test of one parser: `few` inputs, or its share of the long run.

    Without a data base and a fixed seed in the normal suite, so that a run of it tells the same everywhere.
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
    """Count one input."""
    RAN[parser] += 1
