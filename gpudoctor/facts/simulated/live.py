"""Live values for nodes from files: a simulated node runs a simulated training job, a capture stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from gpudoctor.facts.model.driver import on_gpu
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import counters_of
from gpudoctor.facts.simulated.training_job import (
    SimulatedJob,
    events_at,
    is_lost,
    job_of,
    ranks_at,
    readings_at,
    smooth_noise,
)
from gpudoctor.facts.stream.messages import Due, GpuTick, HostTick, ProcessTick, Silence, Tick, due

_SLOW = frozenset({"memory_mhz"})
_PCIE = frozenset({"pcie_generation", "pcie_width", "pcie_rx_gb_s", "pcie_tx_gb_s"})
_STORM = 1000  # a counter above this keeps increasing
_NO_JOB = SimulatedJob((), False, 1.0, 0.0, 0.0)
_CPUS_A_RANK = 6
_RANK_RAM_MIB = 14_336


def ticks_of(node: Node, number: int, at_s: float, interval_s: float = 1.0) -> Tick:
    """The tick of this number (from 0) at a Unix time, deterministic.

    Values that are not in the facts are reported as unread in the first tick. If the facts contain a driver call that
    did not return, the tick has a silence and no GPUs. Lost GPUs are left out.
    """
    seconds = number * interval_s
    plays = node.source.kind == "simulated"
    silence = _silence(node, at_s - seconds, at_s)
    job = job_of(node) if plays and silence is None and _answers(node) else _NO_JOB
    host = _host_playing(node, job, seconds) if plays else _host(node)
    if silence is not None:
        return Tick(at_s=at_s, host=host, silence=silence)
    gpus = [gpu for gpu in node.gpus if not is_lost(gpu)] if _answers(node) else []
    ticks = (
        _gpu(gpu, job, due(number, interval_s, place), number, interval_s, plays) for place, gpu in enumerate(gpus)
    )
    processes = None
    has_processes = bool(job.ranks) or any(not isinstance(gpu.processes, Missing) for gpu in gpus)
    if has_processes and due(number, interval_s).slow:
        processes = (*_processes_in_facts(gpus, job), *ranks_at(gpus, job, seconds))
    return Tick(at_s=at_s, gpus=tuple(ticks), host=host, processes=processes)


def _answers(node: Node) -> bool:
    code = known(node.driver.init_code)
    return node.driver.module_loaded is not False and code in (None, 0)


def _silence(node: Node, begin_s: float, at_s: float) -> Silence | None:
    if not node.driver.unanswered:
        return None
    call = node.driver.unanswered[0]
    since_s = begin_s - call.waited_s
    return Silence(round(since_s, 3), f"{on_gpu(call.call, call.gpu)} has not returned for {at_s - since_s:.0f} s")


def _gpu(gpu: Gpu, job: SimulatedJob, now: Due, number: int, interval_s: float, plays: bool) -> GpuTick:
    facts = _readings_in_facts(gpu, plays)
    shown: Mapping[str, float] = {name: known(value) or 0.0 for name, value in facts.items()}
    if plays:
        shown = readings_at(gpu, shown, job, number * interval_s)
    left_out = {*_missing(facts), *(() if now.slow else _SLOW), *(() if now.pcie else _PCIE)}
    readings = {name: float(value) for name, value in shown.items() if name not in left_out}
    reasons, links = gpu.clocks.event_reasons, known(gpu.nvlinks) if now.links else None
    counters = counters_of(gpu)
    others = {"event_reasons": reasons, **counters, "nvlinks": gpu.nvlinks, "processes": gpu.processes}
    return GpuTick(
        gpu=gpu.index,
        readings=readings,
        events=None if isinstance(reasons, Missing) else events_at(gpu, job),
        counters=_counters_at(counters, number if plays else 0) if now.slow else {},
        links_up=None if links is None else sum(link.is_up for link in links),
        links=None if links is None else len(links),
        unread={**_missing(facts), **_missing(others)} if number == 0 else {},
    )


def _missing(values: Mapping[str, object]) -> dict[str, Missing]:
    return {name: value for name, value in values.items() if isinstance(value, Missing)}


def _counters_at(counters: Mapping[str, int | Missing], ticks: int) -> dict[str, int]:
    """The counters after so many ticks; a counter that was high goes on increasing."""
    known_ones = {name: count for name, count in counters.items() if not isinstance(count, Missing)}
    return {name: count + (7 * ticks if count >= _STORM else 0) for name, count in known_ones.items()}


def _readings_in_facts(gpu: Gpu, plays: bool) -> dict[str, float | Missing]:
    """The facts by the names in `WATCHED`. Traffic is not in the facts, so a capture has none."""
    pcie, links = gpu.pcie.generation, gpu.nvlinks
    traffic: float | Missing = 0.0 if plays else Missing("facts do not hold traffic")
    on_pcie = pcie if isinstance(pcie, Missing) else traffic
    on_nvlink = links if isinstance(links, Missing) else traffic
    return {
        "utilization_pct": gpu.utilization.gpu_pct,
        "memory_used_mib": gpu.memory_used_mib,
        "temperature_c": gpu.thermal.gpu_c,
        "power_w": gpu.power.draw_w,
        "sm_mhz": gpu.clocks.sm_mhz,
        "memory_mhz": gpu.clocks.memory_mhz,
        "pcie_generation": pcie,
        "pcie_width": gpu.pcie.width,
        **dict.fromkeys(("pcie_rx_gb_s", "pcie_tx_gb_s"), on_pcie),
        **dict.fromkeys(("nvlink_rx_gb_s", "nvlink_tx_gb_s"), on_nvlink),
    }


def _processes_in_facts(gpus: list[Gpu], job: SimulatedJob) -> Iterator[ProcessTick]:
    """Yield the processes in the facts, without the user's own, which the job's ranks replace."""
    for gpu in gpus:
        for process in known(gpu.processes) or ():
            if not (process.is_own and gpu.index in job.ranks):
                yield ProcessTick(
                    gpu=gpu.index,
                    pid=process.pid,
                    name=known(process.name),
                    kind=process.kind,
                    user=known(process.user),
                    memory_mib=known(process.memory_mib),
                )


def _host(node: Node) -> HostTick:
    """The host from the facts, which do not contain the CPU load."""
    host = node.host
    ram, available, limit = known(host.ram_mib), known(host.ram_available_mib), known(host.memory_limit_mib)
    used = None if ram is None or available is None else float(max(0, ram - available))
    if limit is not None and (ram is None or limit < ram):
        ram, used = limit, None
    return HostTick(cpus=known(host.cpus_total), ram_used_mib=used, ram_total_mib=ram, load_1min=known(host.load_1m))


def _host_playing(node: Node, job: SimulatedJob, seconds: float) -> HostTick:
    """The host with the job's data loading and memory added."""
    host = _host(node)
    cpus = known(node.host.cpus_usable) or host.cpus
    if cpus is None:
        return host
    busy = min(0.92, (1 + _CPUS_A_RANK * len(job.ranks)) / cpus)
    cpu_pct = 100 * busy * (0.9 + 0.2 * smooth_noise("host cpu", seconds))
    used, total = host.ram_used_mib, host.ram_total_mib
    if total is not None:
        used = min((used or 0.0) + _RANK_RAM_MIB * len(job.ranks), 0.8 * total)
    return replace(
        host,
        cpu_pct=round(min(cpu_pct, 100.0), 1),
        ram_used_mib=None if used is None else round(used),
        load_1min=round(busy * cpus * (1 + 0.05 * smooth_noise("host load", seconds / 20)), 2),
    )
