"""The lines of `gpudoctor watch` (an opening with the facts, then one tick a second) and of its driver reader."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Literal

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, Node
from gpudoctor.facts.nvml.channel import DriverOrder

# the keys of a GPU's `readings`; each contains its unit
WATCHED = (
    *("utilization_pct", "memory_used_mib", "temperature_c", "power_w", "sm_mhz", "memory_mhz"),
    *("pcie_generation", "pcie_width", "pcie_rx_gb_s", "pcie_tx_gb_s", "nvlink_rx_gb_s", "nvlink_tx_gb_s"),
)
# PCIe throughput blocks for 20 ms per call; listing processes holds the driver's lock for milliseconds
PCIE_EVERY_S, SLOW_EVERY_S, LINKS_EVERY_S = 4.0, 5.0, 60.0


class GpuTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """The readings of one GPU (NVML index). Expensive values are read less often and are not in every tick.

    `readings`: by the names in `WATCHED`; GB/s are 1e9 bytes per second, over all of the GPU's links. `events`: the
    active clock event reasons; None if not read now. `counters` (pcie_replays, ecc_corrected, ecc_uncorrected): since
    the driver was loaded. `links_up`, `links`: NVLinks that are up, and all. `unread`: why a value could not be read;
    unsupported or denied values are reported once.
    """

    gpu: int
    readings: dict[str, float] = {}
    events: tuple[str, ...] | None = None
    counters: dict[str, int] = {}
    links_up: int | None = None
    links: int | None = None
    unread: dict[str, Missing] = {}


class ProcessTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process on one GPU. `kind`: C compute, G graphics. Values that could not be read are None.

    `job`: launcher and batch job as text ("torchrun, Slurm 4711"); `rank`: its RANK there.
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
    """The host; values that could not be read are None. `cpu_pct`: of all CPUs together, 0 to 100."""

    cpu_pct: float | None = None
    cpus: int | None = None
    ram_used_mib: float | None = None
    ram_total_mib: float | None = None
    load_1min: float | None = None


class Silence(msgspec.Struct, frozen=True):
    """The driver does not answer: since when (Unix time), and which call hangs or how the process ended."""

    since_s: float
    why: str


class Opening(msgspec.Struct, frozen=True, tag="opening", tag_field="kind"):
    """The first line, and again whenever the facts are read again. `at_s`: Unix time; `interval_s`: between ticks."""

    schema: Literal["gpudoctor.watch/1"]
    at_s: float
    interval_s: float
    node: Node


class Tick(msgspec.Struct, frozen=True, omit_defaults=True, tag="tick", tag_field="kind"):
    """The readings at one moment (`at_s`: Unix time), without GPUs that did not answer.

    `processes`: all of them; None if not read now. `kernel`: the events since the last tick. `cost_ms`: how long the
    driver was busy with it.
    """

    at_s: float
    gpus: tuple[GpuTick, ...] = ()
    host: HostTick | None = None
    processes: tuple[ProcessTick, ...] | None = None
    kernel: tuple[KernelEvent, ...] = ()
    silence: Silence | None = None
    cost_ms: float | None = None


WatchLine = Opening | Tick


class LineHead(msgspec.Struct):
    """The part of a line that an index needs; the time is limited to what can be displayed (the year 5138)."""

    kind: Literal["opening", "tick"]
    at_s: Annotated[float, msgspec.Meta(ge=0, lt=1e11)]


# Messages between `gpudoctor watch` and its driver reader: an order, then an answer to each request.


class WatchOrder(DriverOrder, frozen=True, kw_only=True):
    """The arguments of the reader process.

    `requests`: a file descriptor; each byte on it requests one answer, and its end means stop. `gpus`: NVML index and
    UUID (None: open by index) of each; if empty, all that the driver counts.
    """

    requests: int
    gpus: tuple[tuple[int, str | None], ...]
    interval_s: float


class OnGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process (pid) on a GPU (NVML index) from the driver. `kind`: C compute, G graphics, M MPS, C+G."""

    gpu: int
    pid: int
    kind: str
    memory_mib: int | None = None


class ReaderAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line with the readings of all GPUs. `processes` is None if they were not due.

    `cost_ms`: how long the driver was busy with it. `failure`: why there will be no answers.
    """

    gpus: tuple[GpuTick, ...] = ()
    processes: tuple[OnGpu, ...] | None = None
    cost_ms: float = 0.0
    failure: str | None = None


# How often `gpudoctor watch` reads a value depends on its cost for the driver.


class Due(msgspec.Struct, frozen=True):
    """Which expensive values are read: PCIe; processes, counters and memory clock; the state of the NVLinks."""

    pcie: bool = True
    slow: bool = True
    links: bool = True


def due(number: int, interval_s: float, place: int = 0) -> Due:
    """What is due at a tick (numbered from 0) for the GPU at position `place` in the list.

    Everything is due at tick 0; after that, the GPUs take turns with PCIe.
    """

    def comes(every_s: float, turn: int = 0) -> bool:
        every = max(1, ceil(every_s / interval_s))
        return number == 0 or number % every == turn % every

    return Due(comes(PCIE_EVERY_S, place), comes(SLOW_EVERY_S), comes(LINKS_EVERY_S))
