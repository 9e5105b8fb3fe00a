"""storage.mount: are the file systems of a training mounted correctly, and do they answer? Mounts in text."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, fail, ok, unknown, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_path
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.storage import StorageDevice, StorageMount
from gpudoctor.units import GIB, MIB, gib_text, mib_text

DATA = "--data"  # the role of a path that the user named
# local to one machine: their reported size is right, and no other node fills them
LOCAL = ("nvme", "disk", "raid", "overlay", "memory")
_CLASS_WORDS = {
    "nvme": "local NVMe",
    "disk": "local disk",
    "raid": "several local disks",
    "network": "network",
    "parallel": "parallel file system",
    "object": "FUSE before an object store",
    "fuse": "FUSE",
    "overlay": "layers of a container",
    "memory": "in RAM",
    "other": "kind not known",
}


def subject_of(mount: StorageMount) -> Subject:
    return of_path(mount.point)


def is_data(mount: StorageMount) -> bool:
    """Whether the user named a path on it as data."""
    return any(DATA in path.roles for path in mount.paths)


def used_for(mount: StorageMount) -> str:
    """The roles for which it is checked: "HOME, TMPDIR"."""
    return ", ".join(dict.fromkeys(role for path in mount.paths for role in path.roles))


def mount_evidence(mount: StorageMount) -> Evidence:
    """Its line of the mount table, with at most 12 options."""
    options = ",".join(mount.options[:12])
    words = f"{mount.source} on {mount.point} type {mount.fs_type} ({options}): {class_words(mount)}"
    return Evidence("/proc/self/mountinfo", f"{words}; used as {used_for(mount)}")


def class_words(mount: StorageMount) -> str:
    return _CLASS_WORDS[mount.storage_class]


def bytes_text(size_bytes: float) -> str:
    return gib_text(size_bytes) if size_bytes >= GIB else mib_text(round(size_bytes / MIB) * MIB)


# file systems that become read-only after an error; others are made read-only by design
_SELF_PROTECTING = ("ext2", "ext3", "ext4", "f2fs", "btrfs")
# options that ext4 and XFS show after shutting down
_GIVEN_UP = ("emergency_ro", "shutdown")
_SERVER = (
    Advice("See whether the server answers.", "dmesg -T | grep -iE 'nfs|lustre|ceph|fuse' | tail; showmount -e SERVER"),
    Advice("Mount it anew once nothing uses it any more.", "umount -l MOUNTPOINT && mount MOUNTPOINT"),
)


@check("storage.mount", title="What training reads and writes is mounted, and answers", impact="costs", needs_gpu=False)
def mounted(case: Case) -> Iterator[Finding]:
    """Fail for a mount that returns errors or was shut down by the kernel; warn of unusual or slow ones."""
    mounts = case.node.storage.mounts
    if isinstance(mounts, Missing):
        yield unread(NODE, "mounted file systems", mounts)
        return
    for mount in mounts:
        findings = [*_of_mount(mount), *_of_paths(mount), *_of_devices(mount)]
        words = f"{mount.fs_type}, {class_words(mount)}, used as {used_for(mount)}"
        yield from findings or [ok(subject_of(mount), Found(words), None, mount_evidence(mount))]


def _of_mount(mount: StorageMount) -> Iterator[Finding]:
    subject, evidence = subject_of(mount), mount_evidence(mount)
    if isinstance(mount.error, Missing):
        finding = unread(subject, f"{mount.fs_type}, used as {used_for(mount)}", mount.error)
        hung = mount.error.kind == "failed"
        yield unknown(subject, finding.reason or "", evidence, advice=_SERVER) if hung else finding
    elif mount.error is not None:
        broken, likely, advice = Found(f"it answers {mount.error}", mount.error), "its server is gone", _SERVER
        if "ESTALE" in mount.error:
            likely = "a stale handle: the server has lost the folder"
        elif mount.storage_class in LOCAL:
            likely, advice = "the disk has failed, or the file system shut itself down after an error", _DISK
        yield fail(subject, broken, "files can be looked up", evidence, likely=likely, advice=advice)
    elif set(mount.options) & set(_GIVEN_UP):
        what = Found("the file system has shut itself down after an error", "shutdown")
        yield fail(subject, what, "writable, as it was mounted", evidence, advice=_DISK)
    elif mount.system_read_only and not mount.read_only and mount.fs_type in _SELF_PROTECTING:
        yield warn(
            subject,
            Found("read-only, though it was mounted writable", "read-only"),
            "writable, as it was mounted",
            evidence,
            likely="the kernel made it so after an error, or it is bound from a file system that is read-only",
            advice=_DISK,
        )
    elif mount.storage_class == "overlay" and is_data(mount):
        yield warn(
            subject,
            Found("the data lies in the layers of the container", "overlay"),
            "a data set on a volume of its own",
            evidence,
            likely="the folder was not mounted into the container, or the data was copied into the image",
            advice=(Advice("Mount it.", "docker run -v /datasets:/datasets:ro ...   # Kubernetes: a volume"),),
        )


_DISK = (
    Advice("See what the kernel says of the disk.", "dmesg -T | grep -iE 'ext4|btrfs|xfs|nvme|I/O error' | tail"),
    Advice("Check the file system while it is not mounted; if errors return, replace the disk.", "fsck -f DEVICE"),
)


def _of_paths(mount: StorageMount) -> Iterator[Finding]:
    for path in mount.paths:
        if "TMPDIR" in path.roles and path.writable is False and mount.error is None:
            yield warn(
                of_path(path.path),
                Found("TMPDIR may not be written to by this user", "not writable"),
                "temporary files can be made",
                mount_evidence(mount),
                likely="a read-only root, or another user's folder: workers of data loaders and compilers need it",
                advice=(Advice("Name another folder.", "export TMPDIR=...   # in a container: --tmpfs /tmp"),),
            )
        if path.not_mounted is not None:
            yield warn(
                of_path(path.path),
                Found(f"a plain folder on {mount.point}: {path.not_mounted} is not mounted", path.not_mounted),
                f"{path.not_mounted} is mounted, as /etc/fstab says",
                Evidence("/etc/fstab", f"has {path.not_mounted}, and the mount table does not"),
                mount_evidence(mount),
                likely="the mount failed at boot, or its server was away: what is written here fills the system's disk",
                advice=(
                    Advice("Mount it.", f"mount {path.not_mounted}"),
                    Advice("See why it was not.", "journalctl -b -u '*.mount'"),
                ),
            )


def _of_devices(mount: StorageMount) -> Iterator[Finding]:
    for disk in known(mount.devices) or ():
        state = known(disk.controller_state)
        if state not in (None, "live"):
            yield warn(
                subject_of(mount),
                Found(f"{disk.name}: its controller is {state}", state),
                "live",
                Evidence(f"/sys/class/nvme of {disk.name}", str(state)),
                likely="the disk was reset, or has left the bus",
                advice=_DISK,
            )
        elif (narrow := _narrowed(disk)) is not None:
            yield warn(
                subject_of(mount),
                Found(f"{disk.name} runs at {narrow[0]}", known(disk.width), "lanes"),
                f"{narrow[1]}, which disk and slot can both do",
                Evidence(f"/sys/bus/pci/devices/{known(disk.bus_id)}", f"{narrow[0]}; maximum {narrow[1]}"),
                likely="the disk is not seated well, its cable is bad, or the BIOS splits the slot's lanes",
                advice=(
                    Advice("Compare link and slot.", f"sudo lspci -vvs {known(disk.bus_id)} | grep -i lnk"),
                    Advice("Power the node off for 30 seconds; still narrow: reseat the disk, try another bay."),
                ),
            )


def _narrowed(disk: StorageDevice) -> tuple[str, str] | None:
    """The link's state and its maximum, as text, if it is below that; None if not, or if slot or disk is unknown."""
    width, widths = known(disk.width), (known(disk.max_width), known(disk.slot_max_width))
    speed, speeds = known(disk.speed_gt_s), (known(disk.max_speed_gt_s), known(disk.slot_max_speed_gt_s))
    if width is None or speed is None or None in widths or None in speeds:
        return None
    can_width, can_speed = min(w for w in widths if w is not None), min(s for s in speeds if s is not None)
    if width >= can_width and speed >= can_speed:
        return None
    return f"x{width} at {speed:g} GT/s", f"x{can_width} at {can_speed:g} GT/s"
