"""What NCCL takes of /dev/shm when it starts, from its sources (v2.18.1 to v2.30.7) and the node's settings."""

from __future__ import annotations

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.facts.model.missing import known

# proxyProgressInit (src/proxy.cc) maps one ncclProxyOpsPool a rank: MAX_OPS_PER_PEER * NCCL_MAX_LOCAL_RANKS *
# sizeof(ncclProxyOp), compiled from src/include/proxy.h of each release, and less than a page more.
# First version -> the three factors.
_POOLS: tuple[tuple[tuple[int, int], tuple[int, int, int]], ...] = (
    ((2, 28), (2048, 72, 232)),
    ((2, 26), (2048, 72, 224)),
    ((2, 25), (2048, 72, 216)),
    ((2, 24), (1024, 64, 216)),
    ((2, 23), (1024, 64, 160)),
    ((2, 21), (1024, 64, 112)),
    ((2, 20), (1024, 64, 88)),
    ((2, 18), (1024, 64, 64)),
)
# From 2.22 on a rank connects to its own net proxy, which maps the pool, only when it first uses a network
# (initTransportsRank in src/init.cc: not with `runtimeConn`, which needs the CUDA virtual memory API, "cuMem").
_CONNECTS_LATE = (2, 22)
_CUMEM_CUDA = (12, 0)  # ncclIsCuMemSupported in src/misc/cudawrap.cc
# From 2.24 on buffers between GPUs without peer-to-peer are cuMem host memory instead (ncclCuMemHostEnable, same file)
_HOST_MEMORY = (2, 24)
_HOST_MEMORY_CUDA = (12, 6)
# shmRecvSetup in src/transport/shm.cc: the receiver maps the buffers of all three protocols (524288 + 4915200 +
# 4194304 bytes) and a page, for each channel of its ring; NCCL makes at least two channels
_BUFFER_BYTES = 9_637_888
_CHANNELS = 2


class NcclSharedMemory(msgspec.Struct, frozen=True):
    """What each rank maps in /dev/shm, in MiB.

    `pool_mib`: the proxy's pool of operations; None if NCCL's version is not known or older than 2.18.
    `pool_at_start`: whether it is mapped whatever the job does; otherwise once a network is used or cuMem is off.
    `buffers_mib`: of a ring without peer-to-peer. `arithmetic`: where the pool's size comes from.
    """

    version: str | None
    pool_mib: float | None
    pool_at_start: bool
    buffers_mib: float
    buffers_certain: bool
    arithmetic: str

    def at_start_mib(self, ranks: int, *, peer_to_peer: bool) -> float:
        """What so many ranks certainly map on one node."""
        pool = self.pool_mib or 0.0 if self.pool_at_start else 0.0
        return ranks * (pool + (self.buffers_mib if not peer_to_peer and self.buffers_certain else 0.0))


def nccl_shared_memory(case: Case) -> NcclSharedMemory:
    """The need of this node's NCCL, by its version, the driver's CUDA version and NCCL's own variables."""
    text = known(case.node.software.nccl)
    version = _numbers(text)
    factors = next((factors for first, factors in _POOLS if version and version >= first), None)
    pool_bytes = factors[0] * factors[1] * factors[2] + 4096 if factors else None
    cumem = _cumem(case)
    host_memory = cumem is not False and version is not None and version >= _HOST_MEMORY
    host_memory &= _cuda(case) is None or (_cuda(case) or (0, 0)) >= _HOST_MEMORY_CUDA
    return NcclSharedMemory(
        version=text,
        pool_mib=pool_bytes / 2**20 if pool_bytes else None,
        pool_at_start=version is not None
        and (version < _CONNECTS_LATE or cumem is False or _is_off(case, "NCCL_RUNTIME_CONNECT")),
        buffers_mib=_CHANNELS * _BUFFER_BYTES / 2**20,
        buffers_certain=version is not None and not (host_memory and not _is_off(case, "NCCL_CUMEM_HOST_ENABLE")),
        arithmetic=" x ".join(map(str, factors)) + " bytes a rank (ncclProxyOpsPool)" if factors else "",
    )


def _cumem(case: Case) -> bool | None:
    """Whether NCCL uses CUDA's virtual memory API; None if only the driver of the day decides."""
    if _is_off(case, "NCCL_CUMEM_ENABLE"):
        return False
    cuda = _cuda(case)
    return None if cuda is None else cuda >= _CUMEM_CUDA


def _is_off(case: Case, name: str) -> bool:
    return (case.node.environment.get(name) or "").strip() == "0"


def _cuda(case: Case) -> tuple[int, int] | None:
    return _numbers(known(case.node.driver.cuda_version))


def _numbers(version: str | None) -> tuple[int, int] | None:
    """The first two numbers of a version.

    >>> _numbers("2.27.5")
    (2, 27)
    """
    parts = (version or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdecimal() and parts[1].isdecimal() else None
