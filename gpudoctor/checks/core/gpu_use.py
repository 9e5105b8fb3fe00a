"""Who uses a GPU, and which of these processes are harmless: one rule for every caller.

Harmless are programs that only draw (kind G), desktops that also compute a little (C+G), the MPS server, which
shares the GPU out but computes nothing itself, and monitoring. Clients of the MPS server are listed separately.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudoctor.facts.model.gpu import Gpu, GpuProcess, system_program
from gpudoctor.facts.model.missing import NOT_READ, Missing, known

UNSEEN_MIB = 2000  # an idle GPU shows at most the driver's own reserve, up to 1.5 GB with old drivers
UNSEEN_PCT = 20


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
    return use_of(gpu.processes, known(gpu.memory_used_mib), known(gpu.utilization.gpu_pct))


def use_of(processes: Sequence[GpuProcess] | Missing, used_mib: float | None, busy_pct: float | None) -> GpuUse:
    """The use of a GPU, from its process list, the memory in use and the utilization (None: not known)."""
    listed = () if isinstance(processes, Missing) else processes
    others = tuple(process for process in listed if not process.is_own and not harmless(process.kind, process.name))
    held_mib = sum(known(process.memory_mib) or 0 for process in listed)
    unlisted_mib = None if used_mib is None else max(0, round(used_mib - held_mib))
    unseen = None
    if isinstance(processes, Missing) and (processes.kind == "failed" or processes == NOT_READ):
        unseen = f"who uses it is not known: {processes.reason}"
    elif isinstance(processes, Missing) and unlisted_mib is None:
        unseen = "who uses it is not known: neither its processes nor its memory in use can be read"
    elif not others and ((unlisted_mib or 0) > UNSEEN_MIB or (busy_pct or 0) > UNSEEN_PCT):
        names = ", ".join(dict.fromkeys(known(process.name) or "a process" for process in listed))
        who = f"beside {names}" if names else "by a process that is not seen here"
        unseen = f"{busy_pct or 0:.0f} % busy, {unlisted_mib or 0} MiB in use {who}"
    return GpuUse(others, unlisted_mib, unseen)


def harmless(kind: str, name: str | Missing | None) -> bool:
    """Whether a process of this kind and name is harmless; one without a known name is not."""
    return kind == "G" or (isinstance(name, str) and system_program(name) is not None)
