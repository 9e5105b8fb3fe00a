"""Reports of made-up nodes for the fleet tests, derived from the product's own in docs/examples/."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
Report = dict[str, Any]


@functools.cache
def _example(name: str) -> str:
    return gzip.decompress((EXAMPLES / "fleet" / f"{name}.json.gz").read_bytes()).decode()


def report(name: str, *, like: str = "gpu-01", at: str = "2025-11-03T21:00:00+00:00", figures: bool = False) -> Report:
    """A report of a node that is not simulated; its GPU UUIDs and run id derive from its name and the time.

    `like` is the example that it is made of: gpu-01 is healthy, gpu-11 fails, gpu-12 fails and has unknowns.
    """
    text = _example(like).replace(f"{int(like[-2:]):04x}-4000-8000", f"{_number(name):04x}-4000-8000")
    made: Report = json.loads(text)
    made["simulated"] = False
    made["run"] |= {"id": f"{name} {at}", "started_at": at, "source": {"kind": "live", "name": "", "faults": []}}
    made["host"]["name"] = name
    if not figures:
        made["measurements"] = {}
    return made


def _number(name: str) -> int:
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(name)) % 65536


def write(path: Path, made: Report) -> Path:
    """As the product writes it: one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
    return path


def fleet(
    folder: Path, count: int, change: Callable[[int, Report], None] | None = None, *, figures: bool = True
) -> Path:
    """This many healthy nodes, from node1, whose figures differ a little; `change` gets each before it is written."""
    for number in range(1, count + 1):
        made = report(f"node{number}", figures=figures)
        if figures:
            scale(made, "collectives", "busbw_gb_s", 1 + (number % 7 - 3) / 1000)
        if change is not None:
            change(number, made)
        write(folder / f"node{number}.json", made)
    return folder


def scale(made: Report, rows: str, key: str, factor: float) -> None:
    """All values of one sort, times a factor."""
    for row in made["measurements"][rows]:
        row[key] *= factor
