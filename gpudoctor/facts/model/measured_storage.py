"""How fast data is read from the paths that training reads."""

from typing import Literal

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.missing import NOT_READ, Missing

ReadPattern = Literal["sequential", "random"]
# how the page cache was kept out: O_DIRECT; posix_fadvise(DONTNEED) before each measurement
ReadMethod = Literal["direct", "dropped"]


class StorageRate(Fact, frozen=True):
    """What so many readers got together, each with one read at a time. `p50_us`, `p99_us`: of one read.

    `lost_reads`: reads that gave nothing, of files that vanished or were cut short meanwhile.
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
    """What was read below one path. `own_file`: a file that was written for it and has no name; else the user's files.

    `cold`: True if nothing of it came from this machine's page cache; Missing (failed) says why that cannot be known,
    Missing (unsupported) that the file system is in RAM. `cached_gb_s` is one reader's rate from the page cache.
    `opens_per_s`: files opened and closed, one after another. `left_out`: what was not measured, and why.
    `failure` is why there is less than there should be; None if all is there.
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
