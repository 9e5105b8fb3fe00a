"""host.shm: is /dev/shm large enough for what NCCL maps there when it starts, and for data loaders?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import ENDS, TOGETHER, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import first_unread, unread
from gpudoctor.checks.host.memory import size
from gpudoctor.checks.host.nccl_shared_memory import NcclSharedMemory, nccl_shared_memory
from gpudoctor.facts.model.missing import Missing, known

_SHM = "NCCL issues 290 and 342 (docker's 64 MiB); AMD Primus preflight asks 8 GiB for 8 GPUs"
_SOURCE = "NCCL, src/proxy.cc, src/init.cc and src/transport/shm.cc"
_FLOOR_PER_GPU_MIB = Limit(
    1,
    "MiB a GPU",
    "gpudoctor's own choice: semaphores of data loaders and NCCL's records for NVLS need some room",
    name="fail_per_gpu_mib",
)
_WARN_PER_GPU_MIB = Limit(1024, "MiB a GPU", f"{_SHM}: 1 GiB a GPU", name="warn_per_gpu_mib")
_WARN_MOST_MIB = Limit(8192, "MiB", _SHM, name="warn_most_mib")


@check(
    "host.shm",
    title="/dev/shm is large enough for NCCL and data loaders",
    impact="costs",
    needs_gpu=False,
    limits=(_FLOOR_PER_GPU_MIB, _WARN_PER_GPU_MIB, _WARN_MOST_MIB),
    explains=(
        Explains(("collective.bandwidth", "train.scaling"), anywhere=True),
        Explains(TOGETHER, anywhere=True, found=ENDS),
    ),
)
def shared_memory(case: Case) -> Iterator[Finding]:
    """Fail if NCCL certainly could not start; warn if a job may need more, or data loaders would run out of it."""
    host, ranks = case.node.host, len(case.compute_gpus)
    if isinstance(host.shm_mib, Missing):
        yield unread(NODE, "/dev/shm", host.shm_mib)
        return
    if finding := first_unread(NODE, ("free space of /dev/shm", host.shm_free_mib)):
        yield finding
        return
    nccl, free_mib = nccl_shared_memory(case), known(host.shm_free_mib)
    enough_mib = min(case.limit(_WARN_PER_GPU_MIB) * max(ranks, 1), case.limit(_WARN_MOST_MIB))
    need_mib = _certain_need(case, nccl, ranks)
    free = "" if free_mib is None else f", {free_mib} MiB free"
    evidence = [Evidence("statvfs /dev/shm", f"{host.shm_mib} MiB{free}")]
    if nccl.pool_mib is not None:
        arithmetic = f"{nccl.arithmetic}: {nccl.pool_mib:.1f} MiB"
        evidence.append(Evidence(f"{_what(nccl)}, src/include/proxy.h", arithmetic))
    found = Found(f"/dev/shm is {size(host.shm_mib)}", host.shm_mib, "MiB")
    if host.shm_mib < need_mib and ranks > 1:
        text = f"at least {size(need_mib)}: {_what(nccl)} maps that for {ranks} ranks"
        expected = Expected(text, ">=", round(need_mib, 1), "MiB", _SOURCE)
        yield fail(NODE, found, expected, *evidence, likely=_likely(host.shm_mib), advice=_larger(enough_mib))
    elif free_mib is not None and free_mib < max(need_mib, case.limit(_FLOOR_PER_GPU_MIB) * max(ranks, 1)):
        yield _full(case, host.shm_mib, free_mib, ranks, need_mib, evidence)
    elif host.shm_mib < enough_mib:
        text = f"at least {size(enough_mib)} for data loader workers{_maybe(nccl, ranks, host.shm_mib)}"
        expected = Expected(text, ">=", enough_mib, "MiB", case.limit_source(_WARN_PER_GPU_MIB))
        yield warn(NODE, found, expected, *evidence, likely=_likely(host.shm_mib), advice=_larger(enough_mib))
    else:
        yield ok(NODE, found, Expected(f"at least {size(enough_mib)}", ">=", enough_mib, "MiB"), evidence[0])


def _certain_need(case: Case, nccl: NcclSharedMemory, ranks: int) -> float:
    """MiB that the ranks of this node map there whatever the job does; 0 for one rank."""
    if ranks < 2:
        return 0.0
    through_shm = any(known(p.p2p_read) not in (None, "OK") and not known(p.nvlinks) for p in case.pairs)
    return nccl.at_start_mib(ranks, peer_to_peer=not through_shm)


def _what(nccl: NcclSharedMemory) -> str:
    return f"NCCL {nccl.version}" if nccl.version else "NCCL"


def _maybe(nccl: NcclSharedMemory, ranks: int, shm_mib: int) -> str:
    """What jobs of another kind would map as well, if there is no room for it."""
    if nccl.pool_mib is None or ranks < 2 or nccl.pool_mib * ranks <= shm_mib:
        return ""
    when = "once a job uses a network, or with NCCL_CUMEM_ENABLE=0, which vLLM, SGLang and RLHF frameworks set"
    return f"; and {_what(nccl)} maps {size(nccl.pool_mib * ranks)} for {ranks} ranks {when}"


def _full(case: Case, shm_mib: int, free_mib: int, ranks: int, need_mib: float, evidence: list[Evidence]) -> Finding:
    """The finding if /dev/shm would be large enough, but too little of it is free."""
    least_mib = max(need_mib, case.limit(_FLOOR_PER_GPU_MIB) * max(ranks, 1))
    source = _SOURCE if need_mib == least_mib else case.limit_source(_FLOOR_PER_GPU_MIB)
    # one GPU needs no NCCL; only its data loaders use /dev/shm
    return (fail if ranks > 1 else warn)(
        NODE,
        Found(f"/dev/shm is {size(shm_mib)}, and full: {free_mib} MiB free", free_mib, "MiB"),
        Expected(f"{size(least_mib)} free", ">=", round(least_mib, 1), "MiB", source),
        *evidence,
        likely="files that jobs left behind when they were killed, or a job that runs",
        advice=[Advice("See whose they are; those that no process has open may go.", "ls -la /dev/shm; lsof /dev/shm")],
    )


def _likely(shm_mib: int) -> str | None:
    return "docker and Kubernetes give a container 64 MiB unless told otherwise" if shm_mib <= 64 else None


def _larger(enough_mib: float) -> tuple[Advice, ...]:
    enough_gib = max(1, round(enough_mib / 1024))
    return (
        Advice("Docker:", f"docker run --ipc=host ...   # or --shm-size={enough_gib}g"),
        Advice('Kubernetes: mount an emptyDir with medium "Memory" at /dev/shm.'),
        Advice("On the machine itself:", f"mount -o remount,size={enough_gib}G /dev/shm"),
    )
