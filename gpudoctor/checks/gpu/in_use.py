"""gpu.in-use: does another program use a GPU or hold its memory?"""

from __future__ import annotations

import math

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu
from gpudoctor.checks.core.explains import SPEEDS
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, warn
from gpudoctor.checks.core.gpu_use import BUSY_PCT, UNSEEN_MIB, readings_of, use_of_gpu
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_unread, unread
from gpudoctor.checks.core.visibility import REFUSED, refused_handles, why_hidden
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.missing import Missing, known

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
        held = None if processes.kind == "failed" else _held_alone(gpu)
        return held or unread(of_gpu(gpu), "processes", processes)
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
    readings = readings_of(gpu)
    busy = (readings.busy_pct or 0) > BUSY_PCT and (readings.draws_power or readings.power_w is None)
    if not exclusive or not busy:
        return None
    return warn(
        of_gpu(gpu),
        Found(f"{readings.busy_pct:g} % busy in exclusive-process mode: it takes no other process"),
        Expected("no other compute process", "==", 0, "processes"),
        Evidence("compute mode", "exclusive-process"),
        likely="a job has it; every other program is told that devices are busy or unavailable (CUDA 46)",
        advice=[
            Advice("Wait for the job, or ask for another GPU.", "nvidia-smi"),
            Advice("To be shared? Allow several processes.", f"nvidia-smi -i {gpu.smi_id} -c DEFAULT"),
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
            Advice("None? Reset the GPU when it is idle.", f"nvidia-smi --gpu-reset -i {gpu.smi_id}"),
        ],
    )


def _name(process: GpuProcess) -> str:
    name = known(process.name)
    user, memory = known(process.user), known(process.memory_mib)
    more = ", ".join(part for part in (user, f"{memory} MiB" if memory is not None else None) if part)
    return f"{name or 'a process'} (pid {process.pid}{', ' + more if more else ''})"


def _unseen(case: Case, gpu: Gpu) -> str | None:
    """Why an empty process list proves nothing here; None if it does."""
    if reason := why_hidden(case.node) or (REFUSED if refused_handles(case.node) else None):
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
