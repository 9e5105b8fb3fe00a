"""How the GPUs are set up, and who uses them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import SPEEDS, VIEWS, Explains
from gpudoctor.checks.core.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    fail,
    of_gpu,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.core.gpu_use import UNSEEN_MIB, use_of_gpu
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.trust import hidden, untrusted
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.peers import majority


@check(
    "gpu.settings",
    title="Settings of the GPUs let training run, and are the same on all",
    explains=(
        Explains((*VIEWS, "collective.*", "train.*", "strategy.*"), because=("prohibited", "MIG")),
        Explains(("gpu.identical",), because=("ECC", "MIG")),
    ),
)
def settings(case: Case) -> Iterator[Finding]:
    """Compute mode, persistence, MIG and ECC mode; what a container cannot decide is not held against it."""
    gpus = []
    for gpu in case.gpus:
        if doubt := untrusted(gpu):
            yield unknown(of_gpu(gpu), doubt)
        else:
            gpus.append(gpu)
    compute = [g for g in case.compute_gpus if g in gpus]
    mixtures = (*_mixture(compute, "MIG"), *_mixture(compute, "ECC"), *_mixed_compute_modes(compute))
    for gpu in gpus:
        problems = (*_prohibited(gpu), *_persistence(case, gpu), *_mig(gpu))
        yield from problems
        yield from (finding for index, finding in mixtures if index == gpu.index)
        if not problems and all(index != gpu.index for index, _ in mixtures):
            yield _as_set(gpu)
    yield from (finding for index, finding in mixtures if index is None)


def _as_set(gpu: Gpu) -> Finding:
    mode, persistence, mig = gpu.settings.compute_mode, gpu.settings.persistence, gpu.settings.mig_enabled
    if isinstance(mode, Missing):
        return unread(of_gpu(gpu), "compute mode", mode)
    instances = gpu.settings.mig_instances if known(mig) else None
    for what, value in (("persistence mode", persistence), ("MIG mode", mig), ("MIG instances", instances)):
        if isinstance(value, Missing) and value.kind == "failed":
            return unread(of_gpu(gpu), what, value)
    if isinstance(gpu.ecc.enabled, Missing) and gpu.ecc.enabled.kind == "failed":
        return unread(of_gpu(gpu), "ECC mode", gpu.ecc.enabled)
    seen = [f"compute mode {mode}"]
    seen += [
        f"{words} {'on' if value else 'off'}"
        for words, value in (("persistence", known(persistence)), ("MIG", known(mig)))
        if value is not None
    ]
    return ok(of_gpu(gpu), ", ".join(seen), None, Evidence("compute mode", mode))


def _prohibited(gpu: Gpu) -> Iterator[Finding]:
    if known(gpu.settings.compute_mode) == "prohibited":
        yield fail(
            of_gpu(gpu),
            Found("compute mode is prohibited: no CUDA program can use this GPU", "prohibited"),
            Expected("default or exclusive-process", "in", "default, exclusive-process", source="CUDA"),
            Evidence("compute mode", "prohibited"),
            likely="set by an operator to keep jobs away",
            advice=[Advice("Allow compute again.", f"nvidia-smi -i {gpu.bus_id} -c DEFAULT")],
        )


def _persistence(case: Case, gpu: Gpu) -> Iterator[Finding]:
    """Off costs seconds at each start; a guest cannot see or set it, and a desktop keeps the driver awake itself."""
    host = case.node.host
    guest = hidden(case.node) is not None or known(host.virtualization) in ("vm", "container")
    guest = guest or known(gpu.settings.virtualization) in ("passthrough", "vgpu")
    awake = known(gpu.settings.display_active) is True
    if known(gpu.settings.persistence) is False and not guest and not awake and not _unified(case, gpu):
        yield warn(
            of_gpu(gpu),
            "persistence mode is off",
            Expected("on", "==", "on", source="NVIDIA's deployment guide"),
            Evidence("persistence mode", "off"),
            likely="nvidia-persistenced does not run: the driver is torn down and started again between jobs",
            advice=[
                Advice(
                    "Switch it on, better by the daemon.",
                    "nvidia-smi -pm 1  # or: systemctl enable --now nvidia-persistenced",
                )
            ],
        )


def _mig(gpu: Gpu) -> Iterator[Finding]:
    enabled, pending = known(gpu.settings.mig_enabled), known(gpu.settings.mig_pending)
    if enabled is not None and pending is not None and enabled != pending:
        yield warn(
            of_gpu(gpu),
            f"MIG is {'on' if enabled else 'off'}, and will be {'on' if pending else 'off'} after the next reset",
            Expected("no change waiting", source="the GPU itself"),
            Evidence("MIG mode, current and pending", f"{enabled}, {pending}"),
            likely="someone changed the mode and did not reset the GPU since",
            advice=[Advice("Reset the GPU to let it take effect.", f"nvidia-smi --gpu-reset -i {gpu.bus_id}")],
        )
    elif enabled and gpu.settings.mig_instances == ():
        yield warn(
            of_gpu(gpu),
            "MIG is on, but there is no instance: CUDA sees no device here",
            Expected("at least one instance, or MIG off", source="CUDA"),
            Evidence("MIG instances", "0"),
            likely="MIG was switched on and not set up, or its instances did not survive a reboot",
            advice=[
                Advice("Create instances.", "nvidia-smi mig -lgip; nvidia-smi mig -cgi <profile> -C"),
                Advice("Or switch MIG off.", f"nvidia-smi -i {gpu.bus_id} -mig 0"),
            ],
        )


def _mixture(gpus: list[Gpu], what: str) -> Iterator[tuple[int | None, Finding]]:
    """The GPUs whose mode differs from the majority's, or one finding for the node on a tie (index None)."""
    if what == "MIG":
        modes = {g.index: m for g in gpus if (m := known(g.settings.mig_enabled)) is not None}
        judge, likely = fail, "MIG set up on some GPUs only: they cannot train together with the whole ones"
        advice = [
            Advice("Give all GPUs the same mode.", "nvidia-smi -mig 0  # with -i for single GPUs"),
            Advice("Or keep the MIG GPUs out of the job.", "export CUDA_VISIBLE_DEVICES=..."),
        ]
    else:
        modes = {g.index: m for g in gpus if (m := known(g.ecc.enabled)) is not None}
        judge, likely = warn, "ECC changed on some GPUs only: memory size, speed and safety differ between ranks"
        advice = [Advice("Give all GPUs the same ECC mode, then reboot.", "nvidia-smi -e 1")]
    if len(set(modes.values())) < 2:
        return
    usual = majority(modes.values())
    sides = "; ".join(
        f"{what} {'on' if mode else 'off'}: GPU {', '.join(str(i) for i, m in modes.items() if m is mode)}"
        for mode in (True, False)
    )
    expected = Expected("the same on all GPUs", source="peers" if usual is None else "majority of the peers")
    if usual is None:
        yield (
            None,
            judge(NODE, Found(sides, what), expected, Evidence(f"{what} mode", sides), likely=likely, advice=advice),
        )
        return
    for gpu in gpus:
        if modes.get(gpu.index, usual) != usual:
            words = f"{what} is {'off' if usual else 'on'}, and {'on' if usual else 'off'} on the other GPUs"
            evidence = Evidence(f"{what} mode", sides)
            yield gpu.index, judge(of_gpu(gpu), Found(words, what), expected, evidence, likely=likely, advice=advice)


