"""The lines of `gpudoctor watch`: one opening with the facts, then one tick a second."""

from __future__ import annotations

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
