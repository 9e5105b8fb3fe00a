"""The paths that training reads: which are refused, and reading them if a check needs it."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Mapping

import msgspec

from gpudoctor.api.load.request import LoadRequest
from gpudoctor.checks.core.registry import Check, Level
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measured_hardware import StorageRead
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.system.mounts import PSEUDO, Mount, mount_of, read_mounts
from gpudoctor.facts.system.path_status import PathStatus, ask_paths

# errors of a wrong path; other errors come from a broken mount, and are judged by a check
_WRONG_NAME = {
    errno.ENOENT: "is not there",
    errno.ENOTDIR: "is not there",
    errno.ENAMETOOLONG: "is too long for a path",
    errno.ELOOP: "is a loop of symbolic links",
    errno.EINVAL: "is no path",
    errno.EACCES: "may not be read by this user",
    errno.EPERM: "may not be read by this user",
}
READ = "storage.read"
_FEW_READERS = (1, 4)
# more than the usual number of data loader workers on a node; each is a process here
_MOST_READERS = 64


def refuse_data(request: LoadRequest, *, elsewhere: bool) -> None:
    """Raise UserError, one line, for `--data` if the check is of another node (`elsewhere`), or if no data can be read.

    That is a path that does not exist, may not be read by this user, or is neither file nor folder; a kernel file
    (/proc, /sys); a file of 0 bytes. A mount that is broken or does not answer is not refused: that is a finding.
    """
    if not request.data:
        return
    if elsewhere and request.backend != "gloo":
        raise UserError(
            f"--data {request.data[0]}: that is a path of this machine, and --node names another; "
            "--backend gloo measures here"
        )
    answers = ask_paths(request.data)
    mounts = read_mounts()  # afterwards: the query may have triggered automounts
    for path, status in zip(request.data, answers, strict=True):
        if isinstance(status, PathStatus) and (why := _why_not(status, mounts)) is not None:
            raise UserError(f"--data {path}: {why}")


def _why_not(status: PathStatus, mounts: tuple[Mount, ...] | Missing) -> str | None:
    if status.error is not None:
        return _WRONG_NAME.get(status.error)
    if status.kind not in ("file", "folder"):
        return f"is a {status.kind}; a folder of files, or a file, is wanted"
    if not status.readable:
        return "may not be read by this user"
    mount = None if isinstance(mounts, Missing) else mount_of(status.resolved, mounts)
    if mount is not None and mount.fs_type in PSEUDO:
        return f"is the kernel's own ({mount.fs_type}), no storage; a folder of files, or a file, is wanted"
    if status.kind == "file" and status.size_bytes == 0:
        return "is a file of 0 bytes: there is nothing to read"
    return None


def with_storage(
    node: Node,
    measured: Measurements,
    checks: tuple[Check, ...],
    level: Level,
    request: LoadRequest,
    progress: Callable[[str], None] | None,
    environ: Mapping[str, str] = os.environ,
) -> Measurements:
    """The measurements with read rates of each path of `--data`, or of a file in TMPDIR; or with why there are none."""
    if not any(check.id == READ and check.runs_at(level) for check in checks):
        return measured
    if node.source.kind != "live" and request.backend != "gloo":
        why = Missing("the storage of this machine says nothing of another node; --backend gloo measures here")
        return msgspec.structs.replace(measured, not_run=measured.not_run | {"storage": why})
    from gpudoctor.probes.storage.measure import read_paths

    silent = _silent_paths(node)
    wanted = [StorageRead(path) for path in request.data]
    if not request.data:
        wanted = [StorageRead(os.path.abspath(environ.get("TMPDIR") or "/tmp"), own_file=True)]  # noqa: PTH100
    reads = read_paths([each for each in wanted if each.path not in silent], _readers(node), progress)
    lost = (msgspec.structs.replace(each, failure=silent[each.path]) for each in wanted if each.path in silent)
    if progress is not None:
        progress("")
    return msgspec.structs.replace(measured, storage=(*reads, *lost))


def _readers(node: Node) -> tuple[int, ...]:
    """The numbers of readers to measure, ascending: 1, 4, and one per usable CPU."""
    live = node.source.kind == "live"
    cpus = known(node.host.cpus_usable) if live else None
    usable = len(os.sched_getaffinity(0)) if cpus is None else cpus
    quota = known(node.host.cpu_quota) if live else None
    usable = usable if quota is None else min(usable, math.ceil(quota))
    return tuple(sorted({*_FEW_READERS, min(max(usable, 1), _MOST_READERS)}))


def _silent_paths(node: Node) -> dict[str, Missing]:
    """The paths on mounts that do not answer or are broken: a process that reads there would hang too."""
    found: dict[str, Missing] = {}
    for mount in known(node.storage.mounts) or ():
        if node.source.kind == "live" and mount.error is not None:
            text = mount.error.reason if isinstance(mount.error, Missing) else f"it answers {mount.error}"
            kind = mount.error.kind if isinstance(mount.error, Missing) else "failed"
            found |= {path.path: Missing(f"{text} (see storage.mount)", kind) for path in mount.paths}
    return found