def _mixed_compute_modes(gpus: list[Gpu]) -> Iterator[tuple[int | None, Finding]]:
    """As `_mixture`, for the compute modes that let programs run: a prohibited one is a fault of its own."""
    modes = {g.index: m for g in gpus if (m := known(g.settings.compute_mode)) not in (None, "prohibited")}
    if len(set(modes.values())) < 2:
        return
    usual = majority(modes.values())
    sides = "; ".join(
        f"{mode}: GPU {', '.join(str(i) for i, m in modes.items() if m == mode)}"
        for mode in sorted({str(mode) for mode in modes.values()})
    )
    for gpu in gpus if usual is not None else gpus[:1]:
        mode = modes.get(gpu.index, usual)
        if usual is not None and mode == usual:
            continue
        index, subject = (None, NODE) if usual is None else (gpu.index, of_gpu(gpu))
        words = sides if usual is None else f"compute mode is {mode}, and {usual} on most of the others"
        yield (
            index,
            warn(
                subject,
                Found(words, "compute mode"),
                Expected("the same on all GPUs", source="peers" if usual is None else "majority of the peers"),
                Evidence("compute mode", sides),
                likely="set for an earlier job and not set back: a second program on one GPU starts on some only",
                advice=[Advice("Give all GPUs the same mode.", "nvidia-smi -c DEFAULT  # or EXCLUSIVE_PROCESS")],
            ),
        )


