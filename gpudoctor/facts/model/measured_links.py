"""What copies between host and GPUs, and between GPUs, moved: figures only, no verdicts."""

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.missing import NOT_READ, Missing


class HostLink(Fact, frozen=True):
    """Pinned copies between host memory and one rank's GPU, in GB/s (1e9 bytes); median of the repeats.

    `alone`: no other GPU copied meanwhile; `together`: all did. `size_bytes` of one copy.
    `wrong_bytes`: how many came back changed from host to GPU to host. `near_cpus`: whether the copying
    process ran on CPUs near the GPU (its NUMA node); Missing where nothing says which those are.
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

    `p2p`: whether CUDA lets the two reach each other directly; else the copy goes through the host.
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
