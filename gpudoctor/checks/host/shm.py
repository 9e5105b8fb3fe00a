"""host.shm: is /dev/shm large enough for NCCL and data loaders?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import first_unread
from gpudoctor.checks.core.explains import ENDS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.host.ram_per_gpu import size
from gpudoctor.facts.model.missing import Missing, known

_SHM = "NCCL issues 290 and 342 (docker's 64 MiB); AMD Primus preflight asks 8 GiB for 8 GPUs"
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
    """Fail if NCCL could not start, warn if data loaders would run out of it."""
    host, count = case.node.host, len(case.compute_gpus)
    if isinstance(host.shm_mib, Missing):
        yield unread(NODE, "/dev/shm", host.shm_mib)
        return
    wanted_mib = min(case.limit(_WARN_PER_GPU_MIB) * max(count, 1), case.limit(_WARN_MOST_MIB))
    through_shm = any(known(p.p2p_read) not in (None, "OK") and not known(p.nvlinks) for p in case.pairs)
    needed_mib = case.limit(_FAIL_PER_GPU_MIB) * count if count > 1 else 0.0
    if through_shm:
        needed_mib = max(needed_mib, case.limit(_FAIL_WITHOUT_P2P_MIB))
    found = Found(f"/dev/shm is {size(host.shm_mib)}", host.shm_mib, "MiB")
    evidence = Evidence("statvfs /dev/shm", f"{host.shm_mib} MiB")
    if finding := first_unread(NODE, ("free space of /dev/shm", host.shm_free_mib)) or _full(
        case, host.shm_mib, evidence
    ):
        yield finding
    elif host.shm_mib < needed_mib:
        why = "these GPUs have no peer-to-peer, so NCCL moves all data through it" if through_shm else "NCCL's own need"
        source = case.limit_source(_FAIL_WITHOUT_P2P_MIB if through_shm else _FAIL_PER_GPU_MIB)
        expected = Expected(f"at least {size(needed_mib)}: {why}", ">=", needed_mib, "MiB", source)
        yield fail(NODE, found, expected, evidence, likely=_likely(host.shm_mib), advice=_larger(wanted_mib))
    elif host.shm_mib < wanted_mib:
        text, source = f"at least {size(wanted_mib)} for data loader workers", case.limit_source(_WARN_PER_GPU_MIB)
        expected = Expected(text, ">=", wanted_mib, "MiB", source)
        yield warn(NODE, found, expected, evidence, likely=_likely(host.shm_mib), advice=_larger(wanted_mib))
    else:
        yield ok(NODE, found, Expected(f"at least {size(wanted_mib)}", ">=", wanted_mib, "MiB"), evidence)


def _full(case: Case, shm_mib: int, evidence: Evidence) -> Finding | None:
    """A finding if /dev/shm would be large enough for NCCL, but too little of it is free."""
    count, free = len(case.compute_gpus), known(case.node.host.shm_free_mib)
    own_mib = case.limit(_FAIL_PER_GPU_MIB) * max(count, 1)
    if free is None or not free < own_mib <= shm_mib:
        return None
    # one GPU needs no NCCL; only its data loaders use /dev/shm
    return (fail if count > 1 else warn)(
        NODE,
        Found(f"/dev/shm is {size(shm_mib)}, and full: {free} MiB free", free, "MiB"),
        Expected(f"{own_mib:g} MiB free", ">=", own_mib, "MiB", case.limit_source(_FAIL_PER_GPU_MIB)),
        evidence,
        Evidence("statvfs /dev/shm", f"{free} MiB free"),
        likely="files that jobs left behind when they were killed, or a job that runs",
        advice=[Advice("See whose they are; those that no process has open may go.", "ls -la /dev/shm; lsof /dev/shm")],
    )


def _likely(shm_mib: int) -> str | None:
    return "docker and Kubernetes give a container 64 MiB unless told otherwise" if shm_mib <= 64 else None


def _larger(wanted_mib: float) -> tuple[Advice, ...]:
    wanted_gib = max(1, round(wanted_mib / 1024))
    return (
        Advice("Docker:", f"docker run --ipc=host ...   # or --shm-size={wanted_gib}g"),
        Advice('Kubernetes: mount an emptyDir with medium "Memory" at /dev/shm.'),
        Advice("On the machine itself:", f"mount -o remount,size={wanted_gib}G /dev/shm"),
    )