def _unified(case: Case, gpu: Gpu) -> bool:
    """Grace and GB10: the system's own pages live in GPU memory, and the driver never unloads."""
    nodes = known(case.node.host.numa_nodes) or ()
    ats = (known(gpu.settings.addressing_mode) or "").upper() == "ATS"
    return ats or any(n.is_gpu_memory for n in nodes) or "GB10" in (known(gpu.name) or "").upper().split()


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
    explains=(
        "train.*",
        "collective.bandwidth",
        "collective.pairs",
        "link.*",
        *SPEEDS,
    ),
)
def in_use(case: Case) -> Iterator[Finding]:
    """Name other compute processes; warn of memory in use that no listed process owns."""
    for gpu in case.gpus:
        if doubt := untrusted(gpu):
            yield unknown(of_gpu(gpu), doubt)
        elif isinstance(gpu.processes, Missing):
            yield unread(of_gpu(gpu), "processes", gpu.processes)
        else:
            yield _used_by(case, gpu, gpu.processes)


def _used_by(case: Case, gpu: Gpu, processes: tuple[GpuProcess, ...]) -> Finding:
    use = use_of_gpu(gpu)
    if others := use.others:
        return warn(
            of_gpu(gpu),
            Found(f"in use by {', '.join(_name(p) for p in others)}", len(others), "processes"),
            Expected("no other compute process", "==", 0, "processes"),
            *(Evidence(f"process {p.pid} ({p.kind})", _name(p)) for p in others[:5]),
            likely="a job that runs, or one left behind; both take memory and speed from a new one",
            advice=[
                Advice(
                    "See whose it is and since when.",
                    f"ps -o pid,user,lstart,stat,cmd -p {','.join(str(p.pid) for p in others)}",
                ),
                Advice("Left behind? End it, by its id."),
            ],
        )
    used = known(gpu.memory_used_mib)
    leaked = _LEAKED_WITH_RESERVED_MIB if isinstance(gpu.memory_reserved_mib, Missing) else _LEAKED_MIB
    limit = case.limit(leaked, gpu)
    # what a desktop draws with is more than the sum of its processes, and some of them do not tell theirs
    if processes and any(isinstance(p.memory_mib, Missing) for p in processes):
        limit = math.inf
    elif processes:
        limit = max(limit, UNSEEN_MIB)
    stray_mib = use.unlisted_mib
    if used is not None and stray_mib is not None and stray_mib > limit:
        if why := _unseen(case, gpu):
            return skip(of_gpu(gpu), f"{stray_mib} MiB in use by no process listed, which says nothing here: {why}")
        return warn(
            of_gpu(gpu),
            Found(f"{stray_mib} MiB of its memory in use, and no process owns it", stray_mib, "MiB"),
            Expected(f"at most {limit:g} MiB", "<=", limit, "MiB", case.limit_source(leaked, gpu)),
            Evidence("memory used", f"{used} MiB"),
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
    if not processes and isinstance(gpu.memory_used_mib, Missing) and gpu.memory_used_mib.kind == "failed":
        return unread(of_gpu(gpu), "memory in use", gpu.memory_used_mib)
    text = "no other process" if not processes else f"only {', '.join(_name(p) for p in processes)}"
    return ok(of_gpu(gpu), text + (f", {used} MiB in use" if used is not None else ""), None)


def _name(process: GpuProcess) -> str:
    name = known(process.name)
    user, memory = known(process.user), known(process.memory_mib)
    more = ", ".join(part for part in (user, f"{memory} MiB" if memory is not None else None) if part)
    return f"{name or 'a process'} (pid {process.pid}{', ' + more if more else ''})"


def _unseen(case: Case, gpu: Gpu) -> str | None:
    """Why an empty process list proves nothing here."""
    if reason := hidden(case.node):
        return reason
    if known(gpu.settings.mig_enabled):
        return "MIG: processes belong to instances"
    if known(gpu.settings.virtualization) in ("vgpu", "host-vgpu", "host-vsga"):
        return "a GPU shared by virtual machines"
    return "GPU memory serves the system as well" if _unified(case, gpu) else None
