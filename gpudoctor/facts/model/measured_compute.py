"""What one rank's device computed and moved in its own memory: figures only, no verdicts."""

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.missing import NOT_READ, Missing


class Gemm(Fact, frozen=True):
    """Matrix products of one type: `dtype` is bf16, fp16, tf32 or fp32; median over the repeats."""

    dtype: str
    size: int
    tflops: float
    tflops_mad: float


class ComputeRank(Fact, frozen=True):
    """One rank's device, all ranks working at the same time.

    Bandwidths count bytes read plus bytes written, GB = 1e9 bytes. `fingerprints` are the SHA-256
    of the results of the same fixed-seed train step, one for each repeat: equal work gives equal
    bits. `pattern_bytes` were written, read back and compared; `pattern_wrong_bytes` differed;
    `pattern_passes` is how many patterns were. `multiprocessors` of the device: GPUs of one name that
    differ in it compute by other algorithms.
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
