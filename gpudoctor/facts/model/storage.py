"""The storage of a training: file systems, the devices behind them, and GPUDirect Storage. Data only."""

from typing import Literal

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing

StorageClass = Literal[
    "nvme",  # local, and on the PCIe bus
    "disk",  # local: SATA, SAS, a virtual machine's disk
    "raid",  # several local disks as one: md, device mapper, ZFS, btrfs over several
    "network",  # one server: NFS, SMB
    "parallel",  # many servers: Lustre (FSx), GPFS, BeeGFS, WekaFS, CephFS
    "object",  # FUSE in front of an object store: s3fs, gcsfuse, JuiceFS, Mountpoint
    "fuse",  # another file system in user space
    "overlay",  # the layers of a container image and its writable layer
    "memory",  # tmpfs
    "other",
]


class StorageDevice(Fact, frozen=True):
    """A disk behind a file system, as in /sys/block. Widths in lanes and speeds in GT/s of an NVMe disk's own link.

    `slot_*` are those of the bridge above it. `controller_state` is the NVMe controller's: "live" if it works.
    """

    name: str
    rotational: bool | Missing = NOT_READ
    scheduler: str | Missing = NOT_READ
    bus_id: str | Missing = NOT_READ
    controller_state: str | Missing = NOT_READ
    width: int | Missing = NOT_READ
    max_width: int | Missing = NOT_READ
    speed_gt_s: float | Missing = NOT_READ
    max_speed_gt_s: float | Missing = NOT_READ
    slot_max_width: int | Missing = NOT_READ
    slot_max_speed_gt_s: float | Missing = NOT_READ


class StoragePath(Fact, frozen=True):
    """A path that training uses. `roles`: what it is used for: "--data", "working directory", HOME, HF_HOME ...

    `is_mount`: it is the top of its file system, not a folder in it. `not_mounted`: a mount point at or above it that
    /etc/fstab declares and that is not mounted.
    """

    path: str
    roles: tuple[str, ...] = ()
    is_mount: bool | Missing = NOT_READ
    writable: bool | Missing = NOT_READ
    not_mounted: str | None = None


class StorageMount(Fact, frozen=True):
    """One file system, and the paths of interest on it that share the same space.

    Space in bytes and inodes is what statvfs returns to this user; `inodes` is None if there is no fixed number.
    `read_only` is the mount's flag, `system_read_only` the file system's: the kernel sets only the latter on an error.
    `error` is the error of a broken mount (ESTALE ...), None if there was none; if a mount did not answer, all values
    from stat are Missing. `options` are those of mount and file system in /proc/self/mountinfo.
    """

    point: str
    fs_type: str
    storage_class: StorageClass
    source: str = ""
    options: tuple[str, ...] = ()
    read_only: bool = False
    system_read_only: bool = False
    paths: tuple[StoragePath, ...] = ()
    error: str | Missing | None = NOT_READ
    total_bytes: int | Missing = NOT_READ
    free_bytes: int | Missing = NOT_READ
    inodes: int | Missing | None = NOT_READ
    inodes_free: int | Missing = NOT_READ
    devices: tuple[StorageDevice, ...] | Missing = NOT_READ


class Storage(Fact, frozen=True):
    """The file systems of the paths of interest, and GPUDirect Storage (reads from disks into GPU memory).

    `nvidia_fs_loaded`: the kernel module that cuFile reads through; without it cuFile copies through RAM and reports
    that only in its log. `cufile_config` is the file that configures cuFile, `cufile_compat_mode` whether it allows
    that fallback. `page_cache_bytes` is the current size of the page cache.
    """

    mounts: tuple[StorageMount, ...] | Missing = NOT_READ
    page_cache_bytes: int | Missing = NOT_READ
    nvidia_fs_loaded: bool | Missing = NOT_READ
    cufile_config: str | Missing = NOT_READ
    cufile_compat_mode: bool | Missing = NOT_READ
