"""host.cpu-per-gpu, host.limits: how many CPUs, files, processes and how much locked memory may this process use?"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.host.memory import OURS, not_told
from gpudoctor.checks.network.infiniband import carries_training
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.text.units import counted

_FAIL_CPUS = Limit(1, "CPUs a GPU", f"{OURS}: one process a GPU, each with a launching thread", name="fail_cpus")
_WARN_CPUS = Limit(
    4, "CPUs a GPU", f"{OURS}: launching thread, NCCL proxy thread, two data loader workers", name="warn_cpus"
)
_MEMLOCK_KIB = Limit(
    16 * 1024 * 1024, "KiB", "AWS asks at least 16 GiB of lockable memory for RDMA", name="memlock_kib"
)
_OPEN_FILES = Limit(1024, "files", f"{OURS}: the smallest limit that distributions ship", name="open_files")
_PROCESSES = Limit(4096, "processes", f"{OURS}: 8 ranks with their loaders and thread pools", name="processes")
_IF_RDMA = "it matters only if this node trains over RDMA, which is not known here"


@check(
    "host.cpu-per-gpu",
    title="There are enough CPUs for each GPU",
    needs_gpu=False,
    limits=(_FAIL_CPUS, _WARN_CPUS),
    explains=(Explains(("train.balance", "train.scaling"), anywhere=True),),
)
def cpu_per_gpu(case: Case) -> Iterator[Finding]:
    """Judge the CPUs that this process may use: the smaller of affinity and cgroup quota."""
    host = case.node.host
    affinity_unread = None
    if isinstance(host.cpus_usable, Missing):
        if isinstance(host.cpus_total, Missing):
            yield unread(NODE, "usable CPUs", host.cpus_usable)
            return
        usable, source = float(host.cpus_total), "CPUs of the machine; affinity not known"
        affinity_unread = not_told(host.cpus_usable)
    else:
        usable, source = float(host.cpus_usable), "CPU affinity"
        if host.cpus_usable == known(host.cpus_total):
            source = "all CPUs of the machine"
    evidence = [Evidence("host", f"{usable:g} CPUs ({source}) of {known(host.cpus_total) or '?'}")]
    quota = known(host.cpu_quota)
    if quota is not None:
        quota_source = known(host.cpu_quota_source) or "cgroup CPU quota"
        evidence.append(Evidence(quota_source, f"{quota:g} CPUs"))
        if quota < usable:
            usable, source = quota, quota_source
    gpus = case.compute_gpus
    if not gpus:
        yield skip(NODE, f"no GPU to share them: {usable:g} CPUs ({source})")
        return
    each = usable / len(gpus)
    found = Found(
        f"{each:.3g} CPUs a GPU ({usable:g} for {counted(len(gpus), 'GPU')}; {source})", round(each, 2), "CPUs"
    )
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
    for what, missing in (("CPU affinity", affinity_unread), ("CPU quota", not_told(host.cpu_quota))):
        if missing:
            yield unread(NODE, f"{found.text}, but the {what}", missing)
            return
    yield ok(NODE, found, Expected(f"at least {case.limit(_WARN_CPUS, gpus[0]):g} CPUs a GPU"), *evidence)


@check(
    "host.limits",
    title="The user limits leave room for training",
    needs_gpu=False,
    limits=(_MEMLOCK_KIB, _OPEN_FILES, _PROCESSES),
)
def user_limits(case: Case) -> Iterator[Finding]:
    """Warn about low limits; locked memory counts only if an RDMA port is, or may be, active."""
    host = case.node.host
    lockable = _limit(case, _MEMLOCK_KIB, "lockable memory (ulimit -l)", host.memlock_kib, "ulimit -l unlimited")
    yield _limit(case, _OPEN_FILES, "open files (ulimit -n)", host.open_files, "ulimit -n 65536")
    yield _limit(case, _PROCESSES, "processes (ulimit -u)", host.processes, "ulimit -u 65536")
    ports = known(case.node.network.rdma_ports)
    if ports is None and (held_kib := known(host.memlock_kib)) is not None:
        # which adapters there are is not known: a limit that RDMA could not live with is no pass
        if lockable.likely is not None and not _may_use_rdma(case.node):
            yield skip(
                NODE, f"locked memory (ulimit -l), {held_kib} KiB: matters for RDMA only, of which nothing is said"
            )
        else:
            yield lockable if lockable.likely is None else replace(lockable, likely=f"{_IF_RDMA}: {lockable.likely}")
    elif ports is None:
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and the RDMA ports are not known")
    elif not any(port.is_active for port in ports):
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and no RDMA port is active")
    elif not carries_training(case.node):
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and the active ports are a few of Ethernet")
    else:
        yield lockable


def _may_use_rdma(node: Node) -> bool:
    """Whether a text that does not list its ports may be of a node with RDMA: any but of one GPU without a sign."""
    events = known(node.kernel_log.host_events) or ()
    variables = known(node.environment.variables) or ()
    return (
        len(node.gpus) != 1
        or known(node.network.peermem_loaded) is True
        or any(event.kind.startswith("nic-") for event in events)
        or any(variable.name.startswith(("NCCL_IB", "UCX_", "FI_")) for variable in variables)
    )


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
