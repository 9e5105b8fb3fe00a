"""What each rank's device measured: compute and memory rates, copies to the host and to other GPUs. No verdicts."""

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing


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
