"""What training reads from and writes to: file systems, the devices behind them, the ways to a GPU."""

from typing import Literal

from gpudoctor.facts.model.gpu import Fact
from gpudoctor.facts.model.missing import NOT_READ, Missing

StorageClass = Literal[
    "nvme",  # local, and on the PCIe bus
    "disk",  # local: SATA, SAS, a virtual machine's disk
    "raid",  # several local disks as one: md, device mapper, ZFS, btrfs over several
    "network",  # one server: NFS, SMB
    "parallel",  # many servers: Lustre (FSx), GPFS, BeeGFS, WekaFS, CephFS
    "object",  # FUSE before an object store: s3fs, gcsfuse, JuiceFS, Mountpoint
    "fuse",  # another file system of a user's process
    "overlay",  # layers of a container's image, and what was written over them
    "memory",  # tmpfs
    "other",
]


class StorageDevice(Fact, frozen=True):
    """A disk behind a file system, as /sys/block has it. Widths in lanes, speeds in GT/s, of an NVMe disk's own link.

    `slot_*` are those of the bridge above it. `controller_state` is the NVMe controller's: "live" if all is well.
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
    """A path that training uses. `roles` say why it is looked at: "--data", "working directory", HOME, HF_HOME ...

    `is_mount`: it is the top of its file system, and no folder in it. `not_mounted`: the place in /etc/fstab that
    is to be mounted above it and is not.
    """

    path: str
    roles: tuple[str, ...] = ()
    is_mount: bool | Missing = NOT_READ
    writable: bool | Missing = NOT_READ
    not_mounted: str | None = None


class StorageMount(Fact, frozen=True):
    """One file system, and the paths of interest on it that have the same space.

    Space in bytes and inodes is what statvfs gives this user; `inodes` is None if the file system has no fixed number.
    `read_only` is the mount's, `system_read_only` the file system's own: a kernel that met an error sets that alone.
    `error` is what a mount that is broken answered (ESTALE ...), None if it did well; a mount that did not answer has
    Missing in all that stat tells. `options` are the mount's and the file system's, as /proc/self/mountinfo has them.
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

    `nvidia_fs_loaded`: the kernel module that cuFile reads through; without it cuFile copies through RAM, and says so
    in its log alone. `cufile_config` is the file that cuFile reads, `cufile_compat_mode` whether that lets it fall
    back so. `page_cache_bytes` is the RAM that holds files now.
    """

    mounts: tuple[StorageMount, ...] | Missing = NOT_READ
    page_cache_bytes: int | Missing = NOT_READ
    nvidia_fs_loaded: bool | Missing = NOT_READ
    cufile_config: str | Missing = NOT_READ
    cufile_compat_mode: bool | Missing = NOT_READ
