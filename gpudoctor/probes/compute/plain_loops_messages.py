"""What the plain torch loops of the acceptance run are asked for, and what they answer; no torch."""

from __future__ import annotations

import msgspec

LOOPS = "gpudoctor.probes.compute.plain_loops"
NOTHING_TO_RUN_ON = 3  # their exit code where there is no torch, or it sees none of the GPUs; all others are failures


class LoadOrder(msgspec.Struct, frozen=True, tag="load"):
    """Matrix products without end on these GPUs (none: on one CPU thread), until stdin ends."""

    uuids: tuple[str, ...]


class HostCopies(msgspec.Struct, frozen=True):
    """Pinned copies of so many bytes on one GPU, from these CPUs (none: any)."""

    gpu: int
    size_bytes: int
    cpus: tuple[int, ...] = ()


class LoopOrder(msgspec.Struct, frozen=True, tag="loops"):
    """Figures of these GPUs (none: of the CPU): square products of `size`, copies in device memory, host copies.

    `gpu` of the host copies counts in `uuids`.
    """

    uuids: tuple[str, ...]
    dtype: str
    size: int
    seconds: float
    host: tuple[HostCopies, ...] = ()


class PlainFigures(msgspec.Struct, frozen=True):
    """What the loops measured, in the order of `uuids`; medians."""

    gemm_tflops: tuple[float, ...]
    copy_gb_s: tuple[float, ...]
    h2d_gb_s: tuple[float, ...] = ()
    d2h_gb_s: tuple[float, ...] = ()
