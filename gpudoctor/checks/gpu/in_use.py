"""gpu.in-use: does another program use a GPU or hold its memory? And who uses a GPU: one rule for every caller."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu, first_unread
from gpudoctor.checks.core.explains import SPEEDS
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.sight import REFUSED, hidden, refused_handles
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.facts.model.gpu import Gpu, GpuProcess, system_program
from gpudoctor.facts.model.missing import NOT_READ, Missing, known

UNSEEN_MIB = 2000  # an idle GPU shows at most the driver's own reserve, up to 1.5 GB with old drivers
# Utilization alone is no use. It reads up to 100 % while the driver initialises a GPU with ECC (nvml.h on
# nvmlDeviceGetUtilizationRates), and stays there after a process died in a kernel (Blackwell, drivers 580.95 to
# 595.71). With it somebody works there if it holds a CUDA context (250 to 500 MiB), or if the GPU draws power.
_BUSY_PCT = 20
_CONTEXT_MIB = 200
_WORKING_POWER_SHARE = 0.5  # of the limit; idle GPUs draw 5 to 25 %, a T4 in P0 40 %


class UseReadings(msgspec.Struct, frozen=True):
    """Readings that show whether a GPU works for somebody; None: not known.

    `reserve_counted`: the memory in use includes the driver's own reserve.
    """

    used_mib: float | None = None
    busy_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    reserve_counted: bool = True

    @property
    def draws_power(self) -> bool:
        return bool(self.power_w and self.power_limit_w) and (
            (self.power_w or 0) >= _WORKING_POWER_SHARE * (self.power_limit_w or 0)
        )


class GpuUse(msgspec.Struct, frozen=True):
    """How other programs use one GPU.

    `others`: processes that compute there, without gpudoctor's own and the harmless ones. `unlisted_mib`: memory
    in use that no listed process holds; None if that is not known. `unseen`: a text if there may be work without
    a listed process (signs of it, or nothing that rules it out); None otherwise.
    """

    others: tuple[GpuProcess, ...]
    unlisted_mib: int | None
    unseen: str | None


def use_of_gpu(gpu: Gpu) -> GpuUse:
    """The use of one GPU according to its facts."""
    return use_of(gpu.processes, readings_of(gpu))


def readings_of(gpu: Gpu) -> UseReadings:
    """The readings in a GPU's facts."""
    return UseReadings(
        known(gpu.memory_used_mib),
        known(gpu.utilization.gpu_pct),
        known(gpu.power.draw_w),
        known(gpu.power.limit_w),
        reserve_counted=isinstance(gpu.memory_reserved_mib, Missing),
    )


def use_of(processes: Sequence[GpuProcess] | Missing, readings: UseReadings) -> GpuUse:
    """The use of a GPU, from its process list and readings of one moment."""
    listed = () if isinstance(processes, Missing) else processes
    others = tuple(process for process in listed if not process.is_own and not harmless(process.kind, process.name))
    held_mib = sum(known(process.memory_mib) or 0 for process in listed)
    unlisted_mib = None if readings.used_mib is None else max(0, round(readings.used_mib - held_mib))
    unseen = None
    if isinstance(processes, Missing) and (processes.kind == "failed" or processes == NOT_READ):
        unseen = f"who uses it is not known: {processes.reason}"
    elif isinstance(processes, Missing) and unlisted_mib is None:
        unseen = "who uses it is not known: neither its processes nor its memory in use can be read"
    elif not others and _unlisted_work(unlisted_mib or 0, readings):
        names = ", ".join(dict.fromkeys(known(process.name) or "a process" for process in listed))
        who = f"beside {names}" if names else "by a process that is not seen here"
        unseen = f"{readings.busy_pct or 0:.0f} % busy, {unlisted_mib or 0} MiB in use {who}"
    return GpuUse(others, unlisted_mib, unseen)


def _unlisted_work(unlisted_mib: int, readings: UseReadings) -> bool:
    """Whether somebody who is not listed works on the GPU."""
    if unlisted_mib > UNSEEN_MIB:
        return True
    has_context = unlisted_mib > _CONTEXT_MIB and not readings.reserve_counted
    return (readings.busy_pct or 0) > _BUSY_PCT and (has_context or readings.draws_power)


def harmless(kind: str, name: str | Missing | None) -> bool:
    """Whether a process of this kind and name is harmless; one without a known name is not.

    Harmless are programs that only draw (kind G), desktops that also compute a little (C+G), the MPS server, which
    shares the GPU out but computes nothing itself, and monitoring. Clients of the MPS server are listed separately.
    """
    return kind == "G" or (isinstance(name, str) and system_program(name) is not None)


_LEAKED_MIB = Limit(
    500, "MiB", "above what the driver reserves; an idle GPU uses a few MiB", name="leaked_mib", status="warn"
)
_LEAKED_WITH_RESERVED_MIB = Limit(
    1500, "MiB", "where old drivers count their own reserve as used", name="leaked_with_reserved_mib", status="warn"
)


