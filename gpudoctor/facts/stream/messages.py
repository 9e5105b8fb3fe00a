"""The lines of `gpudoctor watch`: an opening with the facts, then one tick a second; and those of its driver reader."""

from __future__ import annotations

from math import ceil
from typing import Literal

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, Node

SCHEMA = "gpudoctor.watch/1"

# what a GPU's `readings` may hold; each name carries its unit
WATCHED = (
    *("utilization_pct", "memory_used_mib", "temperature_c", "power_w", "sm_mhz", "memory_mhz"),
    *("pcie_generation", "pcie_width", "pcie_rx_gb_s", "pcie_tx_gb_s", "nvlink_rx_gb_s", "nvlink_tx_gb_s"),
)


class GpuTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was read of one GPU (NVML index) now; what costs more is read less often and is not in every tick.

    `readings` by the names of `WATCHED`; GB/s are 1e9 bytes a second, over all of the GPU's links.
    `events`: the clock event reasons that were set; None where they were not read now. `counters`
    (pcie_replays, ecc_corrected, ecc_uncorrected): since the driver was loaded. `links_up` of `links`:
    NVLinks. `unread`: why something was not to be had; what is unsupported or denied is told once.
    """

    gpu: int
    readings: dict[str, float] = {}
    events: tuple[str, ...] | None = None
    counters: dict[str, int] = {}
    links_up: int | None = None
    links: int | None = None
    unread: dict[str, Missing] = {}


class ProcessTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process on one GPU. `kind`: C compute, G graphics. None is what could not be read.

    `job`: what holds it, in words: "torchrun", "Slurm 4711"; `rank` its RANK there.
    """

    gpu: int
    pid: int
    name: str | None = None
    kind: str = "C"
    user: str | None = None
    memory_mib: float | None = None
    cpu_pct: float | None = None
    command: str | None = None
    job: str | None = None
    rank: int | None = None


class HostTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """The host now; None is what could not be read. `cpu_pct` of all CPUs together, 0 to 100."""

    cpu_pct: float | None = None
    cpus: int | None = None
    ram_used_mib: float | None = None
    ram_total_mib: float | None = None
    load_1min: float | None = None


class Silence(msgspec.Struct, frozen=True):
    """The driver does not answer: since when (Unix time), and which call waits, or what became of its process."""

    since_s: float
    why: str


class Opening(msgspec.Struct, frozen=True, tag="opening", tag_field="kind"):
    """The first line, and again whenever the facts were read anew. `at_s` is Unix time; `interval_s` between ticks."""

    schema: Literal["gpudoctor.watch/1"]
    at_s: float
    interval_s: float
    node: Node


class Tick(msgspec.Struct, frozen=True, omit_defaults=True, tag="tick", tag_field="kind"):
    """One moment (`at_s`: Unix time); GPUs that did not answer are not in it.

    `processes` is None where they were not read now, else all of them. `kernel` are the lines that
    came since the last tick. `cost_ms`: how long the driver was busy with it.
    """

    at_s: float
    gpus: tuple[GpuTick, ...] = ()
    host: HostTick | None = None
    processes: tuple[ProcessTick, ...] | None = None
    kernel: tuple[KernelEvent, ...] = ()
    silence: Silence | None = None
    cost_ms: float | None = None


WatchLine = Opening | Tick


# What crosses between `gpudoctor watch` and its reader of the driver: an order, then an answer to each request.


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
