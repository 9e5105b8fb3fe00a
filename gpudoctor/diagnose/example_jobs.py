"""Logs of real small jobs, to try `gpudoctor diagnose` on: three ranks of `docs/examples/train_ddp.py` under torchrun.

Only paths of the machine that made them were changed. One of them is healthy.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "examples"

EXAMPLE_JOBS = {
    "hang": "rank 1 stops in the middle, and the others time out",
    "exception": "rank 1 raises an exception",
    "sigkill": "rank 1 is killed",
    "early-exit": "rank 1 leaves the loop before the others",
    "mismatch": "rank 1 calls another collective",
    "healthy": "nothing goes wrong",
}


def log_of(example: str) -> Path:
    """The log of an example job."""
    return _FOLDER / f"{example}.log"
