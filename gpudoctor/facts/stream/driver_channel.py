"""What crosses between `gpudoctor watch` and its reader of the driver: an order, then an answer to each request."""

from __future__ import annotations

from math import ceil

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


# When `gpudoctor watch` reads what: by what it costs the driver.

# PCIe throughput blocks for 20 ms a call; listing processes costs milliseconds at the driver's lock
PCIE_EVERY_S, SLOW_EVERY_S, LINKS_EVERY_S = 4.0, 5.0, 60.0


class Due(msgspec.Struct, frozen=True):
    """What is read besides what is cheap: PCIe; processes, counters and memory clock; the state of the NVLinks."""

    pcie: bool = True
    slow: bool = True
    links: bool = True


def due(number: int, interval_s: float, place: int = 0) -> Due:
    """What is due at a tick (its number, from 0) for the GPU at this place of the list.

    All at first; later the GPUs take turns with PCIe.
    """

    def comes(every_s: float, turn: int = 0) -> bool:
        every = max(1, ceil(every_s / interval_s))
        return number == 0 or number % every == turn % every

    return Due(comes(PCIE_EVERY_S, place), comes(SLOW_EVERY_S), comes(LINKS_EVERY_S))