@check(
    "gpu.in-use",
    title="No other program uses the GPUs, and no memory is left behind",
    impact="memory-taken",
    limits=(_LEAKED_MIB, _LEAKED_WITH_RESERVED_MIB),
    explains=("train.*", "collective.bandwidth", "collective.pairs", "link.*", *SPEEDS),
)
@each_gpu
def in_use(case: Case, gpu: Gpu) -> Finding:
    """Name other compute processes; warn about memory in use that no listed process owns."""
    processes = gpu.processes
    if isinstance(processes, Missing):
        return _held_alone(gpu) or unread(of_gpu(gpu), "processes", processes)
    if others := use_of_gpu(gpu).others:
        return _used_by(gpu, others)
    if found := _left_over(case, gpu, processes) or _held_alone(gpu):
        return found
    if not processes and (finding := first_unread(of_gpu(gpu), ("memory in use", gpu.memory_used_mib))):
        return finding
    used = known(gpu.memory_used_mib)
    text = "no other process" if not processes else f"only {', '.join(map(_name, processes))}"
    return ok(of_gpu(gpu), text + (f", {used} MiB in use" if used is not None else ""), None)


def _used_by(gpu: Gpu, others: tuple[GpuProcess, ...]) -> Finding:
    pids = ",".join(str(process.pid) for process in others)
    return warn(
        of_gpu(gpu),
        Found(f"in use by {', '.join(map(_name, others))}", len(others), "processes"),
        Expected("no other compute process", "==", 0, "processes"),
        *(Evidence(f"process {p.pid} ({p.kind})", _name(p)) for p in others[:5]),
        likely="a job that runs, or one left behind; both take memory and speed from a new one",
        advice=[
            Advice("See whose it is and since when.", f"ps -o pid,user,lstart,stat,cmd -p {pids}"),
            Advice("Left behind? End it, by its id."),
        ],
    )


def _held_alone(gpu: Gpu) -> Finding | None:
    """A finding for a GPU in exclusive-process mode on which somebody works who is not listed; else None."""
    exclusive = (known(gpu.settings.compute_mode) or "").startswith("exclusive")
    if not exclusive or (known(gpu.utilization.gpu_pct) or 0) <= _BUSY_PCT:
        return None
    return warn(
        of_gpu(gpu),
        Found(f"{known(gpu.utilization.gpu_pct):g} % busy in exclusive-process mode: it takes no other process"),
        Expected("no other compute process", "==", 0, "processes"),
        Evidence("compute mode", "exclusive-process"),
        likely="a job has it; every other program is told that devices are busy or unavailable (CUDA 46)",
        advice=[
            Advice("Wait for the job, or ask for another GPU.", "nvidia-smi"),
            Advice("To be shared? Allow several processes.", f"nvidia-smi -i {gpu.bus_id} -c DEFAULT"),
        ],
    )


def _left_over(case: Case, gpu: Gpu, processes: tuple[GpuProcess, ...]) -> Finding | None:
    """A finding for memory in use that no listed process holds; None if there is little or none."""
    leaked = _LEAKED_WITH_RESERVED_MIB if isinstance(gpu.memory_reserved_mib, Missing) else _LEAKED_MIB
    limit = case.limit(leaked, gpu)
    # a desktop uses more than the sum of its processes, some of which do not report their memory
    if processes and any(isinstance(p.memory_mib, Missing) for p in processes):
        limit = math.inf
    elif processes:
        limit = max(limit, UNSEEN_MIB)
    stray_mib = use_of_gpu(gpu).unlisted_mib
    if stray_mib is None or stray_mib <= limit:
        return None
    if why := _unseen(case, gpu):
        return skip(of_gpu(gpu), f"{stray_mib} MiB in use by no process listed, which says nothing here: {why}")
    return warn(
        of_gpu(gpu),
        Found(f"{stray_mib} MiB of its memory in use, and no process owns it", stray_mib, "MiB"),
        Expected(f"at most {limit:g} MiB", "<=", limit, "MiB", case.limit_source(leaked, gpu)),
        Evidence("memory used", f"{known(gpu.memory_used_mib)} MiB"),
        Evidence("processes", ", ".join(map(_name, processes)) or "none"),
        likely="a dead or zombie process still holds it, or one of a container that is not seen from here",
        advice=[
            Advice(
                "Look for processes that hold the device.",
                "fuser -v /dev/nvidia*; ps -eo pid,stat,comm | grep -e ' Z' -e ' D'",
            ),
            Advice("None? Reset the GPU when it is idle.", f"nvidia-smi --gpu-reset -i {gpu.bus_id}"),
        ],
    )


def _name(process: GpuProcess) -> str:
    name = known(process.name)
    user, memory = known(process.user), known(process.memory_mib)
    more = ", ".join(part for part in (user, f"{memory} MiB" if memory is not None else None) if part)
    return f"{name or 'a process'} (pid {process.pid}{', ' + more if more else ''})"


def _unseen(case: Case, gpu: Gpu) -> str | None:
    """Why an empty process list proves nothing here; None if it does."""
    if reason := hidden(case.node) or (REFUSED if refused_handles(case.node) else None):
        return reason
    if known(gpu.settings.mig_enabled):
        return "MIG: processes belong to instances"
    if known(gpu.settings.virtualization) in ("vgpu", "host-vgpu", "host-vsga"):
        return "a GPU shared by virtual machines"
    return "GPU memory serves the system as well" if unified_memory(case, gpu) else None


def unified_memory(case: Case, gpu: Gpu) -> bool:
    """Whether system and GPU share memory (Grace, GB10): system pages are in GPU memory, the driver never unloads."""
    nodes = known(case.node.host.numa_nodes) or ()
    ats = (known(gpu.settings.addressing_mode) or "").upper() == "ATS"
    return ats or any(n.is_gpu_memory for n in nodes) or "GB10" in (known(gpu.name) or "").upper().split()
