"""Has the paths read that training reads, if a chosen check wants it: on this machine, GPUs or not."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping

import msgspec

from gpudoctor.checks.core.registry import LEVELS, Check, Level
from gpudoctor.facts.model.measured_storage import StorageRead
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.load.devices import LoadRequest

READ = "storage.read"
_FEW_READERS = (1, 4)
# more data loader workers than that nobody starts on a node, and each is a process here
_MOST_READERS = 64


def with_storage(
    node: Node,
    measured: Measurements,
    checks: tuple[Check, ...],
    level: Level,
    request: LoadRequest,
    progress: Callable[[str], None] | None,
    environ: Mapping[str, str] = os.environ,
) -> Measurements:
    """The measurements with what each path of `--data` gave, without any a file in TMPDIR; else with why not."""
    if not any(check.id == READ and LEVELS.index(check.level) <= LEVELS.index(level) for check in checks):
        return measured
    if node.source.kind != "live" and request.backend != "gloo":
        why = Missing("the storage of this machine says nothing of another node; --backend gloo measures here")
        return msgspec.structs.replace(measured, not_run=measured.not_run | {"storage": why})
    from gpudoctor.probes.storage.measure import PathToRead, read_paths

    silent = _silent_paths(node)
    wanted = [PathToRead(path) for path in request.data]
    if not request.data:
        wanted = [PathToRead(os.path.abspath(environ.get("TMPDIR") or "/tmp"), own_file=True)]  # noqa: PTH100
    reads = read_paths([each for each in wanted if each.path not in silent], _readers(node), progress)
    lost = (StorageRead(each.path, each.own_file, failure=silent[each.path]) for each in wanted if each.path in silent)
    if progress is not None:
        progress("")
    return msgspec.structs.replace(measured, storage=(*reads, *lost))


def _readers(node: Node) -> tuple[int, ...]:
    """1, 4, and as many as there are CPUs for them, ascending."""
    live = node.source.kind == "live"
    cpus = known(node.host.cpus_usable) if live else None
    usable = len(os.sched_getaffinity(0)) if cpus is None else cpus
    quota = known(node.host.cpu_quota) if live else None
    usable = usable if quota is None else min(usable, math.ceil(quota))
    return tuple(sorted({*_FEW_READERS, min(max(usable, 1), _MOST_READERS)}))


def _silent_paths(node: Node) -> dict[str, Missing]:
    """The paths on mounts that do not answer: to read there would only be one more process that hangs."""
    found: dict[str, Missing] = {}
    for mount in known(node.storage.mounts) or ():
        if node.source.kind == "live" and mount.error is not None:
            words = mount.error.reason if isinstance(mount.error, Missing) else f"it answers {mount.error}"
            kind = mount.error.kind if isinstance(mount.error, Missing) else "failed"
            found |= {path.path: Missing(f"{words} (see storage.mount)", kind) for path in mount.paths}
    return found
