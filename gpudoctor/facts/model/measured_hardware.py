"""What devices, links and storage measured: compute, memory, copies, reads of files, data loading. No verdicts."""

from typing import Literal

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing

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


class LoaderRates(Fact, frozen=True):
    """Rates of the loaders of all ranks running at the same time; GB = 1e9 bytes.

    `slowest_rank_gb_s`: of the slowest rank, which the others wait for. `first_batch_s`: from creating the
    loader to its first batch, of the slowest rank. `shm_bytes`: the peak increase of the use of /dev/shm meanwhile.
    """

    samples_per_s: float
    gb_s: float
    slowest_rank_gb_s: float
    first_batch_s: float
    shm_bytes: int | Missing = NOT_READ


class LoaderStep(Fact, frozen=True):
    """The loaders with `workers` worker processes per rank (num_workers); without `rates`, `not_run` is the reason.

    `shm_needed_bytes`: /dev/shm taken by the batches in flight: workers x prefetch_factor x batch x ranks.
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
    """All steps of the data probe. `paths`: given by the user; if none, files created for it, held by the page cache.

    `files` were chosen from `paths`, `batch` is in samples, `sample_bytes` the mean size of one: a file, or a piece of
    a large one. `cpus`: how many CPUs the workers of each rank could run on, in rank order, of the machine's
    `cpus_total`; `cpuset_cpus`: how many the cgroup allows its processes. `shm_bytes` and `shm_free_bytes`: /dev/shm
    before the first step. Of the `samples` requested, `unreadable` could not be read; `unreadable_why`: one of
    the reasons, without a name. `empty_files`: files of 0 bytes, which were left out. `no_copies`: why there are
    no `copies`. `perhaps_in_ram`: why the data may have come from RAM, Missing (unsupported) if it did; None if
    nothing suggests it. `socket_name_bytes`: length of the socket name that a training's workers create in TMPDIR.
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


class Gemm(Fact, frozen=True):
    """Matrix multiplications of one type: `dtype` is bf16, fp16, tf32 or fp32; median over the repeats."""

    dtype: str
    size: int
    tflops: float
    tflops_mad: float


class ComputeRank(Fact, frozen=True):
    """One rank's device, all ranks working at the same time.

    Bandwidths count bytes read plus bytes written, GB = 1e9 bytes. `fingerprints` are the SHA-256
    of the results of the same fixed-seed train step, one per repeat: equal work gives equal
    bits. `pattern_bytes` were written, read back and compared; `pattern_wrong_bytes` of them differed;
    `pattern_passes` is the number of patterns. `multiprocessors` of the device: GPUs of one name that
    differ in it use different algorithms.
    """

    rank: int
    gemms: tuple[Gemm, ...] = ()
    copy_gb_s: float | Missing = NOT_READ
    triad_gb_s: float | Missing = NOT_READ
    fingerprints: tuple[str, ...] = ()
    pattern_bytes: int | Missing = NOT_READ
    pattern_wrong_bytes: int | Missing = NOT_READ
    pattern_passes: int = 0
    multiprocessors: int | Missing = NOT_READ


class HostLink(Fact, frozen=True):
    """Pinned copies between host memory and one rank's GPU, in GB/s (1e9 bytes); median of the repeats.

    `alone`: no other GPU copied meanwhile; `together`: all did. `size_bytes` of one copy.
    `wrong_bytes`: how many came back changed from host to GPU to host. `near_cpus`: whether the copying
    process ran on CPUs near the GPU (its NUMA node); Missing if those are not known.
    """

    rank: int
    size_bytes: int
    h2d_alone_gb_s: float
    d2h_alone_gb_s: float
    h2d_together_gb_s: float | Missing = NOT_READ
    d2h_together_gb_s: float | Missing = NOT_READ
    wrong_bytes: int = 0
    near_cpus: bool | Missing = NOT_READ


class PeerLink(Fact, frozen=True):
    """Copies from one rank's GPU to another's, in GB/s (1e9 bytes).

    `p2p`: whether CUDA allows direct access between the two; otherwise the copy goes through the host.
    `both_ways_gb_s`: the sum of both directions at the same time. `wrong_elements` of the
    verified pattern.
    """

    source: int
    target: int
    size_bytes: int
    gb_s: float
    both_ways_gb_s: float | Missing = NOT_READ
    p2p: bool | Missing = NOT_READ
    wrong_elements: int = 0
