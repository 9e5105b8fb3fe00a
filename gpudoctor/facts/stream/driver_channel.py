"""What crosses between `gpudoctor watch` and its reader of the driver: an order, then an answer to each request."""

from __future__ import annotations

import msgspec

from gpudoctor.facts.stream.messages import GpuTick


class WatchOrder(msgspec.Struct, frozen=True):
    """What the reader is to do.

    `requests`: a file descriptor, a byte on it asks for one answer and its end means stop; `out`: one
    for the answers. `gpus`: NVML index and UUID (None: by its index) of each; none: all that the
    driver counts. `nvml` names what stands in for pynvml as module:factory:argument.
    """

    requests: int
    out: int
    trace: int
    gpus: tuple[tuple[int, str | None], ...]
    interval_s: float
    nvml: str | None = None


class OnGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process (pid) on a GPU (NVML index), as the driver tells it. `kind`: C compute, G graphics, M MPS, C+G."""

    gpu: int
    pid: int
    kind: str
    memory_mib: int | None = None


class ReaderAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: what the GPUs told. `processes` is None where they were not asked for now.

    `cost_ms`: how long the driver was busy with it. `failure`: why there will be no answers.
    """

    gpus: tuple[GpuTick, ...] = ()
    processes: tuple[OnGpu, ...] | None = None
    cost_ms: float = 0.0
    failure: str | None = None
