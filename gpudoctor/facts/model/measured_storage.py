"""Read rates of the paths that training reads from: figures only, no verdicts."""

from __future__ import annotations

from typing import Literal

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.missing import NOT_READ, Missing

ReadPattern = Literal["sequential", "random"]
# how the page cache was bypassed: O_DIRECT; posix_fadvise(DONTNEED) before each measurement
ReadMethod = Literal["direct", "dropped"]


class StorageRate(Fact, frozen=True):
    """The rate of `readers` readers together, each with one read at a time. `p50_us`, `p99_us`: of one read.

    `lost_reads`: reads that returned nothing, from files that vanished or were truncated meanwhile.
    """

    pattern: ReadPattern
    readers: int
    block_bytes: int
    gb_s: float
    reads: int
    seconds: float
    p50_us: float
    p99_us: float
    lost_reads: int = 0


class StorageRead(Fact, frozen=True):
    """Reads below one path. `own_file`: of an unnamed file written for the purpose; otherwise of the user's files.

    `cold`: True if nothing came from this machine's page cache; Missing (failed) if that cannot be known,
    Missing (unsupported) if the file system is in RAM. `cached_gb_s` is one reader's rate from the page cache.
    `opens_per_s`: files opened and closed, one after another. `left_out`: what was not measured, and why.
    `failure` is why something is missing; None if the measurement is complete.
    """

    path: str
    own_file: bool = False
    files: int = 0
    bytes_found: int = 0
    method: ReadMethod | Missing = NOT_READ
    cold: bool | Missing = NOT_READ
    rates: tuple[StorageRate, ...] = ()
    cached_gb_s: float | Missing = NOT_READ
    opens_per_s: float | Missing = NOT_READ
    open_p99_us: float | Missing = NOT_READ
    left_out: tuple[str, ...] = ()
    failure: Missing | None = None
