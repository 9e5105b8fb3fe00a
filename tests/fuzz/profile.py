"""How many inputs a fuzz test tries: a few in the normal suite, its share of 100,000 with GPUDOCTOR_FUZZ=1.

In the long run no input may take more than `SLOWEST_S` of this process's time, or make it grow by `MOST_MIB`.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable
from functools import wraps
from time import process_time
from typing import Any

from hypothesis import HealthCheck, Phase, settings

LONG = os.environ.get("GPUDOCTOR_FUZZ") == "1"
TOTAL = int(os.environ.get("GPUDOCTOR_FUZZ_INPUTS", "100000"))
# shares of the long run, in thousandths; they add up to 1000
SHARES = {
    "xml": 40,
    "smi-text": 50,
    "topology": 35,
    "p2p": 35,
    "nvlink": 45,
    "lspci": 50,
    "paste": 40,
    "kernel-log": 50,
    "kernel-names": 30,
    "bug-report": 30,
    "directory": 20,
    "facts-json": 50,
    "facts-yaml": 20,
    "report": 20,
    "base-report": 20,
    "fleet": 20,
    "watch": 30,
    "bundle": 20,
    "config": 40,
    "visible-devices": 40,
    "cuts": 15,
    "gaps": 15,
    "additions": 20,
    "moves": 25,
    "parts": 40,
    "noise": 30,
    "hub": 15,
    "redaction": 15,
    "diagnose": 20,
    "dump": 40,
    "stacks": 20,
    "plan": 20,
    "slurm-record": 20,
    "http": 20,
}
RAN: Counter[str] = Counter()
SLOWEST_S, MOST_MIB = 2.0, 256
SLOWEST: dict[str, float] = {}
_last: dict[str, tuple[float, int]] = {}


def fuzzed(parser: str, few: int = 25) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Settings of the test of one parser, above @given: `few` inputs, or its share of the long run.

    Without a data base and with a fixed seed in the normal suite, so that its result is the same everywhere.
    """
    chosen = settings(
        max_examples=TOTAL * SHARES[parser] // 1000 if LONG else few,
        deadline=None,
        database=None,
        derandomize=not LONG,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )

    def counted(test: Callable[..., Any]) -> Callable[..., Any]:
        inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

        @wraps(inner)
        def on_one_input(*args: object, **given: object) -> None:
            _count(parser)
            inner(*args, **given)

        test.hypothesis.inner_test = on_one_input  # type: ignore[attr-defined]
        return chosen(test)

    return counted


def _count(parser: str) -> None:
    """Count one input when it starts; in the long run fail if the one before used too much time or memory."""
    RAN[parser] += 1
    now = process_time(), peak_mib()
    began_s, held_mib = _last.get(parser, now)
    _last[parser] = now
    took_s, grew_mib = now[0] - began_s, now[1] - held_mib
    SLOWEST[parser] = max(took_s, SLOWEST.get(parser, 0.0))
    if LONG:
        assert took_s < SLOWEST_S, f"the input before took {took_s:.1f} s"
        assert grew_mib < MOST_MIB, f"the input before made this process {grew_mib} MiB larger"


def peak_mib() -> int:
    """The most that this process has held (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
