"""host.limits: do the user limits leave room for training?"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.host.ram_per_gpu import OURS
from gpudoctor.checks.network.infiniband import carries_training
from gpudoctor.facts.model.missing import Missing, known

_MEMLOCK_KIB = Limit(
    16 * 1024 * 1024, "KiB", "AWS asks at least 16 GiB of lockable memory for RDMA", name="memlock_kib"
)
_OPEN_FILES = Limit(1024, "files", f"{OURS}: the smallest limit that distributions ship", name="open_files")
_PROCESSES = Limit(4096, "processes", f"{OURS}: 8 ranks with their loaders and thread pools", name="processes")


_IF_RDMA = "it matters only if this node trains over RDMA, which this text does not tell"


@check(
    "host.limits",
    title="The user limits leave room for training",
    needs_gpu=False,
    limits=(_MEMLOCK_KIB, _OPEN_FILES, _PROCESSES),
)
def user_limits(case: Case) -> Iterator[Finding]:
    """Warn about low limits; locked memory counts only if an RDMA port is, or may be, active."""
    host = case.node.host
    yield _limit(case, _OPEN_FILES, "open files (ulimit -n)", host.open_files, "ulimit -n 65536")
    yield _limit(case, _PROCESSES, "processes (ulimit -u)", host.processes, "ulimit -u 65536")
    ports = known(case.node.network.rdma_ports)
    if ports is None and case.node.source.kind == "capture" and known(host.memlock_kib) is not None:
        # which adapters there are is not in the text: a limit that RDMA could not live with is no pass
        finding = _limit(case, _MEMLOCK_KIB, "lockable memory (ulimit -l)", host.memlock_kib, "ulimit -l unlimited")
        yield finding if finding.likely is None else replace(finding, likely=f"{_IF_RDMA}: {finding.likely}")
    elif ports is None:
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and the RDMA ports are not known")
    elif not any(port.is_active for port in ports):
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and no RDMA port is active")
    elif not carries_training(case.node):
        yield skip(NODE, "locked memory (ulimit -l): matters for RDMA only, and the active ports are a few of Ethernet")
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
