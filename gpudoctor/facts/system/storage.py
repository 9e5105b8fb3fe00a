"""The file systems that training uses: type, free space, and the disks behind them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.storage import Storage, StorageClass, StorageDevice, StorageMount, StoragePath
from gpudoctor.facts.system.mounts import RAM_DISK, Mount, mount_of, read_devices, read_mounts, without_escapes
from gpudoctor.facts.system.path_status import PathQuestion, PathStatus
from gpudoctor.facts.system.sysfs import ROOT, AnyPath, key_values, present, read_text
from gpudoctor.lazy import lazy_pattern

DATA = "--data"
WORKING_DIRECTORY = "working directory"
# where programs write, and where data sets and models are stored
_VARIABLES = (
    *("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME"),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "SLURM_TMPDIR", "SCRATCH"),
)
_CLASSES: dict[str, StorageClass] = {
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs"), "network"),
    **dict.fromkeys(("lustre", "gpfs", "beegfs", "fhgfs", "wekafs", "ceph", "fuse.ceph-fuse", "fuse.glusterfs",
                     "panfs", "pvfs2", "fuse.daos"), "parallel"),
    **dict.fromkeys(("fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.mountpoint-s3", "fuse.goofys", "fuse.blobfuse2",
                     "fuse.rclone", "fuse.geesefs"), "object"),
    **dict.fromkeys(("overlay", "aufs", "fuse.fuse-overlayfs"), "overlay"),
    **dict.fromkeys(("tmpfs", "ramfs"), "memory"),
}  # fmt: skip
_OBJECT_SOURCES = lazy_pattern(r"(?i)mountpoint-s3|s3fs|gcsfuse|juicefs|goofys|blobfuse2|rclone|geesefs")
_LAYERS = ("lowerdir", "upperdir", "workdir", "datadir")  # long, and of no use in a report
_MAX_OPTIONS, _MAX_OPTION = 40, 120
_COMPAT = lazy_pattern(r'"allow_compat_mode"\s*:\s*(true|false)')
# errors of a mount whose server, disk or process is lost; other errors concern only the path
_BROKEN = frozenset((
    errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT,
    errno.ECONNREFUSED, errno.ECONNABORTED, errno.ECONNRESET, errno.EREMOTEIO, errno.ENODEV, errno.ENXIO, errno.EUCLEAN,
))  # fmt: skip
_AT_BOOT = ("noauto", "x-systemd.automount")


class StorageReader:
    """Reads the facts of storage: the query for the paths starts at once, and `read` waits for it.

    `data` are absolute paths that the user named. To be used in a `with` block, which ends the query's process.
    """

    def __init__(self, root: AnyPath, environ: Mapping[str, str], data: Sequence[str] = ()) -> None:
        self._root = root
        # without a mount table the answers could not be used
        has_table = not isinstance(read_mounts(root), Missing)
        self._roles = _paths_of_interest(environ, data) if has_table else {}
        prefix = "" if os.fspath(root) == ROOT else str(root)
        # it may be on a dead mount too, as the user chose it
        self._config = environ.get("CUFILE_ENV_PATH_JSON") or "/etc/cufile.json"
        config = f"{prefix}/{self._config.lstrip('/')}"
        self._question = PathQuestion([*(prefix + path for path in self._roles), config])

    def __enter__(self) -> StorageReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._question.close()

    def read(self) -> Storage:
        """The facts; those of a path that does not answer within its deadline are Missing."""
        *answers, config = self._question.answers()
        mounts = read_mounts(self._root)  # again: the query may have triggered automounts
        return Storage(
            mounts=mounts if isinstance(mounts, Missing) else self._of_paths(mounts, tuple(answers)),
            page_cache_bytes=_page_cache_bytes(self._root),
            nvidia_fs_loaded=present(self._root / "sys/module/nvidia_fs"),
            **self._gpudirect(config),
        )

    def _gpudirect(self, status: PathStatus | Missing) -> dict[str, Any]:
        """The leaves about the file that configures cuFile: opened only if it is a file whose mount answers."""
        config = self._config
        if isinstance(status, Missing):
            return dict.fromkeys(("cufile_config", "cufile_compat_mode"), status)
        if status.error is None and status.kind != "file":
            why = Missing(f"{config} is a {status.kind}, not a file", "failed")
            return {"cufile_config": config, "cufile_compat_mode": why}
        return {
            "cufile_config": config if status.error is None else Missing(f"{config}: not there"),
            "cufile_compat_mode": _compat_mode(self._root / config.lstrip("/")),
        }

    def _of_paths(
        self, mounts: tuple[Mount, ...], answers: tuple[PathStatus | Missing, ...]
    ) -> tuple[StorageMount, ...]:
        declared = tuple(_declared_mounts(self._root))
        points = {mount.point for mount in mounts}
        found: dict[object, StorageMount] = {}
        for (path, roles), status in zip(self._roles.items(), answers, strict=True):
            where = self._resolved(path, status)
            mount = mount_of(where, mounts)
            if mount is None:
                continue
            declared_above = (p for p in declared if p not in points and _lies_below(path, p, mount.point))
            own = StoragePath(
                path=_text(path),
                roles=roles,
                is_mount=status if isinstance(status, Missing) else where == mount.point and status.error is None,
                writable=status if isinstance(status, Missing) else status.writable,
                not_mounted=next(declared_above, None),
            )
            held = self._held(mount, status)
            # a project quota shows as less space below a folder: keep it apart
            key = (mount.point, held.total_bytes, held.error)
            held = found.get(key, held)
            found[key] = replace(held, paths=(*held.paths, own))
        return tuple(found.values())

    def _resolved(self, path: str, status: PathStatus | Missing) -> str:
        if isinstance(status, Missing) or not status.resolved:
            return path
        resolved = status.resolved
        root = "" if os.fspath(self._root) == ROOT else os.path.realpath(self._root)
        return resolved[len(root) :] or "/"

    def _held(self, mount: Mount, status: PathStatus | Missing) -> StorageMount:
        devices = read_devices(mount, self._root)
        return StorageMount(
            point=mount.point,
            fs_type=mount.fs_type,
            storage_class=_storage_class(mount, known(devices) or ()),
            source=mount.source,
            options=_options(mount),
            read_only="ro" in mount.options,
            system_read_only="ro" in mount.system_options,
            devices=devices,
            **_space(status),
        )


def _paths_of_interest(environ: Mapping[str, str], data: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Path -> its roles; the paths that the user named come first."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(data, (DATA,))
    named = [(WORKING_DIRECTORY, _working_directory()), *((name, environ.get(name, "")) for name in _VARIABLES)]
    if not environ.get("TMPDIR"):
        named.append(("TMPDIR", "/tmp"))
    for role, path in named:
        if os.path.isabs(path) and "\0" not in path:
            path = os.path.normpath(path)
            found[path] = (*found.get(path, ()), role)
    return found


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _space(status: PathStatus | Missing) -> dict[str, Any]:
    if isinstance(status, Missing):
        return dict.fromkeys(("error", "total_bytes", "free_bytes", "inodes", "inodes_free"), status)
    if status.error not in (None, errno.ENOENT):
        text = f"{os.strerror(status.error)} ({errno.errorcode.get(status.error, status.error)})"
        broken = status.error in _BROKEN
        why = Missing(text, "failed" if broken else "denied")
        return {
            **dict.fromkeys(("total_bytes", "free_bytes", "inodes", "inodes_free"), why),
            "error": text if broken else why,
        }
    untold = Missing("the file system tells no size", "unsupported")
    return {
        "error": None,
        "total_bytes": status.total_bytes or untold,
        "free_bytes": status.free_bytes if status.total_bytes else untold,
        "inodes": status.inodes or None,
        "inodes_free": status.inodes_free
        if status.inodes
        else Missing("it has no fixed number of them", "unsupported"),
    }


def _storage_class(mount: Mount, devices: Sequence[StorageDevice]) -> StorageClass:
    if (by_type := _CLASSES.get(mount.fs_type)) is not None:
        return by_type
    if mount.fs_type.startswith("fuse") and mount.fs_type != "fuseblk":
        return "object" if _OBJECT_SOURCES.search(mount.source) else "fuse"
    if len(devices) > 1:
        return "raid"
    if devices and RAM_DISK.fullmatch(devices[0].name):
        return "memory"
    if devices:
        return "nvme" if devices[0].name.startswith("nvme") else "disk"
    return "other"


def _options(mount: Mount) -> tuple[str, ...]:
    every = dict.fromkeys((*mount.options, *mount.system_options))
    retained = [option[:_MAX_OPTION] for option in every if option.partition("=")[0].rstrip("+") not in _LAYERS]
    return tuple(retained[:_MAX_OPTIONS])


def _declared_mounts(root: AnyPath) -> Iterator[str]:
    """Yield the mount points in /etc/fstab that are mounted at boot, without the root."""
    for line in (known(read_text(root / "etc/fstab")) or "").splitlines():
        fields = line.split()
        if len(fields) < 4 or line.lstrip().startswith("#") or fields[2] == "swap":
            continue
        point = without_escapes(fields[1]).rstrip("/")
        if point.startswith("/") and not set(fields[3].split(",")) & set(_AT_BOOT):
            yield point


def _lies_below(path: str, point: str, mounted: str) -> bool:
    """Whether a path is at or below a declared mount point that is itself below the mount the path is on."""
    return (path == point or path.startswith(f"{point}/")) and len(point) > len(mounted.rstrip("/"))


def _page_cache_bytes(root: AnyPath) -> int | Missing:
    text = read_text(root / "proc/meminfo")
    if isinstance(text, Missing):
        return text
    number, _, unit = key_values(text).get("Cached", "").partition(" ")
    return int(number) * 1024 if number.isdecimal() and unit == "kB" else Missing("meminfo has no Cached", "failed")


def _compat_mode(config: AnyPath) -> bool | Missing:
    text = read_text(config)
    if isinstance(text, Missing):
        return text
    # JSON with comments, which JSON parsers reject: drop comment lines and search
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("//"))
    reported = _COMPAT.search("\n".join(lines))
    return reported[1] == "true" if reported else Missing("the file says nothing of allow_compat_mode", "absent")


def _text(path: str) -> str:
    """Replace lone surrogates (bytes that are not UTF-8), which JSON cannot hold."""
    return path.encode("utf-8", "replace").decode()
