"""host.*: whether the machine around the GPUs can feed them."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import ENDS, Explains
from gpudoctor.checks.core.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    fail,
    ok,
    skip,
    unread,
    warn,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.facts.model.missing import Missing, known

_OURS = "gpudoctor's own choice"
_SHM = "NCCL issues 290 and 342 (docker's 64 MiB); AMD Primus preflight asks 8 GiB for 8 GPUs"


_FLOOR_GIB = Limit(
    16,
    "GiB a GPU",
    "rule of thumb of multi-GPU guides: 2 GPUs 32, 4 GPUs 64, 8 GPUs 128 GiB",
    name="floor_gib",
    status="warn",
)
_FAIL_SHARE = Limit(
    0.5, "of the GPU's memory", f"{_OURS}: less cannot hold a model that half fills the GPU", name="fail_share"
)
_GPU_MEMORY_SHARE = Limit(
    1.0,
    "of the GPU's memory",
    "recommendation: a checkpoint of the GPU fits into RAM",
    name="gpu_memory_share",
    status="warn",
)
_AVAILABLE_GIB = Limit(
    1,
    "GiB a GPU",
    f"{_OURS}: a rank that imports torch and starts CUDA wants 2 to 4 GiB",
    name="available_gib",
    status="fail",
)
_NOMINAL_SHARE = Limit(
    0.94, "of the size", "firmware and kernel keep some: 64 GiB show as 62.7 GiB", name="nominal_share"
)


@check(
    "host.ram-per-gpu",
    title="There is enough RAM for each GPU",
    needs_gpu=False,
    limits=(_FLOOR_GIB, _FAIL_SHARE, _GPU_MEMORY_SHARE, _AVAILABLE_GIB, _NOMINAL_SHARE),
)
def ram_per_gpu(case: Case) -> Iterator[Finding]:
    """Warn below the floor or the GPUs' own memory, after any cgroup limit; fail where training could not start.

    That is below the floor and below a share of the GPU's memory, or below a floor that the operator has set.
    """
    host = case.node.host
    if isinstance(host.ram_mib, Missing):
        yield unread(NODE, "RAM", host.ram_mib)
        return
    ram_mib, source = host.ram_mib, "RAM"
    limit_mib = known(host.memory_limit_mib)
    limit_unread = _not_told(host.memory_limit_mib)
    evidence = [Evidence("host", f"RAM {_gib(host.ram_mib)}")]
    if limit_mib is not None:
        where = known(host.memory_limit_source) or "cgroup memory limit"
        evidence.append(Evidence(where, _gib(limit_mib)))
        if limit_mib < ram_mib:
            ram_mib, source = limit_mib, where
    gpus = case.compute_gpus
    if not gpus:
        yield skip(NODE, f"no GPU to share it: {_gib(ram_mib)} ({source})")
        return
    tolerance = case.limit(_NOMINAL_SHARE)
    each_gib = ram_mib / 1024 / len(gpus)
    floor_gib = case.limit(_FLOOR_GIB, gpus[0])
    memory_mib = max((known(gpu.memory_total_mib) or 0 for gpu in gpus), default=0)
    own_gib = memory_mib / 1024 * case.limit(_GPU_MEMORY_SHARE, gpus[0])
    shared = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    found = Found(
        f"{each_gib:.1f} GiB of RAM a GPU ({_gib(ram_mib)}, {source}, for {shared})", round(each_gib, 1), "GiB"
    )
    advice = (
        Advice("Give the job or container more memory, where a limit holds it down.", "cat /sys/fs/cgroup/memory.max"),
        Advice("Use fewer data loader workers and no pinned copies of the data set, or add RAM."),
    )
    held = f"the limit ({source}) holds it below the machine's {_gib(host.ram_mib)}" if source != "RAM" else None
    if each_gib < floor_gib * tolerance:
        expected = Expected(
            f"at least {floor_gib:g} GiB a GPU: {floor_gib * len(gpus):g} GiB for {shared}",
            ">=",
            floor_gib,
            "GiB",
            case.limit_source(_FLOOR_GIB, gpus[0]),
        )
        share = case.limit(_FAIL_SHARE, gpus[0])
        start_gib = memory_mib / 1024 * share if memory_mib else floor_gib * share
        judge = fail if each_gib < start_gib or expected.source == "configuration" else warn
        yield judge(NODE, found, expected, *evidence, likely=held or "too little RAM for so many GPUs", advice=advice)
    elif limit_unread:
        yield unread(NODE, f"{found.text}, but the memory limit of the job or container", limit_unread)
    elif used_up := _used_up(case, len(gpus), evidence):
        yield used_up
    elif each_gib < own_gib * tolerance:
        expected = Expected(
            f"at least the GPU's own memory, {own_gib:.0f} GiB",
            ">=",
            round(own_gib, 1),
            "GiB",
            case.limit_source(_GPU_MEMORY_SHARE, gpus[0]),
        )
        likely = held or "data loading, pinned buffers and checkpoints will compete for RAM"
        yield warn(NODE, found, expected, *evidence, likely=likely, advice=advice)
    else:
        yield ok(NODE, found, Expected(f"at least {floor_gib:g} GiB a GPU", ">=", floor_gib, "GiB"), *evidence)


def _used_up(case: Case, gpus: int, evidence: list[Evidence]) -> Finding | None:
    """The finding for RAM that is taken: by a job on the GPUs (warn), or by something that should be gone."""
    available = case.node.host.ram_available_mib
    if isinstance(available, Missing):
        return unread(NODE, "available RAM", available) if available.kind == "failed" else None
    limit = case.limit(_AVAILABLE_GIB)
    if available >= limit * 1024 * gpus:
        return None
    # from inside a container a job's processes do not show, but the memory that it holds does
    busy = any(
        (known(gpu.memory_used_mib) or 0) > 1024 or any("C" in process.kind for process in known(gpu.processes) or ())
        for gpu in case.node.gpus
    )
    text = f"{_size(available)} of RAM available for {gpus} GPU{'s' * (gpus > 1)}"
    return (warn if busy else fail)(
        NODE,
        Found(text, round(available / 1024 / gpus, 2), "GiB"),
        Expected(f"at least {limit:g} GiB a GPU", ">=", limit, "GiB", case.limit_source(_AVAILABLE_GIB)),
        *evidence,
        Evidence("MemAvailable", f"{available} MiB"),
        likely="the jobs on the GPUs use it" if busy else "a process left behind, files in /dev/shm, or huge pages",
        advice=[
            Advice(
                "See who holds it.",
                "ps -eo pid,user,rss,cmd --sort=-rss | head; df -h /dev/shm; grep Huge /proc/meminfo",
            ),
            "End what is left behind; else reboot the node.",
        ],
    )


_FAIL_CPUS = Limit(1, "CPUs a GPU", f"{_OURS}: one process a GPU, each with a launching thread", name="fail_cpus")
_WARN_CPUS = Limit(
    4, "CPUs a GPU", f"{_OURS}: launching thread, NCCL proxy thread, two data loader workers", name="warn_cpus"
)


@check(
    "host.cpu-per-gpu",
    title="There are enough CPUs for each GPU",
    needs_gpu=False,
    limits=(_FAIL_CPUS, _WARN_CPUS),
    explains=(Explains(("train.balance", "train.scaling"), anywhere=True),),
)
def cpu_per_gpu(case: Case) -> Iterator[Finding]:
    """Judge the CPUs this process may use, by affinity and by cgroup quota, whichever is less."""
    host = case.node.host
    affinity_unread = None
    if isinstance(host.cpus_usable, Missing):
        if isinstance(host.cpus_total, Missing):
            yield unread(NODE, "usable CPUs", host.cpus_usable)
            return
        usable, source = float(host.cpus_total), "CPUs of the machine; affinity not known"
        affinity_unread = _not_told(host.cpus_usable)
    else:
        usable, source = float(host.cpus_usable), "CPU affinity"
        if host.cpus_usable == known(host.cpus_total):
            source = "all CPUs of the machine"
    evidence = [Evidence("host", f"{usable:g} CPUs ({source}) of {known(host.cpus_total) or '?'}")]
    quota = known(host.cpu_quota)
    if quota is not None:
        where = known(host.cpu_quota_source) or "cgroup CPU quota"
        evidence.append(Evidence(where, f"{quota:g} CPUs"))
        if quota < usable:
            usable, source = quota, where
    gpus = case.compute_gpus
    if not gpus:
        yield skip(NODE, f"no GPU to share them: {usable:g} CPUs ({source})")
        return
    each = usable / len(gpus)
    shared = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    found = Found(f"{each:.3g} CPUs a GPU ({usable:g} for {shared}; {source})", round(each, 2), "CPUs")
    for limit, judge in ((_FAIL_CPUS, fail), (_WARN_CPUS, warn)):
        least = case.limit(limit, gpus[0])
        if each < least:
            source_of_limit = case.limit_source(limit, gpus[0])
            yield judge(
                NODE,
                found,
                Expected(f"at least {least:g} CPUs a GPU", ">=", least, "CPUs", source_of_limit),
                *evidence,
                likely="the job or container was given few CPUs" if "affinity" in source or quota else None,
                advice=(
                    Advice("Ask the scheduler for more CPUs for each GPU.", "srun --cpus-per-gpu=8 ..."),
                    Advice("In a container, raise the CPU limit.", "docker run --cpus=..."),
                ),
            )
            return
    for what, missing in (("CPU affinity", affinity_unread), ("CPU quota", _not_told(host.cpu_quota))):
        if missing:
            yield unread(NODE, f"{found.text}, but the {what}", missing)
            return
    yield ok(NODE, found, Expected(f"at least {case.limit(_WARN_CPUS, gpus[0]):g} CPUs a GPU"), *evidence)


def _not_told(limit: object) -> Missing | None:
    """A limit that was asked for in vain: it may be lower than all that is known, so nothing passes."""
    return limit if isinstance(limit, Missing) and limit.kind in ("failed", "denied") else None


_FAIL_WITHOUT_P2P_MIB = Limit(
    1024, "MiB", f"{_SHM}; without peer-to-peer all traffic between GPUs passes it", name="fail_without_p2p_mib"
)
_FAIL_PER_GPU_MIB = Limit(
    10, "MiB a GPU", "NCCL maps 9.6 MB a rank there, whatever the transport (NCCL issue 342)", name="fail_per_gpu_mib"
)
_WARN_PER_GPU_MIB = Limit(1024, "MiB a GPU", f"{_SHM}: 1 GiB a GPU", name="warn_per_gpu_mib")
_WARN_MOST_MIB = Limit(8192, "MiB", _SHM, name="warn_most_mib")


@check(
    "host.shm",
    title="/dev/shm is large enough for NCCL and data loaders",
    impact="costs",
    needs_gpu=False,
    limits=(_FAIL_WITHOUT_P2P_MIB, _FAIL_PER_GPU_MIB, _WARN_PER_GPU_MIB, _WARN_MOST_MIB),
    explains=(
        Explains(("collective.bandwidth", "train.scaling"), anywhere=True),
        Explains(("collective.*", "train.*", "strategy.*"), anywhere=True, found=ENDS),
    ),
)
def shared_memory(case: Case) -> Iterator[Finding]:
    """Fail where NCCL could not start, warn where data loaders would run out."""
    host = case.node.host
    if isinstance(host.shm_mib, Missing):
        yield unread(NODE, "/dev/shm", host.shm_mib)
        return
    count = len(case.compute_gpus)
    wanted_mib = min(case.limit(_WARN_PER_GPU_MIB) * max(count, 1), case.limit(_WARN_MOST_MIB))
    needed_mib = case.limit(_FAIL_PER_GPU_MIB) * count if count > 1 else 0.0
    through_shm = any(known(p.p2p_read) not in (None, "OK") and not known(p.nvlinks) for p in case.pairs)
    if through_shm:
        needed_mib = max(needed_mib, case.limit(_FAIL_WITHOUT_P2P_MIB))
    found = Found(f"/dev/shm is {_size(host.shm_mib)}", host.shm_mib, "MiB")
    evidence = (Evidence("statvfs /dev/shm", f"{host.shm_mib} MiB"),)
    likely = "docker and Kubernetes give a container 64 MiB unless told otherwise" if host.shm_mib <= 64 else None
    advice = (
        Advice("Docker:", f"docker run --ipc=host ...   # or --shm-size={max(1, round(wanted_mib / 1024))}g"),
        Advice('Kubernetes: mount an emptyDir with medium "Memory" at /dev/shm.'),
        Advice("On the machine itself:", f"mount -o remount,size={max(1, round(wanted_mib / 1024))}G /dev/shm"),
    )
    own_mib = case.limit(_FAIL_PER_GPU_MIB) * max(count, 1)
    free = host.shm_free_mib
    if isinstance(free, Missing) and free.kind == "failed":
        yield unread(NODE, "free space of /dev/shm", free)
    elif not isinstance(free, Missing) and free < own_mib <= host.shm_mib:
        # one GPU needs no NCCL, only its data loaders do
        yield (fail if count > 1 else warn)(
            NODE,
            Found(f"/dev/shm is {_size(host.shm_mib)}, and full: {free} MiB free", free, "MiB"),
            Expected(f"{own_mib:g} MiB free", ">=", own_mib, "MiB", case.limit_source(_FAIL_PER_GPU_MIB)),
            *evidence,
            Evidence("statvfs /dev/shm", f"{free} MiB free"),
            likely="files that jobs left behind when they were killed, or a job that runs",
            advice=[
                Advice("See whose they are; those that no process has open may go.", "ls -la /dev/shm; lsof /dev/shm")
            ],
        )
    elif host.shm_mib < needed_mib:
        why = "these GPUs have no peer-to-peer, so NCCL moves all data through it" if through_shm else "NCCL's own need"
        limit = _FAIL_WITHOUT_P2P_MIB if through_shm else _FAIL_PER_GPU_MIB
        text = f"at least {_size(needed_mib)}: {why}"
        expected = Expected(text, ">=", needed_mib, "MiB", case.limit_source(limit))
        yield fail(NODE, found, expected, *evidence, likely=likely, advice=advice)
    elif host.shm_mib < wanted_mib:
        text = f"at least {_size(wanted_mib)} for data loader workers"
        expected = Expected(text, ">=", wanted_mib, "MiB", case.limit_source(_WARN_PER_GPU_MIB))
        yield warn(NODE, found, expected, *evidence, likely=likely, advice=advice)
    else:
        yield ok(NODE, found, Expected(f"at least {_size(wanted_mib)}", ">=", wanted_mib, "MiB"), *evidence)


_MEMLOCK_KIB = Limit(
    16 * 1024 * 1024, "KiB", "AWS asks at least 16 GiB of lockable memory for RDMA", name="memlock_kib"
)
_OPEN_FILES = Limit(1024, "files", f"{_OURS}: the smallest limit that distributions ship", name="open_files")
_PROCESSES = Limit(4096, "processes", f"{_OURS}: 8 ranks with their loaders and thread pools", name="processes")


@check(
    "host.limits",
    title="The user limits leave room for training",
    needs_gpu=False,
    limits=(_MEMLOCK_KIB, _OPEN_FILES, _PROCESSES),
)
def user_limits(case: Case) -> Iterator[Finding]:
    """Warn about low limits; locked memory counts only where an RDMA port is active."""
    host = case.node.host
    yield _limit(case, _OPEN_FILES, "open files (ulimit -n)", host.open_files, "ulimit -n 65536")
    yield _limit(case, _PROCESSES, "processes (ulimit -u)", host.processes, "ulimit -u 65536")
    ports = known(case.node.network.rdma_ports)
    if ports is None:
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and the RDMA ports are not known")
    elif not any("ACTIVE" in (known(p.state) or "").upper() for p in ports):
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and no RDMA port is active")
    else:
        yield _limit(case, _MEMLOCK_KIB, "lockable memory (ulimit -l)", host.memlock_kib, "ulimit -l unlimited")


def _limit(case: Case, limit: Limit, what: str, value: int | Missing | None, command: str) -> Finding:
    if isinstance(value, Missing):
        return unread(NODE, what, value)
    least = case.limit(limit)
    unit = "KiB" if limit is _MEMLOCK_KIB else limit.name.replace("_", " ")
    if value is None:
        return ok(NODE, f"{what}: unlimited")
    found = Found(f"{what}: {value}" + (" KiB" if unit == "KiB" else ""), value, unit)
    expected = Expected(f"at least {least:.0f}", ">=", least, unit, case.limit_source(limit))
    evidence = Evidence("getrlimit", str(value))
    if value >= least:
        return ok(NODE, found, expected, evidence)
    likely = "a low limit of the shell, the service or the container"
    if limit is _MEMLOCK_KIB:
        likely += "; a process with CAP_IPC_LOCK (root) is not held by it"
    steps = (
        Advice("Raise it for this shell,", command),
        Advice("in /etc/security/limits.conf or the service's Limit... settings for good."),
    )
    return warn(NODE, found, expected, evidence, likely=likely, advice=steps)


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB"


def _size(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:,.0f} GiB" if mib >= 102400 else f"{mib / 1024:.3g} GiB"
