"""Deadlines for the driver and what depends on it: one table, each number with its source.

A deadline is when we give up waiting. Answers that are merely slow are judged by the checks, and never fail.
"""

from __future__ import annotations

from typing import NamedTuple

# These calls wake a sleeping GPU, one GPU after another, holding one lock of the driver
START_CALLS = frozenset(
    {
        "nvmlInit",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetHandleByUUID",
    }
)


class Deadline(NamedTuple):
    """Seconds, and the reason for that number."""

    seconds: float
    source: str


class Patience(NamedTuple):
    """When a reader of the driver gives up, in seconds: on the whole, on one call, on a call that wakes a GPU."""

    whole_s: float
    call_s: float
    start_s: float


CALL = Deadline(
    10.0,
    "a driver call: ranks that run, start or are killed hold the driver's lock for seconds on a healthy node, and "
    "nvidia-smi takes 2 to 10 s there",
)
START = Deadline(
    50.0,
    "nvmlInit and the handle of a GPU: without persistence mode 1 to 3 s a GPU and more, 16 GPUs one after another; "
    "also for every call that waits behind one of these",
)
COLLECTION = Deadline(60.0, "all facts of a node: a start that takes its whole limit and then a call that does")
PATIENCE = Deadline(
    2.0, "one reading of gpudoctor watch: then it says what it waits for, and goes on waiting for as long as CALL says"
)
TORCH_IMPORT = Deadline(
    180.0,
    "8 ranks that import a CUDA build of torch (some 3 GB of libraries) from a cold network disk at 50 MB/s, read once "
    "for all of them, twice over; 1.2 to 2 s where the files are in memory",
)
CUDA_CONTEXT = Deadline(
    60.0, "the first CUDA call of 8 ranks: it wakes the GPUs as START does, then below a second for each context"
)
NCCL_INIT = Deadline(
    120.0,
    "the first collective of 8 ranks: 2 to 10 s on a warm node, with a search of the topology, NVLS and connections "
    "between all NICs; GPUs without persistence mode are started in it",
)
PATH = Deadline(
    5.0,
    "stat and statvfs of a user's path: 1 ms on a disk, some 100 ms on object storage, 1 to 2 s where autofs mounts it "
    "first; a dead NFS mount blocks for ever",
)
