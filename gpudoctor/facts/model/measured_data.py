"""What a real torch DataLoader gave on every rank, by its number of workers: figures only, no verdicts."""

from typing import Literal

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.missing import NOT_READ, Missing


class LoaderRates(Fact, frozen=True):
    """What the loaders of all ranks gave at the same time; GB = 1e9 bytes.

    `slowest_rank_gb_s`: of the rank that got least, which the others wait for. `first_batch_s`: from the making of the
    loader to its first batch, of the slowest rank. `shm_bytes`: the most by which the use of /dev/shm grew meanwhile.
    """

    samples_per_s: float
    gb_s: float
    slowest_rank_gb_s: float
    first_batch_s: float
    shm_bytes: int | Missing = NOT_READ


class LoaderStep(Fact, frozen=True):
    """The loaders with `workers` worker processes on each rank (num_workers); without `rates` `not_run` says why.

    `shm_needed_bytes`: what the batches on their way hold of /dev/shm: workers x prefetch_factor x batch x ranks.
    """

    workers: int
    rates: LoaderRates | None = None
    not_run: Missing | None = None
    shm_needed_bytes: int = 0


class LoaderCopies(Fact, frozen=True):
    """GB/s of all ranks together from the loader to the GPU, with `workers` workers: pin_memory off and on."""

    workers: int
    pageable_gb_s: float
    pinned_gb_s: float


class DataLoading(Fact, frozen=True):
    """All that was tried. `paths`: as named by the user; none: files made for it, which the page cache holds.

    `files` were chosen of `paths`, `batch` is in samples, `sample_bytes` the mean size of one: a file, or a piece of
    a large one. `cpus`: how many CPUs the workers of each rank could run on, in rank order, of `cpus_total` that the
    machine has; `cpuset_cpus`: how many the cgroup lets its processes have. `shm_bytes` and `shm_free_bytes`: /dev/shm
    before the first step. Of `samples` that were asked for, `unreadable` could not be read; `unreadable_why`: one of
    the reasons, without a name. `empty_files`: files of 0 bytes, which were left out. `no_copies` says why there are
    no `copies`. `perhaps_in_ram`: why what was read may have come from RAM, Missing (unsupported) if it did; None if
    nothing tells so. `socket_name_bytes`: how long the name of the socket is that a training's workers make in TMPDIR.
    """

    device: Literal["cuda", "cpu"]
    world_size: int
    files: int
    batch: int
    sample_bytes: float
    steps: tuple[LoaderStep, ...]
    paths: tuple[str, ...] = ()
    copies: LoaderCopies | None = None
    no_copies: Missing | None = None
    cpus: tuple[int, ...] = ()
    cpus_total: int | Missing = NOT_READ
    cpuset_cpus: int | Missing = NOT_READ
    shm_bytes: int | Missing = NOT_READ
    shm_free_bytes: int | Missing = NOT_READ
    samples: int = 0
    unreadable: int = 0
    unreadable_why: str | None = None
    empty_files: int = 0
    perhaps_in_ram: Missing | None = None
    socket_name_bytes: int | Missing = NOT_READ
